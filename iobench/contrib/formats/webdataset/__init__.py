"""Format webdataset: tar shards; a sample's files are consecutive and have one name up to the first dot.

iobench writes `000000.tar`, …; field x of sample 12 is the file `000000012.x.npy` in one of them. Existing
data are one archive, or a folder of them, whose samples all have the same files: `.npy` arrays, which may
differ along the first axis, `.png`, `.jpg` and `.jpeg` images, which are decoded when they are read, and, if
they differ in size, scaled to one `shape` or kept as they are by `*x*x3`, `.cls` and other integers as text,
and files of raw bytes whose fields the caller names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.base.files import regular
from iobench.base.finding import Finding
from iobench.base.options import option
from iobench.base.text import enumerated
from iobench.contrib.formats.shared.external import as_options, check_lengths, first_true, unequal_samples
from iobench.contrib.formats.shared.mapped_files import Maps
from iobench.contrib.formats.shared.record_writer import ShardWriter, refuse_large, sample_bytes, shards_bound
from iobench.contrib.formats.shared.records import (
    Column,
    Decoder,
    ImageRecords,
    RecordFormat,
    Records,
    RecordSource,
    extents,
    pixels,
    pixels_of_others,
)
from iobench.contrib.formats.shared.scaled_images import ScaledImages
from iobench.contrib.formats.webdataset.tar import (
    BLOCK,
    DIGIT,
    END,
    MOST_BYTES,
    TarHeaders,
    TarPiece,
    first_suffixes,
    is_tar,
    pieces_of,
    whole,
)
from iobench.formats import (
    DTYPES,
    VARIES,
    Array,
    Batch,
    Field,
    Index,
    Schema,
    fields_by_name,
    names_within,
    own_extents,
    stored_names,
    unsupported_dtype,
    with_extents,
)
from iobench.formats.folders import files_in, parts_not_read
from iobench.formats.npy import LONGEST, NpyHeader, header_of, read_plain_header

NUMBERS = {"cls", "cls2", "class", "count", "index", "inx", "id"}  # webdataset decodes them as int
IMAGES = {"png", "jpg", "jpeg"}
OTHER_IMAGES = {"ppm", "pgm", "pbm", "webp", "bmp", "tif", "tiff"}
LOOKS = 8  # images by whose headers a hint says whether they differ in size
NPY_HEAD = 10  # bytes of a .npy file before its header: magic, version, length
DIGITS = 9  # of a sample's number, as in WebDataset's own examples
COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")


@dataclass(frozen=True)
class WebDataset(ScaledImages, RecordFormat):
    """Tar shards of .npy files, one file per field and sample."""

    name: ClassVar[str] = "webdataset"
    summary: ClassVar[str] = "tar shards, one .npy file per field and sample"
    library: ClassVar[str] = "numpy"
    holds_ragged: ClassVar[bool] = True
    keeps_sizes: ClassVar[bool] = True

    shard_bytes: int = option(64 << 20, "maximum bytes per shard", minimum=1, unit="bytes")

    def stored_name(self, name: str) -> str:
        """Return the name in lower case, in which webdataset reads every name."""
        return name.lower()

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write the shards."""
        path.mkdir()
        _TarWriter(path, schema, self.shard_bytes).write(batches)

    def source(self, path: Path, schema: Schema | None = None) -> TarShards:
        """Open the shards."""
        return TarShards(Maps(_shards(path)), self, () if schema is None else schema.fields)

    def notes(self, path: Path, schema: Schema) -> list[Finding]:
        """Return the files that are not read, and how far other decoders' pixels are from Pillow's."""
        with closing(Maps(_shards(path))) as maps:
            own, folders = first_suffixes(maps)
        suffixes = suffixes_of(own, schema.fields)
        left = set(suffixes.values()) - {suffixes.get(field.name) for field in schema.fields}
        notes = parts_not_read("file", {f".{suffix}" for suffix in left})
        if len(folders) > 1:
            message = f"the folders in the archive are not read as labels: {enumerated(sorted(folders))}"
            hint = "to read them so, unpack it and name the folder"
            notes.append(Finding("folders-in-archive", message, hint, {"folders": len(folders)}))
        return notes + pixels_of_others(self, path, schema)

    def size_bound(self, schema: Schema) -> int:
        """Return the bytes of the records plus two empty blocks per shard."""
        writer = _TarWriter(Path(), schema, self.shard_bytes)
        each = len(writer.record) - schema.sample_bytes
        if schema.ragged:
            both = zip(schema.fields, writer.headers, strict=True)
            each = sum(len(header.blocks) + len(header_of(one, 0)) + 2 * BLOCK for one, (_, header) in both)
        return shards_bound(schema, each, self.shard_bytes, len(END))

    def sniff(self, path: Path) -> bool:
        """Return True for an archive, or a folder with archives, named .tar."""
        try:
            first = _shards(path)[0]
            with open(regular(first), "rb") as file:
                return first.suffix == ".tar" and is_tar(file.read(BLOCK))
        except (CorruptArtifact, OSError):
            return False

    def files(self, path: Path) -> Sequence[Path]:
        """Return the archives in a folder."""
        return _shards(path)

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema of the files that all samples have, or that of `fields`."""
        with closing(Maps(_shards(path))) as maps:
            piece = whole(maps)
            _check_complete(piece, fields, self)
            fields_by_name(path, (suffix.removesuffix(".npy") for suffix in piece.columns))
            _check_fields(piece, fields, self)
            known = tuple(fields) or with_extents(_fields_of(piece, self))
        return super().infer_schema(path, known)


def _shards(path: Path) -> list[Path]:
    """Return a single archive, or the archives of a folder in the order of their names."""
    if path.is_dir():
        shards = files_in(path, ".tar")
        if not shards:
            if packed := files_in(path, COMPRESSED):
                problem = "the archive is compressed"
                raise CorruptArtifact(problem, "compressed", packed[0], hint="decompress it to a plain .tar")
            raise corrupt(path, "a folder of .tar shards", "none")
        return shards
    if not path.is_file():
        raise corrupt(path, "tar shards", "no such folder")
    return [path]


class TarShards(RecordSource):
    """Samples of tar shards; images are decoded as the format says, and `fields` are those that are read."""

    def __init__(self, maps: Maps, images: ScaledImages, fields: Sequence[Field] = ()) -> None:
        self.maps, self._images = maps, images
        self._extents = set(own_extents(fields).values())
        self._decode = images.decode()
        self.epoch = self._decode.epoch if self._decode else None

    def scan(self) -> Iterator[Records]:
        """Yield the samples; CorruptArtifact as from `pieces_of`."""
        return pieces_of(self.maps)

    def columns(
        self, records: Records, fields: Sequence[Field], thorough: bool = False
    ) -> Mapping[str, Column]:
        """Return the values of the fields, or where these are decoded, their files.

        If `thorough`, the headers of images are read; otherwise one of another shape is refused when it is
        decoded.
        """
        assert isinstance(records, TarPiece)
        suffixes, columns = suffixes_of(records.columns, fields), dict[str, Column]()
        images = {own: name for name, own in own_extents(fields).items()}
        for field in fields:
            suffix = suffixes.get(field.name) or suffixes.get(images.get(field.name, ""))
            if suffix is None:
                path, found = self.maps.files[0].parent, ", ".join(records.columns)
                raise corrupt(path, f"files of field {field.name} in every sample", found)
            offset, size = records.columns[suffix].offset, records.columns[suffix].size
            if field.name not in suffixes:  # the extents of the images
                columns[field.name] = Column(offset, size, True)
            elif self._encoded(suffix, field):
                total, kind = 0, _kind(suffix)
                files = ImageRecords(self.maps, records.file, offset, size, records.first, f".{suffix}")
                if thorough and kind in IMAGES and not self._images.shape:
                    files.check(field, _as_bytes(fields))
                if thorough and field.is_ragged:
                    total = int(files.lengths(field).sum())
                columns[field.name] = Column(offset, size, True, total)
            else:
                before = np.zeros(len(size), np.int64)
                if _kind(suffix) == "npy":
                    before = _headers_in(records, field, suffix)
                check_lengths(field, size - before, field.sample_bytes, "bytes", records.path, records.first)
                columns[field.name] = Column.of(field, offset + before, size - before)
        return columns

    def decoder(self, field: Field) -> Decoder:
        """Return the decoder of images, of their extents, or of integers as text."""
        if field.name in self._extents:
            return extents()
        if field.is_ragged or _is_decoded(field, self._images):
            return pixels(self._decode)
        return Decoder(_integer)

    def _encoded(self, suffix: str, field: Field) -> bool:
        """Return True if files are decoded for a field; CorruptArtifact if they hold another."""
        kind = _kind(suffix)
        if kind in NUMBERS and (field.dtype, field.shape) != ("int64", ()):
            path = self.maps.files[0].parent
            raise corrupt(path, f"{field.name} as {field.dtype} {field.shape}", "integers, int64")
        return kind in NUMBERS or (kind in IMAGES and _is_decoded(field, self._images))


def _integer(path: Path, stored: memoryview) -> Array:
    try:
        return np.array(int(bytes(stored)), np.int64)
    except (ValueError, OverflowError) as error:
        raise corrupt(path, "an integer", bytes(stored[:20]), kind="not-a-number") from error


def _headers_in(piece: TarPiece, field: Field, suffix: str) -> Index:
    """Return the length of each sample's .npy header; parses each one that differs from those before it."""
    size, known = piece.columns[suffix].size, dict[bytes, NpyHeader]()
    lengths, held = np.empty(len(size), np.int64), np.empty(len(size), np.int64)
    for row in range(len(size)):
        start = piece.start(suffix, row, LONGEST)
        text = bytes(start[: NPY_HEAD + int.from_bytes(start[NPY_HEAD - 2 : NPY_HEAD], "little")])
        if (header := known.get(text)) is None:
            path, what = piece.path(row), f"{field.name} of sample {piece.first + row}"
            header = known[text] = read_plain_header(bytes(start), what, path)
            if not _holds(field, header.dtype.name, header.shape):
                found = f"{header.dtype} {header.shape}"
                raise unequal_samples(path, f"{what} has another shape or dtype", field.typed, found)
        lengths[row], held[row] = header.offset, header.data_bytes
    if (odd := first_true(held != size - lengths)) is not None:
        expected = f"{held[odd]:,} bytes of {field.name} of sample {piece.first + odd}"
        raise corrupt(piece.path(odd), expected, f"{size[odd] - lengths[odd]:,}")
    return lengths


def _holds(field: Field, dtype: str, shape: tuple[int, ...]) -> bool:
    """Return whether an array of this dtype and shape is a sample of a field."""
    same = shape[1:] == field.inner and len(shape) > 0 if field.is_ragged else shape == field.shape
    return same and dtype == field.dtype


def _fields_of(piece: TarPiece, images: ScaledImages) -> tuple[Field, ...]:
    """Return the field of each column; `images` says how images are decoded.

    CorruptArtifact of kind ``fields-needed``, or ``unsupported-image`` for image types that are not decoded;
    the hint lists the options that select the other fields or describe these.
    """
    known = _described(piece, images)
    for name, suffix in suffixes_of(piece.columns).items():
        if suffix in known:
            continue
        column, selected = piece.columns[suffix], _selecting(piece, known, images)
        ways = [f"select the other fields: {selected}"] if selected else []
        if column.varies:
            ways.append(f"read their bytes, not decoded: --field '{name}=uint8[*]'")
        else:
            ways.append(f"describe their {column.size[0]:,} bytes: --field '{name}=DTYPE[SHAPE]'")
        problem, kind = f"files .{suffix} do not describe dtype and shape", "fields-needed"
        if _kind(suffix) in OTHER_IMAGES:
            problem, kind = f"images .{suffix} are not supported", "unsupported-image"
            ways.insert(0, "convert them to PNG or JPEG")
        raise CorruptArtifact(problem, kind, piece.path(0), hint=", or ".join(ways))
    return tuple(known.values())


def _described(piece: TarPiece, images: ScaledImages) -> dict[str, Field]:
    """Return the field of each suffix whose files describe themselves."""
    every = {own: _field_of(name, own, piece, images) for name, own in suffixes_of(piece.columns).items()}
    return {suffix: field for suffix, field in every.items() if field is not None}


def _check_complete(piece: TarPiece, fields: Sequence[Field], images: ScaledImages) -> None:
    """Raise CorruptArtifact (``missing-files``) if some samples lack files that others have.

    Those are allowed whose fields are not among `fields`, if the caller names some.
    """
    suffixes = suffixes_of([*piece.columns, *piece.lacking], fields)
    asked = {suffixes.get(field.name) for field in fields}
    for suffix, (path, key) in piece.lacking.items():
        if fields and suffix not in asked:
            continue
        selected = _selecting(piece, {} if fields else _described(piece, images), images)
        hint = "give every sample the same files" + f", or leave .{suffix} out: {selected}" * bool(selected)
        problem = f"sample {key} has no .{suffix}, which other samples have"
        raise CorruptArtifact(problem, "missing-files", path, hint=hint)


def _selecting(piece: TarPiece, known: Mapping[str, Field], images: ScaledImages) -> str:
    """Return the options that select fields, by suffix; images that differ in size at first are scaled."""
    chosen = dict(known)
    for suffix, field in known.items():
        if _kind(suffix) in IMAGES and not images.scaled_shape:
            files = _image_files(piece, suffix)
            if len({files.shape(row) for row in range(min(LOOKS, len(piece.columns[suffix].size)))}) > 1:
                chosen[suffix] = Field(field.name, (3, 224, 224), "uint8")
    scaled = "--format webdataset:shape=3x224x224 " if chosen != known else ""
    return scaled + as_options([*chosen.values()]) if chosen else ""


def _image_files(piece: TarPiece, suffix: str) -> ImageRecords:
    column = piece.columns[suffix]
    return ImageRecords(piece.maps, piece.file, column.offset, column.size, what=f".{suffix}")


def _check_fields(piece: TarPiece, fields: Sequence[Field], images: ScaledImages) -> None:
    """Raise CorruptArtifact (``fields-differ``) if the first sample's files do not match `fields`."""
    suffixes = suffixes_of(piece.columns, fields)
    for field in fields:
        suffix = suffixes.get(field.name)
        if suffix is None:
            continue
        size, stored = int(piece.columns[suffix].size[0]), _field_of(field.name, suffix, piece, images)
        if _kind(suffix) in IMAGES and not _is_decoded(field, images):
            stored = None  # the encoded bytes are read
        if stored is not None:
            same = stored == field or _holds(field, stored.dtype, stored.shape)
            expected, found, hint = field.typed, stored.typed, f"use {as_options([stored])}"
        else:
            same = size % field.sample_bytes == 0 if field.is_ragged else size == field.sample_bytes
            expected, found = f"{field.sample_bytes:,} bytes", f"{size:,} bytes"
            hint = "give the dtype and shape of all bytes of a file"
        if same:
            continue
        problem = f"{as_options([field])} does not match the first .{suffix} file"
        raise CorruptArtifact(
            problem, "fields-differ", piece.path(0), expected=expected, found=found, hint=hint
        )


def suffixes_of(columns: Iterable[str], fields: Sequence[Field] = ()) -> dict[str, str]:
    """Return the suffix of each field's files: `x.npy` of x, `train-x.npy` of train_x."""
    own = {suffix.removesuffix(".npy"): suffix for suffix in columns}
    names = names_within(own, fields, str.lower)
    return {field: own[name] for field, name in names.items() if name in own}


def _field_of(name: str, suffix: str, piece: TarPiece, images: ScaledImages) -> Field | None:
    """Return the field of this name that a column's first file describes; None if it describes none."""
    kind, path, column = _kind(suffix), piece.path(0), piece.columns[suffix]
    if kind == "npy":
        start = bytes(piece.start(suffix, 0, LONGEST))
        header = read_plain_header(start, f"the first .{suffix}", path)
        shape, dtype = header.shape, header.dtype
        if dtype.name not in DTYPES:
            raise unsupported_dtype(path, f"files .{suffix}", dtype)
        inner = (VARIES, *shape[1:]) if shape and column.varies else shape
        if 0 in inner:
            raise corrupt(path, f"elements in the first .{suffix}", f"shape {shape}", kind="empty")
        return Field(name, inner, dtype.name)
    if kind in NUMBERS:
        return Field(name, (), "int64")
    if kind in IMAGES:
        return Field(name, images.scaled_shape or _image_files(piece, suffix).shape(0), "uint8")
    return None


def _kind(suffix: str) -> str:
    return suffix.rpartition(".")[2]


def _is_decoded(field: Field, images: ScaledImages) -> bool:
    """Return whether a field holds pixels, not the bytes of image files."""
    return field.dtype == "uint8" and (field.shape == images.scaled_shape or field.is_image)


def _as_bytes(fields: Sequence[Field]) -> str:
    """Return the advice to read the files of images of different sizes without decoding."""
    stored = [Field(one.name, (VARIES,), "uint8") if one.is_image else one for one in fields]
    return (
        "scale and crop them: --format webdataset:shape=3x224x224; keep their sizes: --format "
        f"'webdataset:shape=*x*x3'; or read the bytes of the files, not decoded: {as_options(stored)}"
    )


class _TarWriter(ShardWriter):
    """Writer of a file per field: tar and .npy header, the array, zeros up to a whole block."""

    def __init__(self, path: Path, schema: Schema, shard_bytes: int) -> None:
        self._path, at = path, 0
        self.headers: list[tuple[int, TarHeaders]] = []  # of each field, with its place in a record
        parts: list[bytes | Field] = []
        digits = DIGIT.decode() * max(DIGITS, len(str(schema.samples - 1)))
        names = stored_names(schema.fields, str.lower)
        for field in schema.fields:
            begin = b"" if schema.ragged else header_of(field)
            size = 0 if schema.ragged else len(begin) + field.sample_bytes
            header = TarHeaders(f"{digits}.{names[field.name]}.npy", size)
            self.headers.append((at, header))
            parts += [header.blocks, begin, field, bytes(-size % BLOCK)]
            at += len(header.blocks) + size + -size % BLOCK
        super().__init__(schema, parts, shard_bytes)

    def path_of(self, number: int) -> Path:
        return self._path / f"{number:06d}.tar"

    def stored(self, table: Array, first: int) -> bytes | memoryview:
        for begin, header in self.headers:
            header.number(table, begin, np.arange(first, first + len(table)))
        return super().stored(table, first)

    def end(self) -> bytes:
        return END

    def records(self, batches: Iterable[Batch]) -> Iterator[bytes]:
        first, fields = 0, self.schema.fields
        for batch in batches:
            both = zip(fields, self.headers, strict=True)
            columns = [_files(batch, first, field, header) for field, (_, header) in both]
            for files in zip(*columns, strict=True):
                yield b"".join(files)
                first += 1


def _files(batch: Batch, first: int, field: Field, header: TarHeaders) -> Iterator[bytes]:
    """Yield the file of each sample of a batch, of which the first has this number."""
    memory, edges = sample_bytes(batch, field)
    begins = [_npy_header(field, size // field.sample_bytes) for size in np.diff(edges).tolist()]
    sizes = np.diff(edges) + np.fromiter(map(len, begins), np.int64, len(begins))
    what = f"format webdataset cannot hold a sample of {field.name}"
    refuse_large(what, int(sizes.max(initial=0)), MOST_BYTES)
    heads = np.empty((len(sizes), len(header.blocks)), np.uint8)
    heads[:] = np.frombuffer(header.blocks, np.uint8)
    header.number(heads, 0, np.arange(first, first + len(sizes)), sizes)
    for row, (head, begin) in enumerate(zip(heads, begins, strict=True)):
        array = memory[edges[row] : edges[row + 1]]
        yield b"".join([head.data, begin, array, bytes(-int(sizes[row]) % BLOCK)])


@lru_cache(1 << 16)
def _npy_header(field: Field, length: int) -> bytes:
    return header_of(replace(field, shape=field.inner), length) if field.is_ragged else header_of(field)
