"""The seam of records: a format of fixed records with a header is a few lines, and reads as any other."""

import gzip
import struct
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from kinds import has, refused_as

from iobench import formats
from iobench.base.errors import CorruptArtifact, UnsupportedSchema, corrupt
from iobench.contrib.formats.shared.mapped_files import Maps
from iobench.contrib.formats.shared.records import (
    Column,
    Decoder,
    RecordFormat,
    RecordReader,
    Records,
    RecordSource,
)
from iobench.formats import Chunked, Field, Listed, ListedSpans, Schema, Strided, raw_bytes
from iobench.testing.cases import assert_rows, assert_same, store
from iobench.testing.placements import assert_placements

MAGIC, HEAD = b"FIXD", struct.Struct("<4sI8s")  # magic, bytes of a record, what the records hold
SCHEMA = Schema(5, (Field("x", (3,), "float32"), Field("label", (), "int64")))


class FixedFiles(RecordSource):
    """Files of records of one size behind a header; records are preceded by their number as u32."""

    def __init__(self, path):
        self.maps = Maps(sorted(path.glob("*.fixed")))

    def scan(self):
        first = 0
        for number, path in enumerate(self.maps.files):
            magic, size, _ = HEAD.unpack_from(self.maps[number].data)
            count, rest = divmod(len(self.maps[number]) - HEAD.size, max(1, size))
            if magic != MAGIC or rest:
                raise corrupt(path, f"records of {size} bytes", f"{rest} bytes behind the last")
            begin = HEAD.size + size * np.arange(count)
            yield Records(self.maps, np.full(count, number), begin, np.full(count, size), first)
            first += count

    def columns(self, records, fields, thorough=False):
        at, columns = 4, {}
        for field in fields:
            columns[field.name] = Column(records.offset + at)
            at += field.sample_bytes
        if at != int(records.length[0]):
            raise corrupt(records.path(0), f"records of {at} bytes", int(records.length[0]))
        return columns


@dataclass(frozen=True)
class FixedRecords(RecordFormat):
    name: ClassVar[str] = "fixed"
    summary: ClassVar[str] = "records of one size behind a header"
    library: ClassVar[str] = "numpy"

    def write(self, path, schema, batches):
        path.mkdir()
        row = 0
        for number, batch in enumerate(filter(lambda one: len(one["x"]), batches)):
            rows = np.arange(row, row + len(batch["x"]), dtype="<u4")
            columns = [
                np.frombuffer(raw_bytes(one), np.uint8).reshape(len(rows), -1)
                for one in (rows, *batch.values())
            ]
            table = np.concatenate(columns, 1)
            head = HEAD.pack(MAGIC, table.shape[1], b"samples")
            (path / f"{number:03}.fixed").write_bytes(head + table.tobytes())
            row += len(rows)

    def source(self, path, schema=None):
        return FixedFiles(path)


def test_a_format_of_fixed_records_follows_from_where_they_lie(tmp_path):
    artifact = store(FixedRecords(), tmp_path / "a", SCHEMA)
    assert FixedRecords().infer_schema(artifact.path, SCHEMA.fields) == SCHEMA
    with artifact.open() as reader:
        assert_rows(reader.batch(np.array([4, 0, 2])), artifact.source, np.array([4, 0, 2]))
        assert_placements(reader, artifact.source)
        places = reader.placement()
        assert not any(isinstance(place, Listed) for place in places.values())


def test_records_of_another_size_and_other_numbers_of_them_are_refused(tmp_path):
    artifact = store(FixedRecords(), tmp_path / "a", SCHEMA)
    with pytest.raises(CorruptArtifact), FixedRecords().open(artifact.path, Schema(6, SCHEMA.fields)) as one:
        one.batch(slice(None))
    with pytest.raises(CorruptArtifact):
        FixedRecords().infer_schema(artifact.path, SCHEMA.fields[:1])


class Laid(RecordSource):
    """Records of bytes at given offsets of one file."""

    def __init__(self, path, pieces, encoded=False):
        self.maps, self.pieces, self.encoded = Maps([path]), pieces, encoded

    def scan(self):
        first = 0
        for offsets, size in self.pieces:
            file, length = np.zeros(len(offsets), np.int64), np.full(len(offsets), size)
            yield Records(self.maps, file, np.array(offsets), length, first)
            first += len(offsets)

    def columns(self, records, fields, thorough=False):
        (field,) = fields
        size = records.length if self.encoded or field.is_ragged else None
        return {field.name: Column(records.offset, size, self.encoded, int(records.length.sum()))}

    def decoder(self, field):
        return Decoder(lambda path, stored: np.frombuffer(stored, np.uint8)[::-1])


@dataclass(frozen=True)
class OneSource(FixedRecords):
    def source(self, path, schema=None):
        return Laid(path, *PIECES[path.suffix])


PIECES = {
    ".even": ([([0, 4, 8], 2), ([12, 16], 2), ([20], 2)],),
    ".apart": ([([0, 4, 8], 2), ([20, 24], 2), ([32], 2)],),
    ".odd": ([([0, 4, 8], 2), ([20, 23, 29], 2)],),  # in the second piece
    ".strides": ([([0], 2), ([4, 8], 2), ([20, 26, 32], 2)],),
    ".coded": ([([0, 4, 8], 2), ([20, 23, 29], 2)], True),
}


@pytest.mark.parametrize("suffix", PIECES)
@pytest.mark.parametrize("shape", [(2,), (-1,)])
def test_the_index_is_as_small_as_the_layout_allows(tmp_path, suffix, shape):
    path, offsets = tmp_path / f"a{suffix}", [at for piece, _ in PIECES[suffix][0] for at in piece]
    path.write_bytes(bytes(range(40)))
    schema = OneSource().infer_schema(path, (Field("x", shape, "uint8"),))
    with OneSource().open(path, schema) as reader:
        rows = [reader.sample(row)["x"].tolist() for row in range(6)]
        place = reader.placement().get("x")
        batch = reader.batch(np.array([5, 0]))["x"]
    step = -1 if suffix == ".coded" else 1
    assert rows == [[at, at + 1][::step] for at in offsets]
    assert_same(getattr(batch, "values", batch).reshape(-1), np.array(rows[5] + rows[0], np.uint8))
    expected = {".even": Strided, ".apart": Chunked}.get(suffix, Listed)
    assert type(place) is (type(None) if suffix == ".coded" else ListedSpans if shape == (-1,) else expected)


FIXED = Schema(3, (Field("x", (4,), "uint8"),))
RAGGED = Schema(3, (Field("x", (-1,), "uint8"),), totals={"x": 12})


@pytest.mark.parametrize(
    ("schema", "offset", "size"),
    [(FIXED, -1, 4), (FIXED, 9, 4), (RAGGED, -1, 4), (RAGGED, 9, 4), (RAGGED, 4, -4)],
)
def test_locations_beyond_the_file_are_corrupt(tmp_path, schema, offset, size):
    path = tmp_path / "a"
    path.write_bytes(bytes(range(12)))
    source = Laid(path, [([0], 4), ([offset], size), ([4], 4)])
    with RecordReader(source, schema) as reader:
        assert reader.sample(2)["x"].tolist() == [4, 5, 6, 7]
        for read in (lambda: reader.sample(1), lambda: reader.batch(np.array([1, 0]))):
            with pytest.raises(CorruptArtifact):
                read()


@pytest.mark.parametrize(
    ("name", "most"),
    [("mds", 1 << 32), ("litdata", 1 << 32), ("tfrecord", 3_000_000_000), ("recordio", 1 << 29)],
)
def test_samples_too_large_for_a_record_are_refused_before_anything_is_written(name, most):
    with refused_as("sample-too-large", UnsupportedSchema, match=rf"{most}.* video"):
        formats.get(name).check_schema(Schema(2, (Field("video", (most,), "uint8"),)))


@pytest.mark.parametrize(("name", "suffix"), [("webdataset", ".tar.gz"), ("tfrecord", ".tfrecord")])
def test_compressed_files_are_named(tmp_path, name, suffix):
    (tmp_path / f"a{suffix}").write_bytes(gzip.compress(bytes(1 << 20)))
    assert not formats.get(name).sniff(tmp_path)
    with refused_as("compressed", path=tmp_path / f"a{suffix}", hint=has()):
        formats.get(name).infer_schema(tmp_path)


class Apart(Laid):
    """Records of two numbers, which are one byte further apart in the second piece."""

    def columns(self, records, fields, thorough=False):
        return {"x": Column(records.offset), "y": Column(records.offset + (3 if records.first else 2))}


def test_records_of_another_layout_in_a_later_piece_are_listed(tmp_path):
    (tmp_path / "a").write_bytes(bytes(range(40)))
    schema = Schema(4, (Field("x", (), "uint8"), Field("y", (), "uint8")))
    with RecordReader(Apart(tmp_path / "a", [([0, 8], 8), ([16, 24], 8)]), schema) as reader:
        assert isinstance(reader.placement()["y"], Listed)
        assert reader.batch(slice(None))["y"].tolist() == [2, 10, 19, 27]
