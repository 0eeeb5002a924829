"""`iobench prepare`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from iobench.base.errors import (
    InvalidSettings,
    IobenchError,
)
from iobench.terminal.commands._options import DataDir, parse_bytes, parse_shape

if TYPE_CHECKING:
    from iobench.dataset.sources import Source


def prepare(
    size: Annotated[
        str | None,
        typer.Option(help="Elements to generate (1e7, 2_000_000), or bytes (4GiB). [default: 1e7]"),
    ] = None,
    sample_shape: Annotated[
        str | None,
        typer.Option(help="One sample's shape. [default: 128; 3x224x224 for images]"),
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="The dtype of generated data. [default: float32]")] = None,
    seed: Annotated[int | None, typer.Option(help="The seed of generated data. [default: 0]")] = None,
    compressibility: Annotated[
        float | None,
        typer.Option(help="Fraction, 0 to 1, of each generated sample that repeats. [default: 0]"),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            help="Your own data instead: .npy, .npz, .pt, .csv, a folder of images, or data in any format; "
            "FILE::NAME,NAME takes some of a file's arrays. [default: what was added to --name]",
            show_default=False,
        ),
    ] = None,
    format: Annotated[
        list[str] | None,
        typer.Option(
            help="A format or variant, like hdf5:compression=gzip, or all; repeatable. "
            "[default: npy, hdf5, lmdb, memmap]",
            show_default=False,
        ),
    ] = None,
    data_dir: DataDir = Path("data"),
    name: Annotated[
        str | None, typer.Option(help="[default: made from the data]", show_default=False)
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
    ray: Annotated[
        str | None,
        typer.Option(
            help="Copy the dataset to the same path on all hosts of the Ray cluster at this address.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write an array into every format, read it back and compare."""
    from iobench.dataset.prepare import DEFAULT_FORMATS, writable
    from iobench.dataset.prepare import prepare as write
    from iobench.terminal import display, tables

    generated = {"size": size, "dtype": dtype, "seed": seed, "compressibility": compressibility}
    given = [value for value in (source, sample_shape, *generated.values()) if value is not None]
    chosen = (None if given else _added(data_dir, name)) or _source(source, sample_shape, generated)
    wanted, left_out = list(format or DEFAULT_FORMATS), list[str]()
    if "all" in wanted:
        every, left_out = writable(chosen.schema)
        wanted = [*(word for word in wanted if word != "all"), *every]
    with display.progress() as progress:
        manifest, rows = write(
            chosen,
            wanted,
            data_dir=data_dir,
            name=name,
            overwrite=overwrite,
            progress=progress,
        )
    display.result(tables.dataset_line(manifest), tables.prepared_table(rows))
    for reason in left_out:
        display.note(f"left out: {reason}")
    if ray is not None:
        from iobench.ranks.copies import copy_to_all

        copy_to_all(manifest, ray, display.note)
    where = [] if data_dir == Path("data") else ["--data-dir", str(data_dir)]
    following = shlex.join(["iobench", "run", *where, "--name", manifest.name])
    display.note(f"the dataset is in {manifest.root}; next: {following}")


def _added(data_dir: Path, name: str | None) -> Source | None:
    """What was added to the dataset of that name, which is then the source; None where there is none."""
    from iobench.dataset.add import AddedSource
    from iobench.dataset.manifest import FILE_NAME, Manifest, check_name

    if name is None or not (data_dir / check_name(name) / FILE_NAME).is_file():
        return None
    manifest = Manifest.load(data_dir / name)
    return AddedSource(manifest) if manifest.added else None


def _source(source: Path | None, sample_shape: str | None, generated: Mapping[str, Any]) -> Source:
    """What prepare writes: the user's files, or generated data with its defaults filled in."""
    import numpy as np

    from iobench.dataset.sources import Synthetic, open_source
    from iobench.formats import DTYPES

    given = {key: value for key, value in generated.items() if value is not None}
    try:
        shape = parse_shape("--sample-shape", sample_shape)
        if source is not None:
            if given:
                flags = ", ".join(f"--{key}" for key in given)
                raise InvalidSettings(f"{flags}: for generated data only, not with --source")
            return open_source(source, shape)
        dtype = str(given.setdefault("dtype", "float32"))
        if dtype not in DTYPES:
            raise InvalidSettings(f"--dtype {dtype!r} is not one of {', '.join(DTYPES)}")
        elements = parse_bytes("--size", str(given.pop("size", "1e7")), np.dtype(dtype).itemsize)
        return Synthetic(elements, shape or (128,), **given)
    except ValueError as error:
        if isinstance(error, IobenchError) and source is not None:
            raise
        raise InvalidSettings(str(error)) from None
