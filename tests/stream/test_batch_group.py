"""Groups of batches: their rows in one piece, read by several threads, each piece once."""

import itertools
import threading
from itertools import pairwise

import numpy as np
import pytest
from conftest import image_arrays
from stream_cases import SAMPLES, assert_batches, every_order, loader, rows_of

from iobench.loading.order import ORDERS, Order
from iobench.stream import pipeline
from iobench.stream.cached_reader import CachedReader
from iobench.stream.pipeline import BatchGroup, joined

pytest_plugins = ("stream_fixtures",)

ROWS = np.arange(100)[::-1].copy()


@pytest.mark.parametrize(
    "group",
    [
        *([*Order(kind, 7, block_rows=3, window_batches=2).batches(100, 0)][3:9] for kind in ORDERS),
        [ROWS[5:9], ROWS[0:5], ROWS[0:10:2]],
        [slice(3, 5), slice(7, 9), slice(10, 11)],  # of several ranks
    ],
)
def test_batches_are_joined_to_one_slice_or_to_their_rows(group):
    rows, every = joined(group), np.arange(100)
    assert every[rows].tolist() == [row for batch in group for row in every[batch]]
    adjacent = isinstance(group[0], slice) and all(one.stop == other.start for one, other in pairwise(group))
    assert isinstance(rows, slice) == adjacent


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


@every_order
@pytest.mark.usefixtures("always_warm")
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


@pytest.mark.usefixtures("always_warm")
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
