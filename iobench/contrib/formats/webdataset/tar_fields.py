"""Fields of files in tar archives: NumPy arrays, images, integers as text, or raw bytes of a named field."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.contrib.formats.shared.external import as_options
from iobench.contrib.formats.shared.packed_images import PackedImages
from iobench.contrib.formats.shared.placed_reader import EncodedSpans, FieldLocations, Maps
from iobench.contrib.formats.shared.scaled_images import ScaledDecoder, ScaledImages
from iobench.contrib.formats.webdataset.tar_arrays import bytes_before, fits, holds, start_of
from iobench.contrib.formats.webdataset.tar_columns import TarColumn, pieces_of
from iobench.formats import (
    DTYPES,
    VARIES,
    Array,
    Blocks,
    Field,
    Listed,
    ListedSpans,
    Placement,
    Schema,
    names_within,
    own_extents,
    unsupported_dtype,
)
from iobench.formats.npy_header import read_plain_header

NUMBERS = {"cls", "cls2", "class", "count", "index", "inx", "id"}  # webdataset decodes them as int
IMAGES = {"png", "jpg", "jpeg"}
OTHER_IMAGES = {"ppm", "pgm", "pbm", "webp", "bmp", "tif", "tiff"}


def fields_of(columns: Mapping[str, TarColumn], maps: Maps, images: ScaledImages) -> tuple[Field, ...]:
    """Return the field of each column; `images` says how images are decoded.

    CorruptArtifact of kind ``fields-needed``, or ``unsupported-image`` for image types that are not decoded;
    the hint lists the options that select the other fields or describe these.
    """
    names = {suffix: name for name, suffix in suffixes_of(columns).items()}
    inferred = {
        suffix: field_of(names[suffix], suffix, column, maps, images) for suffix, column in columns.items()
    }
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
    if not column.varies:
        ways.append(f"describe their {column.size[0]:,} bytes: --field '{name}=DTYPE[SHAPE]'")
    else:
        ways.append(f"read their bytes, not decoded: --field '{name}=uint8[*]'")
    return ", or ".join(ways)


def check_fields(
    columns: Mapping[str, TarColumn], maps: Maps, fields: Sequence[Field], images: ScaledImages
) -> None:
    """Raise CorruptArtifact (``fields-differ``) if the first sample's files do not match `fields`."""
    suffixes = suffixes_of(columns, fields)
    for field in fields:
        suffix = suffixes.get(field.name)
        if suffix is None:
            continue
        column, stored = columns[suffix], field_of(field.name, suffix, columns[suffix], maps, images)
        if _kind(suffix) in IMAGES and not _is_decoded(field, images):
            stored = None  # the encoded bytes are read
        if stored == field:
            continue
        if stored is not None and not holds(field, stored.dtype, stored.shape):
            expected, found, hint = field.typed, stored.typed, f"use {as_options([stored])}"
        elif stored is None and not fits(field, column.size[0]):
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


def field_of(name: str, suffix: str, column: TarColumn, maps: Maps, images: ScaledImages) -> Field | None:
    """Return the field of this name that a column's first file describes; None if it describes none."""
    kind, path = _kind(suffix), column.path(maps, 0)
    if kind == "npy":
        header = read_plain_header(start_of(maps, column, 0), f"the first .{suffix}", path)
        shape, dtype = header.shape, header.dtype
        if dtype.name not in DTYPES:
            raise unsupported_dtype(path, f"files .{suffix}", dtype)
        return Field(name, (VARIES, *shape[1:]) if shape and column.varies else shape, dtype.name)
    if kind in NUMBERS:
        return Field(name, (), "int64")
    if kind in IMAGES:
        return Field(name, images.scaled_shape or _images(suffix, column).shape(maps, 0), "uint8")
    return None


def lists_of(
    maps: Maps, samples: int, fields: Sequence[Field], images: ScaledImages, thorough: bool = False
) -> Iterator[dict[str, Array]]:
    """Yield pieces of int64 arrays per field number: shard and offset of each value, size if sizes differ.

    With `thorough`, read the header of each image, and yield the lengths of those of their own sizes, too;
    otherwise one of another shape is refused when it is decoded. CorruptArtifact if the archives do not hold
    these samples and fields.
    """
    first = 0
    for count, columns in pieces_of(maps):
        yield _lists(maps, fields, columns, first, images, thorough)
        first += count
    if first != samples:
        raise corrupt(maps.files[0].parent, f"{samples} samples", first)


def _lists(
    maps: Maps,
    fields: Sequence[Field],
    columns: Mapping[str, TarColumn],
    first: int,
    images: ScaledImages,
    thorough: bool,
) -> dict[str, Array]:
    """Return a piece of the lists, of samples from number `first`."""
    folder, lists = maps.files[0].parent, dict[str, Array]()
    suffixes = suffixes_of(columns, fields)
    of_images = own_extents(fields).values()
    for number, field in enumerate(fields):
        suffix = suffixes.get(field.name)
        if suffix is None and field.name in of_images:
            continue
        if suffix is None:
            raise corrupt(folder, f"files of field {field.name} in every sample", ", ".join(columns))
        column = columns[suffix]
        file, offset, size = column.arrays()
        if _encoded(suffix, field, folder, images):
            lists[f"size_{number}"] = size
            if thorough and _kind(suffix) in IMAGES and not images.shape:
                _images(suffix, column, first).check(maps, field, _as_bytes(fields))
            if thorough and field.is_ragged:
                lists[f"length_{number}"] = _images(suffix, column, first).lengths(maps, field)
        else:
            before = bytes_before(maps, field, column, first, has_header=_kind(suffix) == "npy")
            offset = offset + before
            if field.is_ragged:
                lists[f"size_{number}"] = size - before
        lists |= {f"file_{number}": file, f"offset_{number}": offset}
    return lists


def locations_of(
    maps: Maps, schema: Schema, lists: Mapping[str, Array], images: ScaledImages, decode: ScaledDecoder | None
) -> FieldLocations:
    """Return the locations of the fields, from the arrays of `lists_of`; `decode` is that of `images`."""
    placement: dict[str, Placement] = {}
    blocks: list[Blocks] = []
    spans: dict[str, EncodedSpans] = {}
    of_sizes: dict[str, Blocks] = {}
    for number, field in enumerate(schema.fields):
        if field.name in of_sizes:
            blocks.append(of_sizes[field.name])
            continue
        file, offset, size = (lists.get(f"{part}_{number}") for part in ("file", "offset", "size"))
        if file is None or offset is None:
            raise corrupt(maps.files[0].parent, f"an index of the files of {field.name}", "none")
        packed = None if size is None else PackedImages(field.name, file, offset, size)
        if packed is None:
            placement[field.name] = Listed(maps.files, file, offset)
        elif field.extents and decode:
            spans[field.name] = packed.spans(maps.files, field, decode)
            of_sizes[field.extents.name] = packed.extents(maps.files, field.extents)
        elif field.is_ragged:
            placement[field.name] = ListedSpans(maps.files, file, offset, packed.size)
        elif _is_decoded(field, images):
            blocks.append(packed.blocks(maps.files, field, decode))
        else:
            blocks.append(_integers(maps.files, field, packed))
    return FieldLocations(placement, blocks, spans)


def _kind(suffix: str) -> str:
    return suffix.rpartition(".")[2]


def _encoded(suffix: str, field: Field, folder: Path, images: ScaledImages) -> bool:
    """Return True if files with this suffix are decoded for a field; CorruptArtifact if they hold another."""
    kind = _kind(suffix)
    if kind in NUMBERS and (field.dtype, field.shape) != ("int64", ()):
        raise corrupt(folder, f"{field.name} as {field.dtype} {field.shape}", "integers, int64")
    return kind in NUMBERS or (kind in IMAGES and _is_decoded(field, images))


def _is_decoded(field: Field, images: ScaledImages) -> bool:
    """Return whether a field holds pixels, not the bytes of image files."""
    return field.dtype == "uint8" and (field.shape == images.scaled_shape or field.is_image)


def _images(suffix: str, column: TarColumn, first: int = 0) -> PackedImages:
    return PackedImages(f".{suffix}", *column.arrays(), first)


def _as_bytes(fields: Sequence[Field]) -> str:
    """Return the advice to read the files of images of different sizes without decoding."""
    stored = [Field(one.name, (VARIES,), "uint8") if one.is_image else one for one in fields]
    return (
        "scale and crop them: --format webdataset:shape=3x224x224; keep their sizes: --format "
        f"'webdataset:shape=*x*x3'; or read the bytes of the files, not decoded: {as_options(stored)}"
    )


def _integers(files: Sequence[Path], field: Field, texts: PackedImages) -> Blocks:
    """Return integers as text, one block each."""

    def decode(number: int, stored: memoryview, out: Mapping[str, Array]) -> None:
        try:
            out[field.name][0] = int(bytes(stored))
        except (ValueError, OverflowError) as error:
            what = f"{field.name} of sample {number} as an integer"
            path = files[int(texts.file[number])]
            raise corrupt(path, what, bytes(stored[:20]), kind="not-a-number") from error

    rows = np.arange(len(texts.file))
    return Blocks((field.name,), tuple(files), rows, texts.file, texts.offset, texts.size, decode)
