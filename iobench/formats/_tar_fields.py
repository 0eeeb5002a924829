"""What files in tar archives hold: arrays of NumPy, images, numbers as text, or raw bytes of a field told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from iobench.base.errors import (
    CorruptArtifact,
    corrupt,
)
from iobench.formats._external import FIXED, as_options
from iobench.formats._npy import LONGEST, header_of, read_header
from iobench.formats._packed_images import PackedImages
from iobench.formats._placed_reader import FieldLocations, Maps, runs
from iobench.formats._placement import Blocks, Index, Listed, Placement
from iobench.formats._schema import DTYPES, Array, Field, Schema, field_name
from iobench.formats._tar_columns import TarColumn, columns_of

NUMBERS = {"cls", "cls2", "class", "count", "index", "inx", "id"}  # webdataset decodes them as int
IMAGES = {"png", "jpg", "jpeg"}
OTHER_IMAGES = {"ppm", "pgm", "pbm", "webp", "bmp", "tif", "tiff"}


def fields_of(columns: Mapping[str, TarColumn], maps: Maps) -> tuple[Field, ...]:
    """The field of each column; CorruptArtifact says what can be taken where the files of one say nothing."""
    found = {suffix: field_of(suffix, column, maps) for suffix, column in columns.items()}
    known = [field for field in found.values() if field is not None]
    for suffix, column in columns.items():
        if found[suffix] is None:
            what = "images of a kind that is not decoded here; convert them to PNG or JPEG, or"
            if _kind(suffix) not in OTHER_IMAGES:
                what = "nothing that says its dtype and shape;"
            how = _instead(suffix, column, known)
            raise CorruptArtifact(f"{column.path(maps, 0)}: files .{suffix} hold {what} {how}")
    return tuple(known)


def _instead(suffix: str, column: TarColumn, known: Sequence[Field]) -> str:
    """What to type where the files of a column do not say what they hold."""
    ways = [f"take the others: {as_options(known)}"] if known else []
    if len(set(column.size)) == 1:
        ways.append(
            f"tell what is in their {column.size[0]:,} bytes: --field '{_name_of(suffix)}=DTYPE[SHAPE]'"
        )
    return ", or ".join(ways) or "pack .npy files of one shape in their place, as they are not of one size"


def check_fields(columns: Mapping[str, TarColumn], maps: Maps, fields: Sequence[Field]) -> None:
    """CorruptArtifact where the files of the first sample are other than the fields that were told."""
    for field in fields:
        suffix = suffix_of(columns, field)
        if suffix is None:
            continue
        column, found = columns[suffix], field_of(suffix, columns[suffix], maps)
        if _kind(suffix) in IMAGES and not field.is_image:
            found = None  # as the bytes that they are
        if found is not None and (found.dtype, found.shape) != (field.dtype, field.shape):
            right = as_options([replace(found, name=field.name)])
            said = f"is {found.dtype} {found.shape}: write {right}"
        elif found is None and column.size[0] != field.sample_bytes:
            said = f"has {column.size[0]:,} bytes, and that makes {field.sample_bytes:,}"
        else:
            continue
        differs = f"{as_options([field])} differs from the data: the first .{suffix} {said}"
        raise CorruptArtifact(f"{column.path(maps, 0)}: {differs}")


def suffix_of(columns: Mapping[str, TarColumn], field: Field) -> str | None:
    """The suffix of the files that hold a field; None where there are none."""
    return next((s for s in (f"{field.name.lower()}.npy", *columns) if s in columns and _is(s, field)), None)


def field_of(suffix: str, column: TarColumn, maps: Maps) -> Field | None:
    """What a column's first file says of itself; None where it says nothing."""
    kind, path = _kind(suffix), column.path(maps, 0)
    if kind == "npy":
        _, shape, dtype = read_header(_start(maps, column, 0), f"the first .{suffix}", path)
        if dtype.name not in DTYPES:
            raise CorruptArtifact(
                f"{path}: .{suffix} is of dtype {dtype}, which is none of {', '.join(DTYPES)}"
            )
        return Field(_name_of(suffix), shape, dtype.name)
    if kind in NUMBERS:
        return Field(_name_of(suffix), (), "int64")
    if kind in IMAGES:
        return Field(_name_of(suffix), _images(suffix, column).shape(maps, 0), "uint8")
    return None


def lists_of(maps: Maps, schema: Schema, thorough: bool = False) -> dict[str, Array]:
    """Per field, by its number: shard and offset of each sample's values, and the size of what is encoded.

    CorruptArtifact where the archives do not hold this schema. `thorough`: look at the size of each image,
    too, which else is seen when it is decoded.
    """
    samples, columns = columns_of(maps)
    folder = maps.files[0].parent
    if samples != schema.samples:
        raise corrupt(folder, f"{schema.samples} samples", samples)
    lists: dict[str, Array] = {}
    for number, field in enumerate(schema.fields):
        suffix = suffix_of(columns, field)
        if suffix is None:
            raise corrupt(folder, f"files of field {field.name} in every sample", ", ".join(columns))
        column = columns[suffix]
        file, offset, size = column.arrays()
        if _encoded(suffix, field, folder):
            lists[f"size_{number}"] = size
            if thorough and _kind(suffix) in IMAGES:
                _images(suffix, column).check(maps, field)
        else:
            offset = offset + _before(maps, field, suffix, column)
        lists |= {f"file_{number}": file, f"offset_{number}": offset}
    return lists


def locations_of(maps: Maps, schema: Schema, lists: Mapping[str, Array]) -> FieldLocations:
    """Where the fields lie, by what `lists_of` found."""
    placement: dict[str, Placement] = {}
    blocks = []
    for number, field in enumerate(schema.fields):
        file, offset, size = (lists.get(f"{what}_{number}") for what in ("file", "offset", "size"))
        if file is None or offset is None:
            raise corrupt(maps.files[0].parent, f"a list of the files of {field.name}", "none")
        if size is None:
            placement[field.name] = Listed(maps.files, file, offset)
        else:
            blocks.append(_blocks(maps.files, field, file, offset, size))
    return FieldLocations(placement, blocks)


def _kind(suffix: str) -> str:
    return suffix.rpartition(".")[2]


def _name_of(suffix: str) -> str:
    """The field that files with this suffix hold: `x.npy` is x, `train-x.npy` is train_x."""
    return field_name(suffix.removesuffix(".npy"))


def _is(suffix: str, field: Field) -> bool:
    return suffix == f"{field.name.lower()}.npy" or _name_of(suffix) == field.name


def _encoded(suffix: str, field: Field, folder: Path) -> bool:
    """Whether files with this suffix are decoded for a field; CorruptArtifact where they hold another one."""
    kind = _kind(suffix)
    if kind in NUMBERS and (field.dtype, field.shape) != ("int64", ()):
        raise corrupt(folder, f"{field.name} as {field.dtype} {field.shape}", "whole numbers, int64")
    return kind in NUMBERS or (kind in IMAGES and field.is_image)


def _start(maps: Maps, column: TarColumn, row: int) -> bytes:
    return bytes(column.stored(maps, row, LONGEST))


def _images(suffix: str, column: TarColumn) -> PackedImages:
    return PackedImages(f".{suffix}", *column.arrays())


def _before(maps: Maps, field: Field, suffix: str, column: TarColumn) -> Index:
    """The bytes before each array in its file, after headers and sizes were compared with the field."""
    file, _, size = column.arrays()
    header = np.zeros(len(file), np.int64)
    if _kind(suffix) == "npy":
        header[:] = _headers(maps, field, column)
    if (wrong := np.flatnonzero(size != header + field.sample_bytes)).size:
        found = int(size[wrong[0]] - header[wrong[0]])
        raise CorruptArtifact(
            f"{maps.files[file[wrong[0]]]}: field {field.name} has {found} bytes in sample {wrong[0]}, not "
            f"{field.sample_bytes} as {field.dtype} {field.shape}; {FIXED}"
        )
    return header


def _headers(maps: Maps, field: Field, column: TarColumn) -> Index:
    """How long the .npy header of each row is; each different one is read once."""
    file, offset, _ = column.arrays()
    lengths, first = np.zeros(len(file), np.int64), header_of(field)
    for number in np.unique(file).tolist():
        at = np.flatnonzero(file == number)
        fits = at[offset[at] + len(first) <= len(maps[number])]
        usual = np.frombuffer(first, np.uint8)
        for some, found in runs(maps[number], offset[fits], len(first)):
            lengths[fits[some]] = np.where((found == usual).all(1), len(first), 0)
    for row in np.flatnonzero(lengths == 0).tolist():
        path, what = column.path(maps, row), f"{field.name} of sample {row}"
        lengths[row], shape, dtype = read_header(_start(maps, column, row), what, path)
        if (shape, dtype.name) != (field.shape, field.dtype):
            raise corrupt(path, f"{what} as {field.dtype} {field.shape}", f"{dtype} {shape}")
    return lengths


def _blocks(files: Sequence[Path], field: Field, file: Index, offset: Index, size: Index) -> Blocks:
    """Files that are decoded, one to a block: images, or whole numbers as text."""
    if field.is_image:
        return PackedImages(field.name, file, offset, size).blocks(files, field)

    def decode(number: int, stored: memoryview, out: Mapping[str, Array]) -> None:
        try:
            out[field.name][0] = int(bytes(stored))
        except (ValueError, OverflowError) as error:
            what = f"{field.name} of sample {number} as a whole number"
            raise corrupt(files[int(file[number])], what, bytes(stored[:20])) from error

    return Blocks((field.name,), tuple(files), np.arange(len(file)), file, offset, size, decode)
