"""`iobench prepare` and `add`: datasets that are written, and data that stay in place."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from iobench import formats
from iobench.base.credentials import shown_address
from iobench.base.errors import InvalidSettings, IobenchError, SourceError, conflict
from iobench.base.finding import Finding
from iobench.base.units import parse_elements, parse_shape
from iobench.bench.options import check_declared, command_option, declared
from iobench.dataset.add import AddedSource
from iobench.dataset.add import add as register
from iobench.dataset.manifest import Manifest, check_name
from iobench.dataset.manifest_file import FILE_NAME
from iobench.dataset.prepare import DEFAULT_FORMATS, writable_formats
from iobench.dataset.prepare import prepare as write
from iobench.dataset.remote_dataset import check_target, publish
from iobench.dataset.sources import GeneratedLengths, Source, Synthetic, open_source
from iobench.formats import DTYPES, VARIES, Schema, numpy_dtype
from iobench.objects.client import ObjectStore
from iobench.objects.url import use_endpoint
from iobench.terminal import datasets, display
from iobench.terminal.commands import _options as shared
from iobench.terminal.commands._declared_options import made_of, with_options

OF_GENERATED = ("size", "dtype", "seed", "compressibility", "fields", "lengths")
OF_SOURCE = ("columns", "source_format", "on_error", "files", "field")
OF_RAGGED = ("fields", "lengths", "size", "seed")


@dataclass(frozen=True)
class SourceOptions:
    """The options as they are typed; None for those that were not.

    Raises
    ------
    InvalidSettings
        If a value is unknown, or options exclude each other.
    """

    size: str | None = command_option(
        None, "Elements to generate (1e7, 2_000_000), or bytes (4GiB). [default: 1e7]"
    )
    sample_shape: str | None = command_option(
        None,
        "Shape of one sample; '*x*x3' keeps the size of each image. [default: 128; 3x224x224 for images]",
    )
    dtype: str | None = command_option(None, "Dtype of generated data. [default: float32]")
    seed: int | None = command_option(None, "Seed of generated data. [default: 0]")
    compressibility: float | None = command_option(
        None, "Fraction (0 to 1) of each generated sample that repeats one value. [default: 0]"
    )
    fields: str | None = command_option(
        None,
        "Fields to generate, with * where samples differ in length: 'tokens=uint16[*],label=int64'. --size "
        "counts the elements of that field.",
    )
    lengths: str | None = command_option(
        None,
        "Lengths of the samples of --fields: lognormal:MEDIAN,SIGMA, uniform:LOW,HIGH or file:PATH of an "
        ".npy array. [default: lognormal:512,1.2]",
    )
    source: str | None = command_option(
        None,
        "Your own data: .npy, .npz, .pt, .csv, a folder of images, or any readable format; FILE::NAME,NAME "
        "selects arrays. [default: data added to --name, else generated]",
    )
    source_format: str | None = command_option(None, shared.SOURCE_FORMAT_HELP)
    field: tuple[str, ...] = command_option((), shared.FIELD_HELP, repeatable=True)
    columns: str | None = command_option(
        None,
        "Columns of one dtype in a table given by --source: packed makes them one field, separate keeps a "
        "field for each. [default: packed]",
        choices=("packed", "separate"),
    )
    on_error: str | None = command_option(None, shared.ON_ERROR_HELP, choices=shared.ON_ERROR)
    files: str | None = command_option(None, shared.FILES_HELP, choices=shared.FILES)

    def __post_init__(self) -> None:
        check_declared(self)
        if self.source is not None and (given := self._typed(OF_GENERATED)):
            raise conflict(f"{', '.join(given)} with --source", "use them for generated data only")
        for flag in self._typed(OF_SOURCE) if self.source is None else ():
            problem = f"{flag} is for data given by --source"
            raise conflict(problem, f"omit {flag}")

    def _typed(self, names: tuple[str, ...]) -> list[str]:
        """Return the flags of the options among these that were typed."""
        return [
            one.flag
            for one in declared(type(self))
            if one.name in names and getattr(self, one.name) not in (None, ())
        ]

    @property
    def name_data(self) -> bool:
        """True if any option says which data are meant."""
        return bool(self._typed((*OF_GENERATED, "source", "sample_shape")))

    def open(self) -> Source:
        """Return the source to write: the user's files, or generated data with defaults filled in."""
        shape = None
        if self.sample_shape is not None:
            shape = shared.parsed("--sample-shape", parse_shape, self.sample_shape, True)
        if self.source is not None:
            columns, on_error = self.columns or "packed", self.on_error or "stop"
            fields = shared.fields_with_extents(self.field)
            return open_source(self.source, shape, columns, self.source_format, on_error, self.files, fields)
        try:
            if self.fields is not None or self.lengths is not None:
                return self._ragged()
            return self._synthetic(shape or (128,))
        except SourceError as error:
            raise error.converted(InvalidSettings) from None

    def _synthetic(self, shape: tuple[int, ...]) -> Source:
        if VARIES in shape:
            problem, hint = "--sample-shape with * and without --source", "give --fields 'x=uint8[*,*,3]'"
            raise conflict(problem, hint)
        dtype = "float32" if self.dtype is None else self.dtype
        if dtype not in DTYPES:
            known = f"one of {', '.join(DTYPES)}"
            raise InvalidSettings("--dtype", kind="unknown-dtype", expected=known, found=repr(dtype))
        given: dict[str, Any] = {"seed": self.seed, "compressibility": self.compressibility}
        others = {name: value for name, value in given.items() if value is not None}
        return Synthetic(self._elements(numpy_dtype(dtype).itemsize), shape, dtype=dtype, **others)

    def _ragged(self) -> Source:
        others = [name for name in (*OF_GENERATED, "sample_shape") if name not in OF_RAGGED]
        wrong = self._typed(tuple(others))
        if wrong or self.fields is None:
            listed = ", ".join(wrong) or "--lengths without --fields"
            hint = "give --fields 'tokens=uint16[*]', --lengths, --size and --seed"
            raise conflict(listed, hint)
        lengths = self.lengths or "lognormal:512,1.2"
        if self.size is not None and lengths.startswith("file:"):
            raise conflict("--size with --lengths file:", "omit --size")
        fields = shared.fields_of(self.fields)
        item = max((np.dtype(field.dtype).itemsize for field in fields if field.is_ragged), default=1)
        return GeneratedLengths(fields, lengths, self._elements(item), self.seed or 0)

    def _elements(self, item_bytes: int) -> int:
        return shared.parsed("--size", parse_elements, "1e7" if self.size is None else self.size, item_bytes)


@with_options(SourceOptions)
def prepare(
    *,
    typed: Mapping[str, Any],
    format: Annotated[
        list[str] | None,
        typer.Option(
            help="Format or variant, like hdf5:compression=gzip, or all; repeatable. "
            "[default: npy, hdf5, lmdb, memmap]"
        ),
    ] = None,
    data_dir: shared.DataDir = Path("data"),
    name: Annotated[str | None, typer.Option(help="Dataset name. [default: made from the data]")] = None,
    to: Annotated[
        str | None,
        typer.Option(
            help="Upload the dataset to an address like s3://bucket/prefix, instead of keeping it here."
        ),
    ] = None,
    s3_endpoint: shared.S3Endpoint = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing data.")] = False,
    ray: Annotated[
        str | None,
        typer.Option(
            help="Copy the dataset to the same path on every host of the Ray cluster at this address."
        ),
    ] = None,
    as_json: shared.AsJson = False,
) -> None:
    """Write an array into each format, read it back and compare.

    Example: iobench prepare --size 1e7
    """
    options = made_of(SourceOptions, typed)
    with display.progress() as progress:
        if options.source is not None:
            progress(f"inspecting {shown_address(str(options.source))}", 0, 0)
        chosen = (None if options.name_data else _added(data_dir, name)) or options.open()
    notes = list[Finding]()
    for note in chosen.notes:
        datasets.warn_or_keep(notes, note)
    variants, skipped = _variants(format, chosen.schema)
    with ExitStack() as ends, display.progress() as progress:
        store = None
        if to is not None:
            store = _target(to, s3_endpoint, ray, overwrite)
            data_dir = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="iobench-upload-")))
        manifest, rows = write(
            chosen, variants, data_dir=data_dir, name=name, overwrite=overwrite, progress=progress
        )
        if store is not None:
            publish(manifest, store, overwrite, progress)
            manifest = replace(manifest, url=store.url)
    datasets.show(manifest, rows, notes, as_json, *datasets.renamed_lines(rows, manifest.schema))
    for error in skipped:
        display.note(f"skipped: {error}")
    if ray is not None:
        from iobench.ranks.ray_hosts import copy_to_all

        copy_to_all(manifest, ray, display.note)
    if store is not None:
        done, following = f"uploaded to {store.url}", shared.run_command(Path("data"), "--name", store.url)
    else:
        done, following = f"written to {manifest.root}", shared.run_command(data_dir, "--name", manifest.name)
    display.note(f"dataset {done}; next: iobench {following}")


def _variants(words: Sequence[str] | None, schema: Schema) -> tuple[list[str], list[IobenchError]]:
    """Return the variants to write, by default common formats, and why `all` leaves some out."""
    default = [one for one in DEFAULT_FORMATS if formats.get(one).holds_ragged or not schema.ragged]
    variants = list(words or default)
    if "all" not in variants:
        return variants, []
    every, skipped = writable_formats(schema)
    return [*(word for word in variants if word != "all"), *every], skipped


def _target(to: str, s3_endpoint: str | None, ray: str | None, overwrite: bool) -> ObjectStore:
    """Return the object store to upload to; raises before anything is written if that is impossible."""
    if ray is not None:
        raise conflict("--to with --ray", "omit --ray")
    use_endpoint(s3_endpoint)
    return check_target(to, overwrite)


def _added(data_dir: Path, name: str | None) -> Source | None:
    """Return the data that were added to this dataset, as a source; None if there are none."""
    if name is None or not (data_dir / check_name(name) / FILE_NAME).is_file():
        return None
    manifest = Manifest.load(data_dir / name)
    return AddedSource(manifest) if manifest.added else None


def add(
    path: Annotated[
        str,
        typer.Argument(
            help="File, folder, or address like s3://bucket/train/; FILE::NAME,NAME selects arrays, or "
            "columns of a table."
        ),
    ],
    format: Annotated[str | None, typer.Option(help="Format of the data. [default: detected]")] = None,
    files: Annotated[str | None, typer.Option(help=shared.FILES_HELP)] = None,
    name: Annotated[str | None, typer.Option(help="Dataset name. [default: made from the path]")] = None,
    field: Annotated[list[str] | None, typer.Option(help=shared.FIELD_HELP)] = None,
    hash: shared.Hash = "auto",
    data_dir: shared.DataDir = Path("data"),
    s3_endpoint: shared.S3Endpoint = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the dataset of that name; its data are kept.")
    ] = False,
    as_json: shared.AsJson = False,
) -> None:
    """Register existing data in place; iobench only reads them.

    Example: iobench add shards/ --format webdataset
    """
    use_endpoint(s3_endpoint)
    fields, notes = shared.fields_with_extents(field or ()), list[Finding]()
    with display.progress() as progress:
        manifest, row = register(
            path,
            format,
            files=files and shared.checked_choice("--files", files, shared.FILES),
            name=name,
            fields=fields,
            data_dir=data_dir,
            overwrite=overwrite,
            hash=shared.checked_choice("--hash", hash, shared.HASH),
            progress=progress,
            warn=partial(datasets.warn_or_keep, notes),
        )
    datasets.show(manifest, [row], notes, as_json)
    if row.artifact.added is not None and row.artifact.added.partial:
        display.note(
            "stored: the size of whole files, of which the selected fields may be a part; hence no ratio"
        )
    following = shared.run_command(data_dir, "--name", manifest.name)
    place = path if manifest.url else manifest.path_of(row.variant)
    display.note(f"registered in place: {place}; next: iobench {following}")
