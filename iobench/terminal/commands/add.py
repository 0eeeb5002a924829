"""`iobench add`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from iobench.base.finding import Finding
from iobench.terminal.commands._options import (
    FIELD_HELP,
    FILES,
    FILES_HELP,
    AsJson,
    DataDir,
    Hash,
    S3Endpoint,
    checked_choice,
    checked_hash,
    fields_with_extents,
    run_command,
)


def add(
    path: Annotated[
        str,
        typer.Argument(
            help="File, folder, or address like s3://bucket/train/; FILE::NAME,NAME selects arrays, or "
            "columns of a table."
        ),
    ],
    format: Annotated[str | None, typer.Option(help="Format of the data. [default: detected]")] = None,
    files: Annotated[str | None, typer.Option(help=FILES_HELP)] = None,
    name: Annotated[str | None, typer.Option(help="Dataset name. [default: made from the path]")] = None,
    field: Annotated[
        list[str] | None,
        typer.Option(help=FIELD_HELP),
    ] = None,
    hash: Hash = "auto",
    data_dir: DataDir = Path("data"),
    s3_endpoint: S3Endpoint = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the dataset of that name; its data are kept.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Register existing data in place; iobench only reads them.

    Example: iobench add shards/ --format webdataset
    """
    from iobench.dataset.add import add as register
    from iobench.objects.url import use_endpoint
    from iobench.terminal import display

    use_endpoint(s3_endpoint)
    fields, notes = fields_with_extents(field or ()), list[Finding]()
    with display.progress() as progress:
        manifest, row = register(
            path,
            format,
            files=files and checked_choice("--files", files, FILES),
            name=name,
            fields=fields,
            data_dir=data_dir,
            overwrite=overwrite,
            hash=checked_hash(hash),
            progress=progress,
            warn=partial(display.warn_or_keep, notes),
        )
    display.dataset(manifest, [row], notes, as_json)
    if row.artifact.added is not None and row.artifact.added.partial:
        display.note(
            "stored: the size of whole files, of which the selected fields may be a part; hence no ratio"
        )
    following = run_command(data_dir, "--name", manifest.name)
    place = path if manifest.url else manifest.path_of(row.variant)
    display.note(f"registered in place: {place}; next: iobench {following}")
