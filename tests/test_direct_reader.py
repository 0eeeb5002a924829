"""Reads past the page cache return the rows of the file, at any offset and into any memory."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from conftest import open_files, require_disk
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kinds import kind

from iobench.base.errors import CorruptArtifact
from iobench.formats import DTYPES, Field, Schema, Strided
from iobench.formats.placement import sorted_by
from iobench.formats.schema import numpy_dtype
from iobench.host import io_engines
from iobench.host.memory import PAGE, touched_array
from iobench.stream import direct_reader
from iobench.stream.direct_reader import PIECE_BYTES, DirectReader, pieces_of

SIZE = (12 << 20) + 77
GUARD = 0xA5
LARGE = (PIECE_BYTES - 8, PIECE_BYTES, PIECE_BYTES + PAGE, 2 * PIECE_BYTES + 1528)  # bytes of a row


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Return a file of random bytes, in which tests lay out fields."""
    folder = tmp_path_factory.mktemp("direct")
    require_disk(folder)
    path = folder / "file"
    path.write_bytes(np.random.default_rng(3).bytes(SIZE))
    return path


@pytest.fixture(scope="module", autouse=True)
def _no_field_is_small():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(direct_reader, "SMALL_BYTES", 0)
        yield


@cache
def content(path):
    return np.fromfile(path, np.uint8)


class Placed:
    """One field `x` over a range of a file, and its rows."""

    def __init__(self, path, offset, stride, dtype="uint8", samples=None):
        item = numpy_dtype(dtype).itemsize
        stride = max(item, stride // item * item)
        fits = (path.stat().st_size - offset) // stride
        self.samples = fits if samples is None else min(samples, fits)
        self.schema = Schema(self.samples, (Field("x", (stride // item,), dtype),))
        self.places = {"x": Strided((path,), offset, stride)}
        self.rows = content(path)[offset:][: self.samples * stride].reshape(self.samples, stride)
        self.item = item

    def open(self):
        return DirectReader(self.schema, self.places)

    def read(self, reader, rows, page_offset):
        """Read the rows to byte `page_offset` of a page, and check that nothing else was written."""
        index = np.arange(self.samples)[rows]
        count = len(index) * self.rows.shape[1]
        memory = touched_array(PAGE + page_offset + count + PAGE)
        memory[:] = GUARD
        field = self.schema.fields[0]
        out = memory[PAGE + page_offset :][:count].view(field.dtype).reshape(len(index), *field.shape)
        reader.read(rows, {"x": out})
        assert (memory[: PAGE + page_offset] == GUARD).all()
        assert (memory[PAGE + page_offset + count :] == GUARD).all()
        return out.reshape(-1).view(np.uint8).reshape(len(index), self.rows.shape[1])


@st.composite
def layouts(draw):
    """Draw a field's place: any stride at any offset, up to the end of the file or not."""
    stride = draw(st.one_of(st.integers(1, 20_000), st.sampled_from(LARGE)))
    offset = draw(st.integers(0, 3 * PAGE))
    return offset, stride, draw(st.sampled_from(DTYPES)), draw(st.one_of(st.none(), st.integers(1, 400)))


def phases(reader, row, item):
    """Draw the offset of memory in its page: that of the file, and others."""
    return {reader.page_offset("x", row), 0, 3 * item % PAGE, PAGE - item}


@settings(deadline=None, max_examples=60)
@given(layout=layouts(), data=st.data())
def test_slices_are_those_of_the_file(file, layout, data):
    placed = Placed(file, *layout)
    start = data.draw(st.integers(0, placed.samples - 1))
    most = min(placed.samples, start + max(1, (1 << 20) // placed.rows.shape[1]))
    stop = data.draw(st.integers(start, most))
    with placed.open() as reader:
        for page_offset in phases(reader, start, placed.item):
            result = placed.read(reader, slice(start, stop), page_offset)
            np.testing.assert_array_equal(result, placed.rows[start:stop])


@settings(deadline=None, max_examples=60)
@given(layout=layouts(), data=st.data())
def test_rows_are_those_of_the_file_in_any_order_and_any_number_of_times(file, layout, data):
    placed = Placed(file, *layout)
    most = min(200, max(1, (1 << 20) // placed.rows.shape[1]))
    near = data.draw(st.integers(0, placed.samples - 1))  # so that some are neighbors
    number = st.one_of(
        st.integers(0, placed.samples - 1), st.integers(near, min(near + 9, placed.samples - 1))
    )
    rows = np.array(data.draw(st.lists(number, max_size=most)), np.int64)
    with placed.open() as reader:
        for page_offset in (0, placed.item):
            np.testing.assert_array_equal(placed.read(reader, rows, page_offset), placed.rows[rows])


@pytest.mark.parametrize("stride", [1, 7, 512, 3001, PAGE, 20_000, PIECE_BYTES - 8, PIECE_BYTES, 3 << 20])
def test_all_rows_at_once_are_right_in_order_and_shuffled(file, stride):
    placed = Placed(file, 4099, stride, samples=40_000)
    shuffled = np.random.default_rng(4).permutation(placed.samples)
    with placed.open() as reader:
        for rows in (slice(0, placed.samples), np.arange(placed.samples), shuffled):
            np.testing.assert_array_equal(placed.read(reader, rows, 0), placed.rows[rows])


def test_fields_are_read_from_their_own_files_and_any_of_them_alone(file, tmp_path):
    other = tmp_path / "other"
    other.write_bytes(np.random.default_rng(5).bytes(SIZE))
    x, y = Placed(file, 80, 3001, samples=300), Placed(other, 5, 8, samples=300)
    schema = Schema(300, (*x.schema.fields, Field("y", (8,), "uint8")))
    rows = np.array([299, 0, 7, 7, 150])
    with DirectReader(schema, {"x": x.places["x"], "y": y.places["x"]}) as reader:
        result = reader.batch(rows)
        np.testing.assert_array_equal(result["x"], x.rows[rows])
        np.testing.assert_array_equal(result["y"], y.rows[rows])
        out = np.empty((5, 8), np.uint8)
        reader.read(rows, {"y": out})
        np.testing.assert_array_equal(out, y.rows[rows])


def test_memory_that_begins_as_the_file_does_takes_whole_pages_without_a_copy(file, monkeypatch):
    placed = Placed(file, 132, 400, "float32")
    monkeypatch.delattr(DirectReader, "_copy_pages")
    with placed.open() as reader:
        for start in (0, 1, 1000):
            result = placed.read(reader, slice(start, start + 5000), reader.page_offset("x", start))
            np.testing.assert_array_equal(result, placed.rows[start : start + 5000])


def test_memory_never_begins_within_an_element(file):
    placed = Placed(file, 131, 400, "float32")
    with placed.open() as reader:
        assert {reader.page_offset("x", row) % 4 for row in range(100)} == {0}


def test_small_fields_are_read_once_and_are_right(file, monkeypatch, tmp_path):
    path = tmp_path / "small"
    path.write_bytes(file.read_bytes()[:100_000])
    placed = Placed(path, 1000, 30)
    monkeypatch.setattr(direct_reader, "SMALL_BYTES", 100_000)
    with placed.open() as reader:
        path.unlink()
        assert (open_files(path), reader.page_offset("x", 7)) == (0, 0)
        for rows in (slice(3, 700), np.array([9, 9, 0, placed.samples - 1])):
            np.testing.assert_array_equal(placed.read(reader, rows, 0), placed.rows[rows])
    with pytest.raises(ValueError, match="closed"):
        reader.batch(slice(0, 1))


@pytest.mark.parametrize("stride", [100, 6000, 2 * PIECE_BYTES])
@pytest.mark.parametrize("way", ["as the file lies", "anywhere", "row by row"])
def test_a_truncated_file_is_corrupt_and_its_rest_is_read(file, tmp_path, stride, way):
    path = tmp_path / "truncated"
    path.write_bytes(file.read_bytes())
    placed = Placed(path, 60, stride)
    with placed.open() as reader:
        cut = placed.samples // 2
        os.truncate(path, 60 + cut * stride + stride // 2)
        begin = max(0, cut - 90)
        for stop, left in ((cut, True), (cut + 1, False), (min(cut + 90, placed.samples), False)):
            rows = slice(begin, stop) if way != "row by row" else np.arange(begin, stop)[::-1]
            page_offset = reader.page_offset("x", begin) if way == "as the file lies" else 8
            if left:
                np.testing.assert_array_equal(placed.read(reader, rows, page_offset), placed.rows[rows])
                continue
            with pytest.raises(CorruptArtifact, check=kind("truncated", path=path)):
                placed.read(reader, rows, page_offset)


def test_a_small_field_of_a_truncated_file_is_corrupt_and_leaves_nothing_open(file, monkeypatch, tmp_path):
    path = tmp_path / "truncated"
    path.write_bytes(file.read_bytes()[:10_000])
    placed = Placed(path, 0, 10)
    os.truncate(path, 5_000)
    monkeypatch.setattr(direct_reader, "SMALL_BYTES", 100_000)
    with pytest.raises(CorruptArtifact, check=kind("truncated", path=path)):
        placed.open()
    assert open_files(path) == 0


def test_where_one_file_cannot_be_read_no_other_stays_open(file, tmp_path):
    placed = Placed(file, 0, 100)
    schema = Schema(10, (*placed.schema.fields, Field("y", (), "uint8")))
    with pytest.raises(FileNotFoundError):
        DirectReader(schema, {**placed.places, "y": Strided((tmp_path / "nothing",), 0, 1)})
    assert open_files(file) == 0


@pytest.fixture
def queues(monkeypatch):
    """Return the open queues."""
    result = set()

    class Counted(io_engines.ReadQueue):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            result.add(self)

        def close(self):
            super().close()
            result.discard(self)

    monkeypatch.setattr(direct_reader, "ReadQueue", Counted)
    return result


READS = (slice(0, 9), slice(100, 3000), np.array([5, 3, 3]))


def test_several_threads_read_right_at_once_and_nothing_is_open_after_close(file, queues):
    placed = Placed(file, 77, 3001)
    reader = placed.open()

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(15):
            rows = rng.integers(0, placed.samples, 200)
            np.testing.assert_array_equal(placed.read(reader, rows, 0), placed.rows[rows])
            start = int(rng.integers(0, placed.samples - 300))
            several = slice(start, start + 300)
            result = placed.read(reader, several, reader.page_offset("x", start))
            np.testing.assert_array_equal(result, placed.rows[several])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))
    assert open_files(file) == 1
    assert queues
    reader.close()
    reader.close()
    assert open_files(file) == 0
    assert not queues


@pytest.mark.parametrize("rows", READS)
def test_a_read_from_a_closed_reader_is_a_value_error_and_opens_no_queue(file, queues, rows):
    placed = Placed(file, 77, 3001)
    reader = placed.open()
    reader.close()
    with pytest.raises(ValueError, match="closed"):
        reader.batch(rows)
    assert not queues


def test_a_read_that_fails_leaves_a_reader_that_works(file, monkeypatch):
    placed = Placed(file, 77, 3001)
    with placed.open() as reader:
        with monkeypatch.context() as patched:
            patched.setattr(io_engines.LibaioEngine, "collect", failing(io_engines.LibaioEngine.collect))
            patched.setattr(
                io_engines.ThreadPoolEngine, "collect", failing(io_engines.ThreadPoolEngine.collect)
            )
            for rows in (slice(0, 1000), np.array([900, 3, 3])):
                with pytest.raises(OSError, check=lambda error: error.errno == errno.EIO):
                    reader.batch(rows)
        for rows in (slice(0, 1000), np.array([900, 3, 3])):
            np.testing.assert_array_equal(placed.read(reader, rows, 0), placed.rows[rows])


def failing(collect):
    return lambda flight, least: [(slot, -5) for slot, _ in collect(flight, least)]


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=300))
@example([0, 0])
@example([2**16, 2**16 - 1, 2**32, 2**48])
def test_rows_are_sorted_as_by_a_stable_sort(rows):
    rows = np.array(rows, np.int64)
    np.testing.assert_array_equal(sorted_by(rows), np.argsort(rows, kind="stable"))


@settings(deadline=None)
@given(
    stride=st.integers(1, PIECE_BYTES - 1),
    offset=st.integers(0, 2 * PAGE),
    rows=st.one_of(
        st.lists(st.integers(0, 3000), min_size=1, max_size=100).map(sorted),
        st.builds(range, st.integers(0, 99), st.integers(100, 3000)),  # a block of neighbors
    ),
)
def test_reads_cover_every_row_within_their_size_and_nothing_between_rows(stride, offset, rows):
    starts = offset + np.array(rows, np.int64) * stride
    low, high = starts // PAGE * PAGE, -(-(starts + stride) // PAGE) * PAGE
    first = pieces_of(low, high)
    last = np.append(first[1:], len(low)) - 1
    assert first[0] == 0
    assert (np.diff(first) > 0).all()
    assert (high[last] - low[first] <= PIECE_BYTES + stride + 2 * PAGE).all()
    gaps = np.flatnonzero(low[1:] > high[:-1]) + 1
    assert set(gaps) <= set(first)
    for begin, end in pairwise([0, *gaps.tolist(), len(low)]):
        if high[end - 1] - low[begin] <= PIECE_BYTES:
            assert ((first >= begin) & (first < end)).sum() == 1
