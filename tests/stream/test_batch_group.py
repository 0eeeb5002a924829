"""Groups of batches: their rows in one piece, read by several threads, each piece once."""

import itertools
import threading

import numpy as np
import pytest
from conftest import image_arrays
from stream_cases import SAMPLES, assert_batches, every_order, loader, rows_of

from iobench.host import page_cache
from iobench.loading.order import Order
from iobench.stream import pipeline
from iobench.stream.cached_reader import CachedReader
from iobench.stream.pipeline import BatchGroup, joined

pytest_plugins = ("stream_fixtures",)

ROWS = np.arange(100)[::-1].copy()


@pytest.mark.parametrize("kind", ["random", "block"])
def test_an_epoch_s_batches_are_joined(kind):
    batches = list(Order(kind, 7, block_rows=3, window_batches=2).batches(100, 0))
    for low, high in ((0, 4), (3, 9), (11, 15)):
        assert (joined(batches[low:high]) == np.concatenate(batches[low:high])).all()


def test_batches_that_do_not_follow_each_other_are_joined_all_the_same():
    group = [ROWS[5:9], ROWS[0:5], ROWS[0:10:2]]
    assert joined(group).tolist() == [row for batch in group for row in batch.tolist()]


def test_slices_are_one_slice():
    assert joined([slice(3, 5), slice(5, 9)]) == slice(3, 9)


def test_slices_with_rows_of_another_rank_between_are_rows():
    assert joined([slice(3, 5), slice(7, 9), slice(10, 11)]).tolist() == [3, 4, 7, 8, 10]


@pytest.mark.parametrize("rows", [ROWS[:23], slice(40, 63)], ids=["rows", "slice"])
def test_each_piece_of_a_group_is_claimed_once_and_the_last_one_is_known(rows):
    group, slot = BatchGroup(rows, [10, 10, 3]), {"x": np.empty(23)}
    assert group.claim() == slice(0, 23)
    assert group.claim() is None  # until there is memory
    pieces = [group.divide(slot, 6)]
    while (piece := group.claim()) is not None:
        pieces.append(piece)
    assert [row for piece in pieces for row in range(23)[piece]] == list(range(23))
    assert max(piece.stop - piece.start for piece in pieces) <= 6
    parts = [group.part(piece) for piece in pieces]
    whole = np.concatenate([np.arange(100)[part] for part, _ in parts])
    assert whole.tolist() == np.arange(100)[rows].tolist()
    assert all(
        len(out["x"]) == piece.stop - piece.start for (_, out), piece in zip(parts, pieces, strict=True)
    )
    assert [group.is_last() for _ in pieces] == [False] * (len(pieces) - 1) + [True]


@pytest.fixture
def in_memory(monkeypatch):
    """Take the files for warm, also after a test that evicted them: cold ones are not read in pieces."""
    monkeypatch.setattr(page_cache, "residency", lambda files, sampled: 1.0)


@every_order
@pytest.mark.usefixtures("in_memory")
def test_the_consumer_s_thread_reads_pieces_too(monkeypatch, pictures, order):
    threads, read = set(), CachedReader.read

    def noting(self, rows, out):
        threads.add(threading.current_thread().name)
        read(self, rows, out)

    monkeypatch.setattr(CachedReader, "read", noting)
    monkeypatch.setattr(pipeline, "PIECE_BYTES", 1)
    one = loader(pictures, "npy", order=order, threads=2, copy=True)
    for epoch in range(3):
        assert_batches(one, image_arrays(SAMPLES), rows_of(order, epoch=epoch))
    assert "MainThread" in threads


@pytest.mark.usefixtures("in_memory")
def test_idle_threads_read_pieces_of_the_first_batch(monkeypatch, pictures):
    together, calls, read = threading.Barrier(2, timeout=30), itertools.count(), CachedReader.read

    def reading(self, rows, out):
        if next(calls) < 2:
            together.wait()
        read(self, rows, out)

    monkeypatch.setattr(CachedReader, "read", reading)
    monkeypatch.setattr(pipeline, "PIECE_BYTES", 1)
    one = loader(pictures, "npy", batch_size=SAMPLES, threads=2)
    ((batch,)) = one
    assert (batch["x"].numpy() == image_arrays(SAMPLES)["x"]).all()
