"""Records: samples at listed places of files, one mechanism for all formats that store them so.

A format opens a `RecordSource`, which says where the records lie (`scan`), where the fields lie in them
(`columns`), and how to decode what is not stored as in memory (`decoder`). The schema of added files, the
index, which is built once and cached, the placements, and the reader follow from these. If all records have
one layout, the index has an entry per file, and fields are `Chunked`; otherwise it has one per record.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.base.finding import Finding
from iobench.contrib.formats.shared.external import FIXED, unequal_samples
from iobench.contrib.formats.shared.mapped_files import Maps, copy_rows
from iobench.contrib.formats.shared.scaled_images import (
    COMPARED,
    ScaledDecoder,
    ScaledImages,
    extents_of,
    length_of,
)
from iobench.formats import (
    Array,
    Batch,
    Blocks,
    Chunked,
    Convert,
    Detectable,
    Epoch,
    Field,
    Format,
    Index,
    Listed,
    ListedSpans,
    Placement,
    Ragged,
    Reader,
    Rows,
    Schema,
    Strided,
    identity,
    index_of,
    unclosed,
)
from iobench.formats.placement import Decode

STARTS = (b"\xff\xd8", b"\x89P")  # of JPEG and PNG files
WHOLE = ""  # name of the column that is the record itself
UNEQUAL_IMAGES = (
    f"{FIXED}; 'iobench prepare --source FOLDER --sample-shape' resizes images in one folder per class"
)


@dataclass(frozen=True, eq=False)
class Records:
    """Consecutive records: file number, byte offset and bytes of each.

    `first` is the number of records before these.
    """

    maps: Maps
    file: Index
    offset: Index
    length: Index
    first: int = 0

    def __len__(self) -> int:
        return len(self.offset)

    def path(self, row: int) -> Path:
        """Return the file of a record."""
        return self.maps.files[int(self.file[row])]

    def data(self, row: int) -> memoryview:
        """Return the bytes of a record."""
        begin = int(self.offset[row])
        return self.maps[int(self.file[row])][begin : begin + int(self.length[row])].data


@dataclass(frozen=True)
class Column:
    """Offset of a field's values in each of some records, and their bytes where these may differ.

    `total` is the sum of the lengths of a ragged field.
    """

    offset: Index
    size: Index | None = None
    encoded: bool = False
    total: int = 0

    @classmethod
    def of(cls, field: Field, offset: Index, size: Index) -> Column:
        """Return the column of values that are stored as in memory, and take `size` bytes each."""
        if not field.is_ragged:
            return cls(offset)
        return cls(offset, size, total=int(size.sum()) // field.sample_bytes)


@dataclass(frozen=True)
class Decoder:
    """Decodes the stored bytes of one sample of a field; both functions are given the file for errors.

    `elements` returns the values in a new array; `into`, if it is given, fills an array of the field's shape
    from the bytes of a row.
    """

    elements: Callable[[Path, memoryview], Array] | None = None
    into: Callable[[Path, memoryview, int, Array], None] | None = None

    def fill(self, path: Path, stored: memoryview, row: int, out: Array) -> None:
        """Fill `out`; CorruptArtifact if there are more or fewer values."""
        if self.into is not None:
            self.into(path, stored, row, out)
            return
        assert self.elements is not None
        values = self.elements(path, stored)
        if values.size != out.size:
            raise corrupt(path, f"{out.size} values", values.size)
        out[...] = values.reshape(out.shape)


class RecordSource(ABC):
    """Files of records that are open.

    Attributes
    ----------
    maps : Maps
        The files.
    samples : int or None
        Number of records, if that is known without a scan.
    epoch : Epoch or None
        What random parts of samples follow from.
    """

    maps: Maps
    samples: int | None = None
    epoch: Epoch | None = None

    def close(self) -> None:
        """Drop the maps; they are released with the last view of them."""
        self.maps.close()

    @abstractmethod
    def scan(self) -> Iterator[Records]:
        """Yield the records piece by piece, at least one piece; none crosses the end of a file."""

    @abstractmethod
    def columns(
        self, records: Records, fields: Sequence[Field], thorough: bool = False
    ) -> Mapping[str, Column]:
        """Return the column of each field, and that of `WHOLE` where `verify` needs it.

        With `thorough`, also check what is otherwise checked as it is decoded. CorruptArtifact if records do
        not hold these fields.
        """

    def fields(self, records: Records) -> tuple[Field, ...]:
        """Return the fields that records describe; CorruptArtifact (``fields-needed``) if they do not."""
        raise CorruptArtifact(
            "records do not describe their fields",
            kind="fields-needed",
            path=self.maps.files[0],
            hint="name one for the bytes of a record: --field 'x=float32[3,224,224]', or 'x=uint8[*]' if "
            "they differ in length",
        )

    def check(self, fields: Sequence[Field]) -> None:
        """Raise CorruptArtifact for fields that the files cannot hold, as far as this needs no scan."""
        return

    def decoder(self, field: Field) -> Decoder:
        """Return the decoder of a field whose column is `encoded`."""
        raise NotImplementedError

    def verify(self, file: Index, offset: Index, size: Index, rows: Index) -> None:
        """Raise CorruptArtifact if records, of these rows, do not match their checksums."""
        return


class RecordFormat(Format, Detectable):
    """Base class of formats of records."""

    @abstractmethod
    def source(self, path: Path, schema: Schema | None = None) -> RecordSource:
        """Open the files at `path`; `schema` is that of what `write` stored, or of what was added."""

    def open(self, path: Path, schema: Schema, random: bool = False) -> RecordReader:
        """Return a reader, which scans the records when rows are first read."""
        source = self.source(path, schema)
        if source.samples not in (None, schema.samples):
            raise corrupt(path, f"{schema.samples} samples", source.samples)
        source.check(schema.fields)
        return RecordReader(source, schema)

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema of the records, or that of `fields`; checks every record."""
        source = self.source(path)
        with closing(source):
            source.check(fields)
            pieces = source.scan()
            first = next(pieces)
            known, samples, totals = tuple(fields) or source.fields(first), 0, Counter[str]()
            for records in chain([first], pieces):
                columns = source.columns(records, known, True)
                samples += len(records)
                totals.update({one.name: columns[one.name].total for one in known if one.is_ragged})
            return Schema(samples, known, totals=dict(totals))


@dataclass
class _FieldLocations:
    """Locations of the fields: stored as in memory, encoded samples of one shape, and encoded ragged ones.

    `whole` are the records, and the bytes of each or of all, if they are verified.
    """

    placement: dict[str, Placement] = field(default_factory=dict)
    blocks: list[Blocks] = field(default_factory=list)
    encoded: dict[str, tuple[ListedSpans, Decoder]] = field(default_factory=dict)
    whole: tuple[Placement, Index] | None = None


class RecordReader(Reader):
    """Copies or decodes rows out of mapped files, and verifies their records as the format does.

    Where the fields lie is looked up when rows are first requested.
    """

    def __init__(self, source: RecordSource, schema: Schema) -> None:
        super().__init__(schema)
        self._source: RecordSource | None = source
        self._maps, self._lock = source.maps, threading.Lock()
        self._known: _FieldLocations | None = None
        if source.epoch is not None:
            self.epoch = source.epoch

    def placement(self) -> Mapping[str, Placement]:
        """Return the locations of the fields that are stored as in memory; ragged ones as `ListedSpans`."""
        return self._locations().placement

    def blocks(self) -> Sequence[Blocks]:
        """Return the locations of the fields that are stored encoded, each sample of one shape a block."""
        return self._locations().blocks

    def sample(self, row: int, convert: Convert = identity) -> dict[str, Any]:
        """Return one sample: views of the files where it is stored as in memory, else new arrays."""
        self._check_row(row)
        rows, locations = np.array([row]), self._locations()
        sample = {}
        for spec in self.schema.fields:
            if spec.is_ragged:
                array = self._elements(spec, row)
            elif spec.name in locations.placement:
                number, offset = (int(part[0]) for part in locations.placement[spec.name].locate(rows))
                stored = self._bytes(number, offset, offset + spec.sample_bytes)
                array = np.frombuffer(stored, spec.dtype, spec.elements, offset).reshape(spec.shape)
            else:
                decoded = np.empty((1, *spec.shape), spec.dtype)
                self._decode(rows, {spec.name: decoded})
                array = decoded[0, ...]
            sample[spec.name] = convert(array)
        self._verify(rows)
        return sample

    def batch(self, rows: Rows | Sequence[int]) -> Batch:
        """Return the rows in new arrays, ragged fields as `Ragged`; IndexError outside 0..len-1."""
        checked, _ = self._checked(rows)
        batch: dict[str, Any] = super().batch(checked)
        for spec in self.schema.ragged:
            samples = [self._elements(spec, row) for row in index_of(checked).tolist()]
            batch[spec.name] = Ragged.of(samples, spec.inner, spec.dtype)
        return {spec.name: batch[spec.name] for spec in self.schema.fields}

    def stored_block(self, blocks: Blocks, number: int) -> memoryview:
        """Return the stored bytes of a block; CorruptArtifact if its file is shorter."""
        file, offset, stored = (int(part[number]) for part in (blocks.file, blocks.offset, blocks.stored))
        return self._bytes(file, offset, offset + stored)[offset : offset + stored].data

    def close(self) -> None:
        """Drop the maps; they are released with the last view of them."""
        if self._source is not None:
            self._source.close()
        self._source = None

    def _read_rows(self, rows: Index, out: Mapping[str, Array]) -> None:
        placement = self._locations().placement
        for name, target in out.items():
            if name in placement:
                flat = target.reshape(len(rows), -1).view(np.uint8)
                file, offset = placement[name].locate(rows)
                for number in np.unique(file).tolist():
                    at = np.flatnonzero(file == number)
                    begins, width = offset[at], flat.shape[1]
                    stored = self._bytes(number, int(begins.min()), int(begins.max()) + width)
                    copy_rows(stored, begins, flat, at)
        self._decode(rows, {name: array for name, array in out.items() if name not in placement})
        self._verify(rows)

    def _elements(self, spec: Field, row: int) -> Array:
        """Return the elements of a sample of a ragged field, a view of its file unless they are encoded."""
        locations = self._locations()
        spans, decoder = locations.encoded.get(spec.name, (locations.placement.get(spec.name), None))
        assert isinstance(spans, ListedSpans)
        number, offset, size = int(spans.file[row]), int(spans.offset[row]), int(spans.size[row])
        stored = self._bytes(number, offset, offset + size)[offset : offset + size]
        if decoder is None:
            return stored.view(spec.dtype).reshape(-1, *spec.inner)
        assert decoder.elements is not None
        with naming(f"{spec.name} of sample {row}"):
            return decoder.elements(spans.files[number], stored.data).reshape(-1, *spec.inner)

    def _decode(self, rows: Index, out: Mapping[str, Array]) -> None:
        """Decode these rows, each of which is a block, in place."""
        for blocks in self._locations().blocks:
            (name,) = blocks.fields
            for slot, row in enumerate(rows.tolist() if name in out else ()):
                target = {name: out[name][slot : slot + 1]}
                blocks.decode(row, self.stored_block(blocks, row), target)

    def _verify(self, rows: Index) -> None:
        if (whole := self._locations().whole) is not None:
            (place, size), once = whole, np.unique(rows)
            unclosed(self._source).verify(*place.locate(once), size[once] if len(size) > 1 else size, once)

    def _bytes(self, number: int, low: int, high: int) -> Array:
        """Return the bytes of a file; CorruptArtifact unless those from `low` to `high` are in it."""
        stored = self._maps[number]
        if not 0 <= low <= high <= len(stored):
            raise corrupt(self._maps.files[number], f"{high} bytes", len(stored))
        return stored

    def _locations(self) -> _FieldLocations:
        with self._lock:
            if self._known is None:
                self._known = self._locate(unclosed(self._source))
            return self._known

    def _locate(self, source: RecordSource) -> _FieldLocations:
        files, index = self._maps.files, self.load_or_build("records", partial(_index, source, self.schema))
        file, first = index["file"], index["first"]

        def placed(name: str) -> Placement:
            offset, size = index[f"{name}.offset"], index.get(f"{name}.size")
            if not len(first):
                if size is None or name == WHOLE:
                    return Listed(files, file, offset)
                return ListedSpans(files, file, offset, size)
            stride = int(index["stride"][0])
            if len(files) == len(first) == 1:
                return Strided(files, int(offset[0]), stride)
            return Chunked(files, np.asarray(first), np.asarray(file), np.asarray(offset), stride)

        found = _FieldLocations()
        for spec in self.schema.fields:
            offset, stored = index[f"{spec.name}.offset"], index.get(f"{spec.name}.stored")
            if stored is None:
                found.placement[spec.name] = placed(spec.name)
            elif spec.is_ragged:
                spans = ListedSpans(files, file, offset, stored)
                found.encoded[spec.name] = spans, source.decoder(spec)
            else:
                decode, rows = _filling(spec.name, files, file, source.decoder(spec)), np.arange(len(file))
                found.blocks.append(Blocks((spec.name,), files, rows, file, offset, stored, decode))
        if (size := index.get(f"{WHOLE}.size")) is not None:
            found.whole = placed(WHOLE), np.asarray(size[:1]) if len(first) else size
        return found


def _filling(name: str, files: Sequence[Path], file: Index, decoder: Decoder) -> Decode:
    """Return the function that decodes one sample of a field of one shape as a block."""

    def decode(row: int, stored: memoryview, out: Mapping[str, Array]) -> None:
        with naming(f"{name} of sample {row}"):
            decoder.fill(files[int(file[row])], stored, row, out[name][0, ...])

    return decode


@dataclass
class _Chunk:
    """Consecutive records of one layout: file, offsets and sizes of the first, and their stride.

    The stride of a single record is 0.
    """

    first: int
    stride: int
    count: int
    places: dict[str, int]

    @classmethod
    def of(cls, lists: Mapping[str, Array], first: int) -> _Chunk | None:
        """Return the chunk of a piece's records; None if they are not of one layout at one stride."""
        moving = {name for name in lists if name.endswith(".offset")}
        if lists.keys() - moving - {"file", f"{WHOLE}.size"}:
            return None
        steps, count = {name: np.diff(values) for name, values in lists.items()}, len(lists["file"])
        stride = int(steps[min(moving)][0]) if count > 1 else 0
        expected = {name: stride if name in moving else 0 for name in lists}
        if (count > 1 and stride <= 0) or any((steps[name] != expected[name]).any() for name in lists):
            return None
        return cls(first, stride, count, {name: int(values[0]) for name, values in lists.items()})

    def is_alike(self, other: _Chunk) -> bool:
        """Return whether another chunk has this layout; that of a single record may have any stride."""
        return self._layout == other._layout and len({self.stride, other.stride} - {0}) <= 1

    def is_continued_by(self, other: _Chunk) -> bool:
        """Return whether a chunk that is alike begins where this one ends."""
        return other.stride in (0, self.stride) and self._at(self.count) == other.places

    @property
    def entry(self) -> dict[str, int]:
        """Its entry in the index."""
        return {"first": self.first, "stride": self.stride, **self.places}

    @property
    def lists(self) -> dict[str, Array]:
        """The lists that it was made of."""
        return {name: np.broadcast_to(at, self.count) for name, at in self._at(np.arange(self.count)).items()}

    @property
    def _layout(self) -> dict[str, int]:
        """Bytes of whole records, and the distances of the fields from the first of them."""
        origin = min(at for name, at in self.places.items() if name.endswith(".offset"))
        return {
            name: at - origin * (name != f"{WHOLE}.size")
            for name, at in self.places.items()
            if name != "file"
        }

    def _at(self, row: Any) -> dict[str, Any]:
        return {name: at + self.stride * row * name.endswith(".offset") for name, at in self.places.items()}


NONE = np.empty(0, np.int64)


def _index(source: RecordSource, schema: Schema) -> Iterator[dict[str, Array]]:
    """Yield the index of a reader in one scan: an entry for each chunk, or else one for each record.

    Without chunks, `first` and `stride` are empty. Chunks before a record of another layout are written out.
    """
    chunks, regular, samples = list[_Chunk](), True, 0
    model: _Chunk | None = None  # of a stride of its own: a chunk of one record has any
    for records in filter(len, source.scan()):
        lists = {"file": records.file}
        for name, column in source.columns(records, schema.fields).items():
            lists[f"{name}.offset"] = column.offset
            if column.size is not None:
                lists[f"{name}.{'stored' if column.encoded else 'size'}"] = column.size
        chunk = _Chunk.of(lists, samples) if regular else None
        samples += len(records)
        if chunk is None or (model is not None and not model.is_alike(chunk)):
            for piece in (*(one.lists for one in chunks), lists):
                yield piece | {"first": NONE, "stride": NONE}
            chunks, regular = [], False
            continue
        if chunks and chunks[-1].is_continued_by(chunk):
            chunks[-1].count += chunk.count
        else:
            chunks.append(chunk)
        model = chunk if model is None or chunk.stride > model.stride else model
        yield dict.fromkeys(chunk.entry, NONE)  # a cache ends a scan that takes too long
    if samples != schema.samples:
        raise corrupt(source.maps.files[0].parent, f"{schema.samples} samples", samples)
    if model is not None and chunks:
        entries = [{**chunk.entry, "stride": model.stride} for chunk in chunks]
        yield {name: np.array([entry[name] for entry in entries], np.int64) for name in entries[0]}


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Begin a CorruptArtifact that is raised in the block with the name of a sample."""
    try:
        yield
    except CorruptArtifact as error:
        begun = "problem" if error.problem else "expected"
        raise error.changed(**{begun: f"{what}: {getattr(error, begun)}"}) from error


def pixels(scaled: ScaledDecoder | None = None) -> Decoder:
    """Return the decoder of image files: to what `scaled` makes, or else of exactly the field's shape."""
    if scaled is not None:
        return Decoder(scaled.decode)
    from iobench.formats.image_decoding import decoded

    return Decoder(into=lambda path, stored, row, out: decoded(path, stored, out))


def extents() -> Decoder:
    """Return the decoder of the height and width that an image's header states."""
    return Decoder(lambda path, stored: np.array(extents_of(path, BytesIO(stored))))


def pixels_of_others(format: ScaledImages, path: Path, schema: Schema) -> list[Finding]:
    """Return how far the pixels of some images are from Pillow's, for another decoder or scale."""
    if format.lossless:
        return []
    assert isinstance(format, RecordFormat)
    with closing(format.open(path, schema)) as reader:
        images = next(one for one in reader.blocks() if schema.field(one.fields[0]).shape)
        rows = range(0, schema.samples, -(-schema.samples // COMPARED))
        stored = [(images.files[int(images.file[row])], reader.stored_block(images, row)) for row in rows]
        files = [one for one in stored if one[1][:2] in STARTS]  # not pixels of a beton
        return format.other_pixels(files) if files else []


@dataclass(frozen=True, eq=False)
class ImageRecords(Records):
    """Records that are image files."""

    what: str = ""  # name of the images in errors

    def shape(self, row: int) -> tuple[int, ...]:
        """Return the shape of an image; CorruptArtifact if it is not a PNG or JPEG, RGB or gray."""
        from iobench.formats.image_decoding import shape_of

        return shape_of(self.path(row), self.data(row), f"{self.what} of sample {self.first + row}")

    def check(self, field: Field, instead: str = UNEQUAL_IMAGES) -> None:
        """Raise CorruptArtifact (``unequal-shapes``) if an image has another shape than the field."""
        for row in range(len(self.file)):
            if (shape := self.shape(row)) != field.shape:
                problem = f"{self.what} of sample {self.first + row} differs in shape"
                raise unequal_samples(self.path(row), problem, field.shape, shape, instead)

    def lengths(self, field: Field) -> Index:
        """Return the pixels of each image, read from its header; CorruptArtifact if it has none."""
        lengths = np.empty(len(self.file), np.int64)
        for row in range(len(lengths)):
            with naming(f"{self.what} of sample {self.first + row}"):
                lengths[row] = length_of(field, self.path(row), BytesIO(self.data(row)))
        return lengths
