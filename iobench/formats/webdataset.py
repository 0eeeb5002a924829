"""WebDataset: tar shards; the files of a sample follow each other, named alike up to the first dot.

Ours are `000000.tar`, …, and sample 12's field x is the file `000000012.x.npy` in one of them. What others
wrote is one archive, or a folder of them, whose samples all have the same files: `.npy` arrays of one
shape, `.cls` and other whole numbers as text, and files of raw bytes whose fields are told.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from iobench.formats._errors import CorruptArtifact, UnsupportedSchema, corrupt
from iobench.formats._foreign import FIXED, fields_by_name
from iobench.formats._format import Format
from iobench.formats._npy import LONGEST, header_of, read_header
from iobench.formats._options import option
from iobench.formats._placed import Found, Maps, PlacedReader, runs
from iobench.formats._placement import Blocks, Decode, Index, Listed, Placement
from iobench.formats._records import Record, ShardWriter, rows_within
from iobench.formats._schema import DTYPES, Array, Batch, Field, Schema, field_name
from iobench.formats._tar import BLOCK, DIGIT, END, Headers, is_tar, members

DIGITS = 9  # of a sample's number, as WebDataset's own examples have them
NUMBERS = {"cls", "cls2", "class", "count", "index", "inx", "id"}  # webdataset decodes them as int
IMAGES = {"png", "jpg", "jpeg", "ppm", "pgm", "pbm", "webp", "bmp", "tif", "tiff"}


@dataclass(frozen=True)
class WebDataset(Format):
    """Tar shards of .npy files, one per field and sample."""

    name: ClassVar[str] = "webdataset"
    summary: ClassVar[str] = "tar shards, one .npy file per field and sample"
    library: ClassVar[str] = "numpy"

    shard_bytes: int = option(64 << 20, "most bytes of a shard", minimum=1, unit="bytes")

    def check_schema(self, schema: Schema) -> None:
        """As any format, and refuse names that differ in case alone, because webdataset lowers them."""
        super().check_schema(schema)
        names: dict[str, str] = {}
        for field in schema.fields:
            if (other := names.setdefault(field.name.lower(), field.name)) != field.name:
                raise UnsupportedSchema(
                    f"format {self.name} cannot hold both {other} and {field.name}: "
                    "webdataset takes them for one"
                )

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write the shards."""
        writer = _Writer(path, schema, self.shard_bytes)
        path.mkdir()
        writer.write(batches)

    def open(self, path: Path, schema: Schema, random: bool = False) -> PlacedReader:
        """A reader; the headers of all files in the shards are walked when rows are first asked for."""
        maps = Maps(_shards(path))
        return PlacedReader(
            schema, maps, lambda kept: _found(maps, schema, kept("members", lambda: _look(maps, schema)))
        )

    def size_bound(self, schema: Schema) -> int:
        """Records, and two empty blocks for each shard."""
        record = len(_Writer(Path(), schema, self.shard_bytes).record.pattern)
        shards = -(-schema.samples // rows_within(self.shard_bytes, record))
        return schema.samples * record + shards * (len(END) + 4096) + (1 << 20)

    def recognises(self, path: Path) -> bool:
        """Whether it is an archive, or a folder with archives named .tar."""
        try:
            first = _shards(path)[0]
            with open(first, "rb") as file:
                return first.suffix == ".tar" and is_tar(file.read(BLOCK))
        except (CorruptArtifact, OSError):
            return False

    def schema_of(self, path: Path, told: Sequence[Field] = ()) -> Schema:
        """What the samples of all shards have in common; with fields told, these alone."""
        maps = Maps(_shards(path))
        try:
            samples, columns = _columns(maps)
            fields_by_name(path, (suffix.removesuffix(".npy") for suffix in columns))
            fields = told or tuple(_field_of(suffix, columns[suffix], maps) for suffix in columns)
            schema = Schema(samples, tuple(fields))
            _look(maps, schema)
            return schema
        finally:
            maps.close()


def _shards(path: Path) -> list[Path]:
    """The archives of a folder in the order of their names, or the one that `path` is."""
    if path.is_dir():
        found = sorted(file for file in path.iterdir() if file.suffix == ".tar")
        if not found:
            packed = next((f.name for f in path.iterdir() if ".tar." in f.name or f.suffix == ".tgz"), None)
            what = f"{packed}, which is compressed: unpack it to a plain .tar" if packed else "none"
            raise corrupt(path, "a folder of .tar shards", what)
        return found
    if not path.is_file():
        raise corrupt(path, "tar shards", "no such folder")
    return [path]


class _Writer(ShardWriter):
    """Shards of records: per field a tar header, a .npy header, the array and zeros up to a whole block."""

    def __init__(self, path: Path, schema: Schema, shard_bytes: int) -> None:
        self._path, at = path, 0
        self._headers: list[tuple[int, Headers]] = []
        parts: list[bytes | Field] = []
        digits = DIGIT.decode() * max(DIGITS, len(str(schema.samples - 1)))
        for field in schema.fields:
            npy = header_of(field)
            size = len(npy) + field.sample_bytes
            header = Headers(f"{digits}.{field.name}.npy", size)
            self._headers.append((at, header))
            parts += [header.blocks, npy, field, bytes(-size % BLOCK)]
            at += len(header.blocks) + size + -size % BLOCK
        record = Record.of(parts)
        super().__init__(schema, record, rows_within(shard_bytes, at))

    def path_of(self, number: int) -> Path:
        return self._path / f"{number:06d}.tar"

    def stamp(self, table: Array, first: int) -> None:
        for begin, header in self._headers:
            header.number(table, begin, np.arange(first, first + len(table)))

    def end(self, number: int) -> bytes:
        return END


@dataclass(frozen=True)
class _Column:
    """The files with one suffix, of all samples in order: in which shard, from which byte, and how long."""

    file: array[int]
    offset: array[int]
    size: array[int]

    def arrays(self) -> tuple[Index, Index, Index]:
        file, offset, size = (np.frombuffer(part, np.int64) for part in (self.file, self.offset, self.size))
        return file, offset, size


def _columns(maps: Maps) -> tuple[int, Mapping[str, _Column]]:
    """How many samples there are, and the files of each suffix that all of them have."""
    columns: dict[str, _Column] = {}
    samples = 0
    for number, path in enumerate(maps.files):
        key = None
        for member in members(maps[number], path):
            folder, slash, base = member.name.rpartition("/")
            stem, _, suffix = base.partition(".")
            if not (stem and suffix) or member.name.startswith("__"):  # webdataset leaves them out, too
                continue
            if key != folder + slash + stem:
                key, samples = folder + slash + stem, samples + 1
            _add(columns, suffix.lower(), samples, (number, member.offset, member.size), path, key)
    whole = {suffix: column for suffix, column in columns.items() if len(column.file) == samples}
    if not whole:
        raise corrupt(maps.files[0].parent, "samples with the same files each", sorted(columns)[:9] or "none")
    return samples, whole


def _add(
    columns: dict[str, _Column], suffix: str, samples: int, place: tuple[int, int, int], path: Path, key: str
) -> None:
    """Note a file of the newest sample; a suffix that an earlier sample lacks is never whole."""
    if suffix not in columns:
        columns[suffix] = _Column(array("q"), array("q"), array("q"))
    column = columns[suffix]
    if len(column.file) == samples:
        raise CorruptArtifact(f"{path}: sample {key} has two files .{suffix}; keys must differ")
    if len(column.file) == samples - 1:
        for part, value in zip((column.file, column.offset, column.size), place, strict=True):
            part.append(value)


def _name_of(suffix: str) -> str:
    """The field that files with this suffix hold: `x.npy` is x, `train-x.npy` is train_x."""
    return field_name(suffix.removesuffix(".npy"))


def _field_of(suffix: str, column: _Column, maps: Maps) -> Field:
    """What a column's first file says of itself; CorruptArtifact where it says nothing."""
    kind, path = suffix.rpartition(".")[2], maps.files[column.file[0]]
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
        what = "encoded images: give 'iobench prepare --source' a folder of them, or leave them out"
    else:
        what = "nothing that says its dtype and shape"
    raise CorruptArtifact(
        f"{path}: files .{suffix} hold {what}; name the fields to take, with dtype and shape"
    )


def _start(maps: Maps, column: _Column, row: int) -> bytes:
    begin = column.offset[row]
    return maps[column.file[row]][begin : begin + min(column.size[row], LONGEST)].tobytes()


def _found(maps: Maps, schema: Schema, lists: Mapping[str, Array]) -> Found:
    """Where the fields lie, by what `_look` found."""
    placement: dict[str, Placement] = {}
    blocks = []
    for number, field in enumerate(schema.fields):
        file, offset, size = (lists.get(f"{what}_{number}") for what in ("file", "offset", "size"))
        if file is None or offset is None:
            raise corrupt(maps.files[0].parent, f"a list of the files of {field.name}", "none")
        if size is None:
            placement[field.name] = Listed(maps.files, file, offset)
        else:
            decode = _decoder(maps.files, field.name, file)
            blocks.append(Blocks((field.name,), maps.files, np.arange(len(file)), file, offset, size, decode))
    return Found(placement, blocks)


def _look(maps: Maps, schema: Schema) -> dict[str, Array]:
    """Per field, by its number: shard and offset of each sample's values, and the size of text.

    CorruptArtifact where the archives do not hold this schema.
    """
    samples, columns = _columns(maps)
    folder = maps.files[0].parent
    if samples != schema.samples:
        raise corrupt(folder, f"{schema.samples} samples", samples)
    lists: dict[str, Array] = {}
    for number, field in enumerate(schema.fields):
        suffix = next(
            (s for s in (f"{field.name.lower()}.npy", *columns) if s in columns and _is(s, field)), None
        )
        if suffix is None:
            raise corrupt(folder, f"files of field {field.name} in every sample", ", ".join(columns))
        file, offset, size = columns[suffix].arrays()
        if suffix.rpartition(".")[2] in NUMBERS:
            if (field.dtype, field.shape) != ("int64", ()):
                raise corrupt(folder, f"{field.name} as {field.dtype} {field.shape}", "whole numbers, int64")
            lists[f"size_{number}"] = size
        else:
            offset = offset + _before(maps, field, suffix, columns[suffix])
        lists |= {f"file_{number}": file, f"offset_{number}": offset}
    return lists


def _is(suffix: str, field: Field) -> bool:
    return suffix == f"{field.name.lower()}.npy" or _name_of(suffix) == field.name


def _before(maps: Maps, field: Field, suffix: str, column: _Column) -> Index:
    """The bytes before each array in its file, after headers and sizes were compared with the field."""
    file, _, size = column.arrays()
    header = np.zeros(len(file), np.int64)
    if suffix.rpartition(".")[2] == "npy":
        header[:] = _headers(maps, field, column)
    if (wrong := np.flatnonzero(size != header + field.sample_bytes)).size:
        found = int(size[wrong[0]] - header[wrong[0]])
        raise CorruptArtifact(
            f"{maps.files[file[wrong[0]]]}: field {field.name} has {found} bytes in sample {wrong[0]}, not "
            f"{field.sample_bytes} as {field.dtype} {field.shape}; {FIXED}"
        )
    return header


def _headers(maps: Maps, field: Field, column: _Column) -> Index:
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
        path = maps.files[file[row]]
        lengths[row], shape, dtype = read_header(
            _start(maps, column, row), f"{field.name} of sample {row}", path
        )
        if (shape, dtype.name) != (field.shape, field.dtype):
            raise corrupt(
                path, f"{field.name} of sample {row} as {field.dtype} {field.shape}", f"{dtype} {shape}"
            )
    return lengths


def _decoder(files: Sequence[Path], name: str, file: Index) -> Decode:
    """What decodes a whole number from text, one to a block."""

    def decode(number: int, stored: memoryview, out: Mapping[str, Array]) -> None:
        try:
            out[name][0] = int(bytes(stored))
        except (ValueError, OverflowError) as error:
            path = files[int(file[number])]
            raise corrupt(path, f"{name} of sample {number} as a whole number", bytes(stored[:20])) from error

    return decode
