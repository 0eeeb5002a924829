"""Records: samples at listed places of files, one mechanism for all formats that store them so.

A format opens a `RecordSource`, which says where the records lie (`scan`), where the fields lie in them
(`columns`), and how to decode what is not stored as in memory (`decoder`). The schema of added files, the
index, which is built once and cached, the placements, and the reader follow from these. If all records have
one layout, the index has an entry per file, and fields are `Chunked`; otherwise it has one per record.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.base.finding import Finding
from iobench.contrib.formats.shared.external import FIXED, unequal_samples
from iobench.contrib.formats.shared.placed_reader import EncodedSpans, FieldLocations, Maps, PlacedReader
from iobench.contrib.formats.shared.scaled_images import (
    COMPARED,
    ScaledDecoder,
    ScaledImages,
    extents_of,
    length_of,
)
from iobench.formats import (
    Array,
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
    LoadOrBuild,
    Placement,
    Schema,
    Strided,
    identity,
)

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


@dataclass(frozen=True)
class Decoder:
    """Decodes the stored bytes of one sample of a field; both functions are given the file for errors.

    `elements` returns the values in a new array; `into`, if it is given, fills an array of the field's shape
    from the bytes of a row.
    """

    elements: Callable[[Path, memoryview], Array] | None = None
    into: Callable[[Path, memoryview, int, Array], None] | None = None

    def values(self, path: Path, stored: memoryview) -> Array:
        """Return the values in a new array, of a field that may be ragged."""
        assert self.elements is not None
        return self.elements(path, stored)

    def fill(self, path: Path, stored: memoryview, row: int, out: Array) -> None:
        """Fill `out`; CorruptArtifact if there are more or fewer values."""
        if self.into is not None:
            self.into(path, stored, row, out)
            return
        values = self.values(path, stored)
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

    def open(self, path: Path, schema: Schema, random: bool = False) -> PlacedReader:
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


class RecordReader(PlacedReader):
    """Copies or decodes rows out of records, and verifies these as the format does."""

    def __init__(self, source: RecordSource, schema: Schema) -> None:
        super().__init__(schema, source.maps, self._find)
        self._source = source
        self._whole: tuple[Placement, Index] | None = None  # records, and the bytes of each or of all
        if source.epoch is not None:
            self.epoch = source.epoch

    def close(self) -> None:
        """Drop the maps; they are released with the last view of them."""
        super().close()
        self._source.close()

    def sample(self, row: int, convert: Convert = identity) -> dict[str, Any]:
        """Return one sample after its record was verified."""
        sample = super().sample(row, convert)
        if self._whole is not None:
            self._verify(*self._whole, np.array([row]))
        return sample

    def _read_rows(self, rows: Index, out: Mapping[str, Array]) -> None:
        super()._read_rows(rows, out)
        if self._whole is not None:
            self._verify(*self._whole, np.unique(rows))

    def _verify(self, place: Placement, size: Index, rows: Index) -> None:
        self._source.verify(*place.locate(rows), size[rows] if len(size) > 1 else size, rows)

    def _find(self, load_or_build: LoadOrBuild) -> FieldLocations:
        index = _IndexBuilder(self._source, self.schema)
        files, fields = self._maps.files, self.schema.fields
        chunks = load_or_build("chunks", index.chunks)
        if len(chunks["first"]):
            placement: dict[str, Placement] = {
                name: _in_chunks(files, chunks, name)
                for name in [field.name for field in fields] + [WHOLE] * (f"{WHOLE}.offset" in chunks)
            }
            if WHOLE in placement:
                self._whole = placement.pop(WHOLE), np.asarray(chunks[f"{WHOLE}.size"][:1])
            return FieldLocations(placement)
        lists = load_or_build("lists", index.lists)
        file = lists["file"]
        if f"{WHOLE}.offset" in lists:
            self._whole = Listed(files, file, lists[f"{WHOLE}.offset"]), lists[f"{WHOLE}.size"]
        placement, blocks, spans = {}, [], {}
        for field in fields:
            offset, stored = lists[f"{field.name}.offset"], lists.get(f"{field.name}.stored")
            if stored is not None and field.is_ragged:
                spans[field.name] = self._spans(field, ListedSpans(files, file, offset, stored))
            elif stored is not None:
                blocks.append(self._blocks(field, ListedSpans(files, file, offset, stored)))
            elif field.is_ragged:
                placement[field.name] = ListedSpans(files, file, offset, lists[f"{field.name}.size"])
            else:
                placement[field.name] = Listed(files, file, offset)
        return FieldLocations(placement, blocks, spans)

    def _blocks(self, field: Field, places: ListedSpans) -> Blocks:
        """Return each sample of a field of one shape as a block."""
        decoder, name = self._source.decoder(field), field.name

        def decode(row: int, stored: memoryview, out: Mapping[str, Array]) -> None:
            with naming(f"{name} of sample {row}"):
                decoder.fill(places.files[int(places.file[row])], stored, row, out[name][0, ...])

        rows = np.arange(len(places.offset))
        return Blocks((name,), places.files, rows, places.file, places.offset, places.size, decode)

    def _spans(self, field: Field, places: ListedSpans) -> EncodedSpans:
        decoder = self._source.decoder(field)

        def decode(row: int, stored: memoryview) -> Array:
            with naming(f"{field.name} of sample {row}"):
                return decoder.values(places.files[int(places.file[row])], stored)

        return EncodedSpans(places, decode)


def _in_chunks(files: tuple[Path, ...], chunks: Mapping[str, Array], name: str) -> Placement:
    first, file, offset = chunks["first"], chunks["file"], chunks[f"{name}.offset"]
    stride = int(chunks["stride"][0])
    if len(files) == len(first) == 1:
        return Strided(files, int(offset[0]), stride)
    return Chunked(files, np.asarray(first), np.asarray(file), np.asarray(offset), stride)


class _IndexBuilder:
    """Builds the index of a reader in one scan: chunks of records of one layout, or else a list of all.

    Chunks that came before a record of another layout are written out into the list.
    """

    def __init__(self, source: RecordSource, schema: Schema) -> None:
        self._source, self._schema = source, schema
        self._started: list[dict[str, Array]] = []
        self._rest: Iterator[dict[str, Array]] | None = None

    def chunks(self) -> Iterator[dict[str, Array]]:
        """Yield the first row, file and stride of all chunks, and the offset of each field; or no chunks."""
        pieces, entries, first = self._pieces(), list[dict[str, int]](), 0
        counts, names = list[int](), ["first"]
        # a chunk of one record has any stride, so the others are compared with one that has its own
        model: dict[str, int] | None = None
        for lists in pieces:
            entry, count = _entry(lists, first), len(lists["file"])
            if entry is None or (model is not None and not _alike(model, entry)):
                expanded = (_expanded(one, rows) for one, rows in zip(entries, counts, strict=True))
                self._started, self._rest, entries = [*expanded, lists], pieces, []
                break
            names = list(entry)
            yield {name: np.empty(0, np.int64) for name in names}  # a cache ends a scan that takes too long
            if entries and _continues(entries[-1], counts[-1], entry):
                counts[-1] += count
            else:
                entries.append(entry)
                counts.append(count)
            model = entry if model is None or entry["stride"] > model["stride"] else model
            first += count
        found = {name: np.array([one[name] for one in entries], np.int64) for name in names}
        if entries:
            found["stride"][:] = found["stride"].max()
        yield found

    def lists(self) -> Iterator[dict[str, Array]]:
        """Yield file, offset, and bytes where they may differ, of each record's fields, piece by piece."""
        started, rest = self._started, self._rest
        self._started, self._rest = [], None
        yield from started
        yield from self._pieces() if rest is None else rest

    def _pieces(self) -> Iterator[dict[str, Array]]:
        samples = 0
        for records in filter(len, self._source.scan()):
            lists = {"file": records.file}
            for name, column in self._source.columns(records, self._schema.fields).items():
                lists[f"{name}.offset"] = column.offset
                if column.size is not None:
                    lists[f"{name}.{'stored' if column.encoded else 'size'}"] = column.size
            samples += len(records)
            yield lists
        if samples != self._schema.samples:
            folder = self._source.maps.files[0].parent
            raise corrupt(folder, f"{self._schema.samples} samples", samples)


def _entry(lists: Mapping[str, Array], first: int) -> dict[str, int] | None:
    """Return the chunk of a piece's records; None if they are not of one layout at one stride."""
    fixed = f"{WHOLE}.size"
    if any(name.endswith((".stored", ".size")) and name != fixed for name in lists):
        return None
    strides = set[int]()
    for name, values in lists.items():
        steps = np.diff(values)
        if name in ("file", fixed):
            if steps.any():
                return None
        elif len(steps):
            if (steps != steps[0]).any():
                return None
            strides.add(int(steps[0]))
    if len(strides) > 1 or (strides and min(strides) <= 0):
        return None
    entry = {"first": first, "stride": strides.pop() if strides else 0}
    return entry | {name: int(values[0]) for name, values in lists.items()}


def _alike(one: Mapping[str, int], other: Mapping[str, int]) -> bool:
    """Return whether two chunks have one layout; that of a single record may have any stride."""
    places = [name for name in one if name.endswith(".offset")]
    within = [{name: entry[name] - entry[places[0]] for name in places} for entry in (one, other)]
    size = f"{WHOLE}.size"
    known = {entry["stride"] for entry in (one, other)} - {0}
    return within[0] == within[1] and one.get(size) == other.get(size) and len(known) <= 1


def _continues(chunk: Mapping[str, int], count: int, entry: Mapping[str, int]) -> bool:
    """Return whether a chunk of the same layout begins where one of `count` records ends."""
    stride = chunk["stride"]
    return (
        chunk["file"] == entry["file"]
        and entry["stride"] in (0, stride)
        and all(entry[name] == chunk[name] + stride * count for name in chunk if name.endswith(".offset"))
    )


def _expanded(entry: Mapping[str, int], count: int) -> dict[str, Array]:
    rows = np.arange(count)
    return {
        name: value + entry["stride"] * rows if name.endswith(".offset") else np.full(count, value)
        for name, value in entry.items()
        if name not in ("first", "stride")
    }


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
        return Decoder(scaled.decode, lambda path, stored, row, out: scaled(path, stored, out))
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
