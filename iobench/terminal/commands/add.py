"""`iobench add`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from iobench.terminal.commands._options import (
    DataDir,
    Hash,
    S3Endpoint,
    checked_hash,
    fields_with_extents,
    run_command,
)


def add(
    path: Annotated[
        str,
        typer.Argument(
            help="File, folder, or address like s3://bucket/train/; FILE::NAME,NAME selects arrays of an "
            "HDF5 file, or columns of a table."
        ),
    ],
    format: Annotated[str | None, typer.Option(help="Format of the data. [default: detected]")] = None,
    name: Annotated[str | None, typer.Option(help="Dataset name. [default: made from the path]")] = None,
    field: Annotated[
        list[str] | None,
        typer.Option(
            help="A field of each sample, for data without a schema: x=float32[3,224,224]; repeatable, in "
            "the order of the fields in a sample."
        ),
    ] = None,
    hash: Hash = "auto",
    data_dir: DataDir = Path("data"),
    s3_endpoint: S3Endpoint = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the dataset of that name; its data are kept.")
    ] = False,
) -> None:
    """Register existing data in place; iobench only reads them."""
    from iobench.dataset.add import add as register
    from iobench.objects.url import use_endpoint
    from iobench.terminal import display, tables

    use_endpoint(s3_endpoint)
    fields = fields_with_extents(field or ())
    with display.progress() as progress:
        manifest, row = register(
            path,
            format,
            name=name,
            fields=fields,
            data_dir=data_dir,
            overwrite=overwrite,
            hash=checked_hash(hash),
            progress=progress,
            warn=display.warning,
        )
    display.result(tables.dataset_line(manifest), tables.prepared_table([row]))
    if row.artifact.added is not None and row.artifact.added.partial:
        display.note(
            "stored: the size of whole files, of which the selected fields may be a part; hence no ratio"
        )
    following = run_command(data_dir, "--name", manifest.name)
    place = path if manifest.url else manifest.path_of(row.variant)
    display.note(f"registered in place: {place}; next: iobench {following}")
