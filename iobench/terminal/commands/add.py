"""`iobench add`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from iobench.terminal.commands._options import DataDir, field_of


def add(
    path: Annotated[
        Path, typer.Argument(help="A file or folder; FILE::NAME,NAME takes some of an HDF5 file's arrays.")
    ],
    format: Annotated[
        str | None,
        typer.Option(
            help="The format that reads it. [default: the one that recognises it]", show_default=False
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The dataset. [default: made from the path]", show_default=False)
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option(
            help="What each sample holds, where the data do not say it: x=float32[3,224,224]; repeatable, in "
            "the order in which fields lie in a sample.",
            show_default=False,
        ),
    ] = None,
    data_dir: DataDir = Path("data"),
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Forget what is listed under that name.")
    ] = False,
) -> None:
    """Register data where they lie; they are only ever read."""
    from iobench.dataset.add import add as register
    from iobench.terminal import display, tables

    told = [field_of(text) for text in field or []]
    with display.progress() as progress:
        manifest, row = register(
            path,
            format,
            name=name,
            fields=told,
            data_dir=data_dir,
            overwrite=overwrite,
            progress=progress,
            warn=display.warning,
        )
    display.result(tables.dataset_line(manifest), tables.prepared_table([row]))
    if row.artifact.added is not None and row.artifact.added.part:
        display.note(
            "stored counts all bytes of the files, of which the fields that were named may be a part, and is "
            "shown without a ratio"
        )
    where = "" if data_dir == Path("data") else f" --data-dir {shlex.quote(str(data_dir))}"
    display.note(
        f"the data stay where they lie, {manifest.path_of(row.variant)}; next: iobench run{where} "
        f"--name {manifest.name}"
    )
