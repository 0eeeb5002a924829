"""Rows by their locations in files: locations beyond a file are an error, not other bytes."""

import numpy as np
import pytest

from iobench.base.errors import CorruptArtifact
from iobench.contrib.formats.shared.placed_reader import FieldLocations, Maps, PlacedReader
from iobench.formats import Field, Listed, ListedSpans, Schema

FIXED = Schema(3, (Field("x", (4,), "uint8"),))
RAGGED = Schema(3, (Field("x", (-1,), "uint8"),), totals={"x": 12})


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(bytes(range(12)))
    return path


def reader_of(schema, file, offsets, sizes=(4, 4, 4)):
    number, offset = np.zeros(3, np.int64), np.array(offsets)
    place = Listed((file,), number, offset)
    if schema is RAGGED:
        place = ListedSpans((file,), number, offset, np.array(sizes))
    return PlacedReader(schema, Maps([file]), lambda load_or_build: FieldLocations({"x": place}))


@pytest.mark.parametrize("schema", [FIXED, RAGGED])
def test_rows_are_those_at_their_locations(file, schema):
    with reader_of(schema, file, [8, 0, 4]) as reader:
        for row, begin in enumerate((8, 0, 4)):
            assert reader.sample(row)["x"].tolist() == list(range(begin, begin + 4))


@pytest.mark.parametrize(
    ("schema", "offset", "size"),
    [(FIXED, -1, 4), (FIXED, 9, 4), (RAGGED, -1, 4), (RAGGED, 9, 4), (RAGGED, 4, -4)],
)
def test_locations_beyond_the_file_are_corrupt(file, schema, offset, size):
    with reader_of(schema, file, [0, offset, 4], [4, size, 4]) as reader:
        for read in (lambda: reader.sample(1), lambda: reader.batch(np.array([1, 0]))):
            with pytest.raises(CorruptArtifact):
                read()
