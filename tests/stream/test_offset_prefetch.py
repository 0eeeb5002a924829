"""Offsets of an epoch's rows computed ahead: right for its own rows, unknown for others."""

import threading
import time

import numpy as np
import pytest

from iobench.formats import Field, Listed, Schema
from iobench.loading.order import Order
from iobench.stream import cached_reader
from iobench.stream.cached_reader import CachedReader, OffsetPrefetch
from iobench.stream.views import joined_view

SAMPLES = 1000


def batches_of(kind="random", batch_size=7):
    return list(Order(kind, batch_size, block_rows=5, window_batches=3).batches(SAMPLES, 0))


def squares(rows):
    return rows * rows


def finished(prefetch, batches, name="x"):
    """Wait until the offsets of the last batch are known."""
    end = time.monotonic() + 20
    while prefetch.of(name, batches[-1]) is None:
        assert time.monotonic() < end
        time.sleep(1e-3)
    return prefetch


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(cached_reader, "PIECE_ROWS", 64)
    monkeypatch.setattr(cached_reader, "LEAST_ROWS", 64)


@pytest.mark.parametrize("kind", ["random", "block"])
@pytest.mark.parametrize("start", [0, 5])
def test_offsets_of_batches_and_of_joined_batches_are_right(kind, start):
    batches = batches_of(kind)[start:]
    result = finished(OffsetPrefetch({"x": squares, "y": np.negative}, batches), batches, "y")
    for rows in (*batches, joined_view(batches[2:9]), joined_view(batches)):
        np.testing.assert_array_equal(result.of("x", rows), squares(rows))
        np.testing.assert_array_equal(result.of("y", rows), -rows)


def test_offsets_of_rows_outside_the_epoch_are_unknown():
    batches = batches_of()
    result = finished(OffsetPrefetch({"x": squares}, batches[3:]), batches)
    others = (
        batches[2],
        batches[5].copy(),
        batches[5][::2],
        batches_of()[5],
        np.arange(5),
        joined_view(batches[1:6]),
    )
    assert [result.of("x", rows) for rows in others] == [None] * len(others)


def test_offsets_not_yet_computed_are_not_awaited():
    begun, go_on = threading.Event(), threading.Event()

    def slow(rows):
        if rows[0] != batches[0][0]:
            begun.set()
            go_on.wait()
        return squares(rows)

    batches = batches_of()
    result = OffsetPrefetch({"x": slow}, batches)
    begun.wait()
    np.testing.assert_array_equal(result.of("x", batches[0]), squares(batches[0]))
    assert result.of("x", batches[20]) is None
    go_on.set()
    np.testing.assert_array_equal(finished(result, batches).of("x", batches[20]), squares(batches[20]))


def test_it_can_be_stopped_early():
    calls = []

    def slow(rows):
        calls.append(len(rows))
        time.sleep(0.02)
        return rows

    threads = threading.active_count()
    result = OffsetPrefetch({"x": slow}, batches_of())
    result.stop()
    assert len(calls) < SAMPLES // 64
    assert threading.active_count() == threads


def test_an_error_while_locating_is_left_to_the_gathering_thread(recwarn):
    begun = threading.Event()

    def broken(rows):
        begun.set()
        raise OSError("gone")

    batches = batches_of()
    result = OffsetPrefetch({"x": broken}, batches)
    assert begun.wait(20)
    result.stop()
    assert result.of("x", batches[0]) is None
    assert not recwarn.list  # pytest would warn about a thread that ends by an error


@pytest.mark.parametrize(
    "batches", [[], [slice(0, 5), slice(5, 9)], [np.arange(5), np.arange(5)]], ids=["none", "slices", "apart"]
)
def test_without_rows_to_locate_there_is_no_thread(batches):
    threads = threading.active_count()
    result = OffsetPrefetch({"x": lambda rows: time.sleep(1)}, batches)
    assert threading.active_count() == threads
    result.stop()


def test_few_rows_are_located_while_gathering(monkeypatch):
    monkeypatch.setattr(cached_reader, "LEAST_ROWS", SAMPLES + 1)
    threads = threading.active_count()
    OffsetPrefetch({"x": lambda rows: time.sleep(1)}, batches_of())
    assert threading.active_count() == threads


def test_more_rows_than_fit_in_memory_are_located_while_gathering(monkeypatch):
    monkeypatch.setattr(cached_reader, "MAX_LISTED", SAMPLES - 1)
    threads = threading.active_count()
    OffsetPrefetch({"x": lambda rows: time.sleep(1)}, batches_of())
    assert threading.active_count() == threads


@pytest.mark.parametrize("uneven", [0, 1], ids=["elements", "any byte"])
def test_a_reader_gathers_by_prefetched_offsets(tmp_path, uneven, monkeypatch):
    made, requested, known = [], [], OffsetPrefetch.of

    class Noting(OffsetPrefetch):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

        def of(self, name, part):
            requested.append(known(self, name, part))
            return requested[-1]

    monkeypatch.setattr(cached_reader, "OffsetPrefetch", Noting)
    width = 8
    gap = np.arange(SAMPLES)[::-1] * uneven
    rows = np.random.default_rng(0).integers(0, 256, (SAMPLES, width), dtype=np.uint8)
    offsets = np.arange(SAMPLES)[::-1] * width
    (tmp_path / "x").write_bytes((b"\xa5" * uneven).join(row.tobytes() for row in rows[::-1]))
    place = Listed((tmp_path / "x",), np.zeros(SAMPLES, np.int64), offsets + gap)
    batches = batches_of()
    with CachedReader(Schema(SAMPLES, (Field("x", (width,), "uint8"),)), {"x": place}, False) as reader:
        reader.read_ahead(batches)
        finished(made[-1], batches)
        requested.clear()
        for batch in batches:
            np.testing.assert_array_equal(reader.batch(batch)["x"], rows[batch])
    assert len(requested) == len(batches)
    assert all(result is not None for result in requested)
