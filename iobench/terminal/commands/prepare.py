"""`iobench prepare`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from iobench.base.errors import InvalidSettings, IobenchError, SourceError
from iobench.base.units import parse_elements, parse_shape
from iobench.bench.command_option import flag_of
from iobench.terminal.commands._options import (
    DataDir,
    S3Endpoint,
    SourceFormat,
    fields_of,
    parsed,
    run_command,
)

if TYPE_CHECKING:
    from iobench.dataset.sources import Source
    from iobench.formats import Schema
    from iobench.objects.client import ObjectStore

Columns = Literal["packed", "separate"]
OnError = Literal["stop", "skip"]


def prepare(
    size: Annotated[
        str | None,
        typer.Option(help="Elements to generate (1e7, 2_000_000), or bytes (4GiB). [default: 1e7]"),
    ] = None,
    sample_shape: Annotated[
        str | None,
        typer.Option(help="Shape of one sample. [default: 128; 3x224x224 for images]"),
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="Dtype of generated data. [default: float32]")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of generated data. [default: 0]")] = None,
    compressibility: Annotated[
        float | None,
        typer.Option(help="Fraction (0 to 1) of each generated sample that repeats one value. [default: 0]"),
    ] = None,
    fields: Annotated[
        str | None,
        typer.Option(
            help="Fields to generate, with * where samples differ in length: 'tokens=uint16[*],label=int64'. "
            "--size counts the elements of that field.",
            show_default=False,
        ),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Lengths of the samples of --fields: lognormal:MEDIAN,SIGMA, uniform:LOW,HIGH or file:PATH "
            "of an .npy array. [default: lognormal:512,1.2]",
            show_default=False,
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            help="Your own data: .npy, .npz, .pt, .csv, a folder of images, or any readable format; "
            "FILE::NAME,NAME selects arrays. [default: data added to --name, else generated]",
            show_default=False,
        ),
    ] = None,
    source_format: SourceFormat = None,
    columns: Annotated[
        Columns | None,
        typer.Option(
            help="Columns of one dtype in a table given by --source: one field, or a field each. "
            "[default: packed]",
            show_default=False,
        ),
    ] = None,
    on_error: Annotated[
        OnError | None,
        typer.Option(
            help="skip leaves out images of --source that cannot be decoded, and counts them. "
            "[default: stop]",
            show_default=False,
        ),
    ] = None,
    format: Annotated[
        list[str] | None,
        typer.Option(
            help="Format or variant, like hdf5:compression=gzip, or all; repeatable. "
            "[default: npy, hdf5, lmdb, memmap]",
            show_default=False,
        ),
    ] = None,
    data_dir: DataDir = Path("data"),
    name: Annotated[
        str | None, typer.Option(help="Dataset name. [default: made from the data]", show_default=False)
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            help="Upload the dataset to an address like s3://bucket/prefix, instead of keeping it here.",
            show_default=False,
        ),
    ] = None,
    s3_endpoint: S3Endpoint = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing data.")] = False,
    ray: Annotated[
        str | None,
        typer.Option(
            help="Copy the dataset to the same path on every host of the Ray cluster at this address.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write an array into each format, read it back and compare."""
    from iobench.dataset.prepare import prepare as write
    from iobench.dataset.publish import publish
    from iobench.terminal import display, tables

    generated = {"size": size, "dtype": dtype, "seed": seed, "compressibility": compressibility}
    generated |= {"fields": fields, "lengths": lengths}
    given = [value for value in (source, sample_shape, columns, *generated.values()) if value is not None]
    of_source = {"--columns": columns, "--source-format": source_format, "--on-error": on_error}
    for option, value in of_source.items():
        if value and source is None:
            problem = f"{option} is for data given by --source"
            raise InvalidSettings(problem, kind="conflicting-options", hint=f"omit {option}")
    with display.progress() as progress:
        if source is not None:
            progress(f"inspecting {source}", 0, 0)
        chosen = (None if given else _added(data_dir, name)) or _source(
            source, sample_shape, columns or "packed", source_format, on_error or "stop", generated
        )
    for note in chosen.notes:
        display.warning(note.kind, note.sentence)
    variants, skipped = _variants(format, chosen.schema)
    with ExitStack() as ends, display.progress() as progress:
        store = None
        if to is not None:
            store, data_dir = _target(to, s3_endpoint, ray, overwrite), ends.enter_context(_aside())
        manifest, rows = write(
            chosen,
            variants,
            data_dir=data_dir,
            name=name,
            overwrite=overwrite,
            progress=progress,
        )
        if store is not None:
            publish(manifest, store, overwrite, progress)
            manifest = replace(manifest, url=store.url)
    renamed = tables.renamed_lines(rows, manifest.schema)
    display.result(tables.dataset_line(manifest), tables.prepared_table(rows), *renamed)
    for error in skipped:
        display.note(f"skipped: {error}")
    if ray is not None:
        from iobench.ranks.copies import copy_to_all

        copy_to_all(manifest, ray, display.note)
    if store is not None:
        following = run_command(Path("data"), "--name", store.url)
        display.note(f"dataset uploaded to {store.url}; next: iobench {following}")
        return
    following = run_command(data_dir, "--name", manifest.name)
    display.note(f"dataset written to {manifest.root}; next: iobench {following}")


def _variants(words: Sequence[str] | None, schema: Schema) -> tuple[list[str], list[IobenchError]]:
    """Return the variants to write, by default common formats, and why `all` leaves some out."""
    from iobench import formats
    from iobench.dataset.prepare import DEFAULT_FORMATS, writable_formats

    default = [one for one in DEFAULT_FORMATS if formats.get(one).holds_ragged or not schema.ragged]
    variants = list(words or default)
    if "all" not in variants:
        return variants, []
    every, skipped = writable_formats(schema)
    return [*(word for word in variants if word != "all"), *every], skipped


def _target(to: str, s3_endpoint: str | None, ray: str | None, overwrite: bool) -> ObjectStore:
    """Return the object store to upload to; raises before anything is written if that is impossible."""
    from iobench.dataset.publish import check_target
    from iobench.objects.url import use_endpoint

    if ray is not None:
        raise InvalidSettings("--to with --ray", kind="conflicting-options", hint="omit --ray")
    use_endpoint(s3_endpoint)
    return check_target(to, overwrite)


@contextmanager
def _aside() -> Iterator[Path]:
    """Yield a temporary folder for a dataset that is uploaded."""
    with tempfile.TemporaryDirectory(prefix="iobench-upload-") as folder:
        yield Path(folder)


def _added(data_dir: Path, name: str | None) -> Source | None:
    """Return the data that were added to this dataset, as a source; None if there are none."""
    from iobench.dataset.added_source import AddedSource
    from iobench.dataset.dataset_folders import check_name
    from iobench.dataset.manifest import Manifest
    from iobench.dataset.manifest_file import FILE_NAME

    if name is None or not (data_dir / check_name(name) / FILE_NAME).is_file():
        return None
    manifest = Manifest.load(data_dir / name)
    return AddedSource(manifest) if manifest.added else None


def _source(
    source: Path | None,
    sample_shape: str | None,
    columns: Columns,
    source_format: str | None,
    on_error: OnError,
    generated: Mapping[str, Any],
) -> Source:
    """Return the source to write: the user's files, or generated data with defaults filled in."""
    import numpy as np

    from iobench.dataset.sources import Synthetic, open_source
    from iobench.formats import DTYPES

    given = {key: value for key, value in generated.items() if value is not None}
    try:
        shape = parsed("--sample-shape", parse_shape, sample_shape) if sample_shape is not None else None
        if source is not None:
            if given:
                flags = ", ".join(f"--{key}" for key in given)
                raise InvalidSettings(
                    f"{flags} with --source",
                    kind="conflicting-options",
                    hint="use them for generated data only",
                )
            return open_source(source, shape, columns, source_format, on_error)
        if "fields" in given or "lengths" in given:
            return _ragged(given, shape)
        dtype = str(given.setdefault("dtype", "float32"))
        if dtype not in DTYPES:
            known = f"one of {', '.join(DTYPES)}"
            raise InvalidSettings("--dtype", kind="unknown-dtype", expected=known, found=repr(dtype))
        elements = parsed("--size", parse_elements, str(given.pop("size", "1e7")), np.dtype(dtype).itemsize)
        return Synthetic(elements, shape or (128,), **given)
    except SourceError as error:
        if source is not None:
            raise
        raise error.converted(InvalidSettings) from None


def _ragged(given: Mapping[str, Any], shape: tuple[int, ...] | None) -> Source:
    """Return generated samples of different lengths."""
    import numpy as np

    from iobench.dataset.sources import GeneratedLengths

    others = {"sample_shape": shape, **given}
    flags = [flag_of(key) for key, value in others.items() if value is not None]
    taken = ("--fields", "--lengths", "--size", "--seed")
    if wrong := [flag for flag in flags if flag not in taken] or "fields" not in given:
        listed = ", ".join(wrong) if isinstance(wrong, list) else "--lengths without --fields"
        hint = "give --fields 'tokens=uint16[*]', --lengths, --size and --seed"
        raise InvalidSettings(listed, kind="conflicting-options", hint=hint)
    fields = fields_of(given["fields"])
    lengths = given.get("lengths", "lognormal:512,1.2")
    if "size" in given and lengths.startswith("file:"):
        raise InvalidSettings("--size with --lengths file:", kind="conflicting-options", hint="omit --size")
    item = max((np.dtype(field.dtype).itemsize for field in fields if field.is_ragged), default=1)
    elements = parsed("--size", parse_elements, str(given.get("size", "1e7")), item)
    return GeneratedLengths(fields, lengths, elements, given.get("seed", 0))
