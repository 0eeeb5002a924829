"""Fields of files in tar archives: NumPy arrays, images, integers as text, or raw bytes of a named field."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.contrib.formats.shared.external import FIXED, as_options
from iobench.contrib.formats.shared.packed_images import PackedImages
from iobench.contrib.formats.shared.placed_reader import FieldLocations, Maps, runs
from iobench.contrib.formats.webdataset.tar_columns import TarColumn, pieces_of
from iobench.formats import (
    DTYPES,
    Array,
    Blocks,
    Field,
    Index,
    Listed,
    Placement,
    Schema,
    names_within,
    unsupported_dtype,
)
from iobench.formats.npy_header import LONGEST, header_of, read_plain_header

NUMBERS = {"cls", "cls2", "class", "count", "index", "inx", "id"}  # webdataset decodes them as int
IMAGES = {"png", "jpg", "jpeg"}
OTHER_IMAGES = {"ppm", "pgm", "pbm", "webp", "bmp", "tif", "tiff"}


def fields_of(columns: Mapping[str, TarColumn], maps: Maps) -> tuple[Field, ...]:
    """Return the field of each column.

    Raises
    ------
    CorruptArtifact
        Kind ``fields-needed``, or ``unsupported-image`` for image types that are not decoded; the hint lists
        the options that select the other fields or describe these.
    """
    names = {suffix: name for name, suffix in suffixes_of(columns).items()}
    inferred = {suffix: field_of(names[suffix], suffix, column, maps) for suffix, column in columns.items()}
    known = [field for field in inferred.values() if field is not None]
    for suffix, column in columns.items():
        if inferred[suffix] is None:
            hint, image = _instead(names[suffix], column, known), _kind(suffix) in OTHER_IMAGES
            raise CorruptArtifact(
                f"images .{suffix} are not supported"
                if image
                else f"files .{suffix} do not describe dtype and shape",
                kind="unsupported-image" if image else "fields-needed",
                path=column.path(maps, 0),
                hint=f"convert them to PNG or JPEG, or {hint}" if image else hint,
            )
    return tuple(known)


def _instead(name: str, column: TarColumn, known: Sequence[Field]) -> str:
    """Return the options to type for files that do not describe their contents."""
    ways = [f"select the other fields: {as_options(known)}"] if known else []
    if len(set(column.size)) == 1:
        ways.append(f"describe their {column.size[0]:,} bytes: --field '{name}=DTYPE[SHAPE]'")
    return ", or ".join(ways) or "pack .npy files of one shape instead, because their sizes differ"


def check_fields(columns: Mapping[str, TarColumn], maps: Maps, fields: Sequence[Field]) -> None:
    """Raise CorruptArtifact (``fields-differ``) if the first sample's files do not match `fields`."""
    suffixes = suffixes_of(columns, fields)
    for field in fields:
        suffix = suffixes.get(field.name)
        if suffix is None:
            continue
        column, stored = columns[suffix], field_of(field.name, suffix, columns[suffix], maps)
        if _kind(suffix) in IMAGES and not field.is_image:
            stored = None  # the encoded bytes are read
        if stored is not None and (stored.dtype, stored.shape) != (field.dtype, field.shape):
            expected, found = f"{field.dtype} {field.shape}", f"{stored.dtype} {stored.shape}"
            hint = f"use {as_options([stored])}"
        elif stored is None and column.size[0] != field.sample_bytes:
            expected, found = f"{field.sample_bytes:,} bytes", f"{column.size[0]:,} bytes"
            hint = "give the dtype and shape of all bytes of a file"
        else:
            continue
        raise CorruptArtifact(
            f"{as_options([field])} does not match the first .{suffix} file",
            kind="fields-differ",
            path=column.path(maps, 0),
            expected=expected,
            found=found,
            hint=hint,
        )


def stored_name(name: str) -> str:
    """Return the name in lower case, in which webdataset reads it."""
    return name.lower()


def suffixes_of(columns: Iterable[str], fields: Sequence[Field] = ()) -> dict[str, str]:
    """Return the suffix of each field's files: `x.npy` of x, `train-x.npy` of train_x."""
    own = {suffix.removesuffix(".npy"): suffix for suffix in columns}
    names = names_within(own, fields, stored_name)
    return {field: own[name] for field, name in names.items() if name in own}


def field_of(name: str, suffix: str, column: TarColumn, maps: Maps) -> Field | None:
    """Return the field of this name that a column's first file describes; None if it describes none."""
    kind, path = _kind(suffix), column.path(maps, 0)
    if kind == "npy":
        header = read_plain_header(_start(maps, column, 0), f"the first .{suffix}", path)
        shape, dtype = header.shape, header.dtype
        if dtype.name not in DTYPES:
            raise unsupported_dtype(path, f"files .{suffix}", dtype)
        return Field(name, shape, dtype.name)
    if kind in NUMBERS:
        return Field(name, (), "int64")
    if kind in IMAGES:
        return Field(name, _images(suffix, column).shape(maps, 0), "uint8")
    return None


def lists_of(maps: Maps, schema: Schema, thorough: bool = False) -> Iterator[dict[str, Array]]:
    """Yield pieces of int64 arrays per field number: shard and offset of each value, size if encoded.

    Parameters
    ----------
    maps : Maps
        The archives.
    schema : Schema
        Samples and fields to locate.
    thorough : bool
        Read the header of each image; otherwise an image of another shape is refused when it is decoded.

    Raises
    ------
    CorruptArtifact
        The archives do not match `schema`.
    """
    samples = 0
    for count, columns in pieces_of(maps):
        yield _lists(maps, schema, columns, samples, thorough)
        samples += count
    if samples != schema.samples:
        raise corrupt(maps.files[0].parent, f"{schema.samples} samples", samples)


def _lists(
    maps: Maps, schema: Schema, columns: Mapping[str, TarColumn], first: int, thorough: bool
) -> dict[str, Array]:
    """Return a piece of the lists, of samples from number `first`."""
    folder, lists = maps.files[0].parent, dict[str, Array]()
    suffixes = suffixes_of(columns, schema.fields)
    for number, field in enumerate(schema.fields):
        suffix = suffixes.get(field.name)
        if suffix is None:
            raise corrupt(folder, f"files of field {field.name} in every sample", ", ".join(columns))
        column = columns[suffix]
        file, offset, size = column.arrays()
        if _encoded(suffix, field, folder):
            lists[f"size_{number}"] = size
            if thorough and _kind(suffix) in IMAGES:
                _images(suffix, column, first).check(maps, field)
        else:
            offset = offset + _before(maps, field, suffix, column, first)
        lists |= {f"file_{number}": file, f"offset_{number}": offset}
    return lists


def locations_of(maps: Maps, schema: Schema, lists: Mapping[str, Array]) -> FieldLocations:
    """Return the locations of the fields, from the arrays of `lists_of`."""
    placement: dict[str, Placement] = {}
    blocks = []
    for number, field in enumerate(schema.fields):
        file, offset, size = (lists.get(f"{part}_{number}") for part in ("file", "offset", "size"))
        if file is None or offset is None:
            raise corrupt(maps.files[0].parent, f"an index of the files of {field.name}", "none")
        if size is None:
            placement[field.name] = Listed(maps.files, file, offset)
        else:
            blocks.append(_blocks(maps.files, field, file, offset, size))
    return FieldLocations(placement, blocks)


def _kind(suffix: str) -> str:
    return suffix.rpartition(".")[2]


def _encoded(suffix: str, field: Field, folder: Path) -> bool:
    """Return True if files with this suffix are decoded for a field; CorruptArtifact if they hold another."""
    kind = _kind(suffix)
    if kind in NUMBERS and (field.dtype, field.shape) != ("int64", ()):
        raise corrupt(folder, f"{field.name} as {field.dtype} {field.shape}", "integers, int64")
    return kind in NUMBERS or (kind in IMAGES and field.is_image)


def _start(maps: Maps, column: TarColumn, row: int) -> bytes:
    return bytes(column.stored(maps, row, LONGEST))


def _images(suffix: str, column: TarColumn, first: int = 0) -> PackedImages:
    return PackedImages(f".{suffix}", *column.arrays(), first)


def _before(maps: Maps, field: Field, suffix: str, column: TarColumn, first: int) -> Index:
    """Return the bytes before each array in its file; CorruptArtifact if headers or sizes do not match."""
    file, _, size = column.arrays()
    header = np.zeros(len(file), np.int64)
    if _kind(suffix) == "npy":
        header[:] = _headers(maps, field, column, first)
    if (wrong := np.flatnonzero(size != header + field.sample_bytes)).size:
        row = int(wrong[0])
        raise CorruptArtifact(
            f"{field.name} of sample {first + row} has another size",
            kind="unequal-shapes",
            path=maps.files[file[row]],
            expected=f"{field.sample_bytes} bytes for {field.dtype} {field.shape}",
            found=f"{int(size[row] - header[row])} bytes",
            hint=FIXED,
        )
    return header


def _headers(maps: Maps, field: Field, column: TarColumn, first: int) -> Index:
    """Return the length of each sample's .npy header; parses only headers other than the usual one."""
    file, offset, _ = column.arrays()
    lengths, usual = np.zeros(len(file), np.int64), header_of(field)
    for number in np.unique(file).tolist():
        at = np.flatnonzero(file == number)
        fits = at[offset[at] + len(usual) <= len(maps[number])]
        for some, starts in runs(maps[number], offset[fits], len(usual)):
            same = (starts == np.frombuffer(usual, np.uint8)).all(1)
            lengths[fits[some]] = np.where(same, len(usual), 0)
    for row in np.flatnonzero(lengths == 0).tolist():
        path, what = column.path(maps, row), f"{field.name} of sample {first + row}"
        header = read_plain_header(_start(maps, column, row), what, path)
        lengths[row] = header.offset
        if (header.shape, header.dtype.name) != (field.shape, field.dtype):
            raise CorruptArtifact(
                f"{what} has another shape or dtype",
                kind="unequal-shapes",
                path=path,
                expected=f"{field.dtype} {field.shape}",
                found=f"{header.dtype} {header.shape}",
                hint=FIXED,
            )
    return lengths


def _blocks(files: Sequence[Path], field: Field, file: Index, offset: Index, size: Index) -> Blocks:
    """Return files that are decoded, images or integers as text, as one block each."""
    if field.is_image:
        return PackedImages(field.name, file, offset, size).blocks(files, field)

    def decode(number: int, stored: memoryview, out: Mapping[str, Array]) -> None:
        try:
            out[field.name][0] = int(bytes(stored))
        except (ValueError, OverflowError) as error:
            what = f"{field.name} of sample {number} as an integer"
            raise corrupt(files[int(file[number])], what, bytes(stored[:20]), kind="not-a-number") from error

    return Blocks((field.name,), tuple(files), np.arange(len(file)), file, offset, size, decode)
