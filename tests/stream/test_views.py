"""Batches in stored order are views of private maps; others in memory are gathered by the consumer."""

import itertools
import os
import shutil
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import image_arrays
from kinds import kind
from stream_cases import (
    SAMPLES,
    VECTORS,
    assert_batches,
    assert_nothing_left,
    data_file,
    in_child,
    labels,
    loader,
    our_threads,
    rows_of,
    vector_arrays,
)

from iobench.base.errors import CorruptArtifact
from iobench.host import page_cache
from iobench.stream import consumer_delivery
from iobench.stream.cached_reader import CachedReader
from iobench.stream.gather import Elements
from iobench.testing.loaders import files_in_use

pytest_plugins = ("stream_fixtures",)

every_view = pytest.mark.parametrize("name", ["npy", "memmap", "hdf5:chunk_bytes=0"])
SOURCE = image_arrays(SAMPLES)


@every_view
def test_a_batch_is_no_copy_unless_it_is_asked_for_and_outlives_the_loader(pictures, name):
    for copy in (False, True):
        one = loader(pictures, name, copy=copy)
        held = list(one)
        one.close()
        assert bool(files_in_use(pictures.root)) != copy
        assert_batches(held, SOURCE, rows_of("sequential"))
        del held, one
        assert_nothing_left(pictures.root)


def test_batches_across_two_chunks_are_copied_and_those_within_one_are_views(vectors):
    one = loader(vectors, "hdf5", batch_size=25)
    held = list(one)
    one.close()
    assert files_in_use(vectors.root)
    assert_batches(held, vector_arrays(), rows_of("sequential", samples=VECTORS, batch_size=25))
    own = [batch["x"].untyped_storage().nbytes() == batch["x"].nbytes for batch in held]
    assert 0 < sum(own) < len(held) // 4


@pytest.mark.parametrize("warm", [True, False])
def test_a_file_that_is_cut_under_a_batch_is_named_by_the_next_one(monkeypatch, own_vectors, warm):
    root, file = own_vectors
    monkeypatch.setattr(page_cache, "residency", lambda files, sampled: float(warm))

    def cut():
        batches = iter(loader(root, "npy", batch_size=16))
        held = next(batches)
        os.truncate(file, 4096)
        lost = held["x"].sum()
        with pytest.raises(CorruptArtifact, match=str(file), check=kind("changed")):
            list(batches)
        assert our_threads() == []
        return float(lost)

    in_child(cut)


@pytest.fixture
def own_vectors(vectors, tmp_path):
    """Copy the npy variant of `vectors` for a test that damages it; return the folder and the large file."""
    shutil.copytree(vectors.path_of("npy"), tmp_path / vectors.path_of("npy").name)
    shutil.copy(vectors.root / "manifest.json", tmp_path)
    return tmp_path, data_file(tmp_path, "npy")


def test_cold_files_are_read_into_the_page_cache_ahead_of_their_views(own_vectors):
    root, file = own_vectors
    page_cache.evict([file])
    one = loader(root, "npy", batch_size=64)
    assert_batches(one, vector_arrays(), rows_of("sequential", samples=VECTORS, batch_size=64))
    assert page_cache.residency([file]) == 1


@pytest.mark.parametrize("name", ["npy", "lmdb", "hdf5"])
@pytest.mark.parametrize("order", ["random", "block"])
@pytest.mark.usefixtures("always_warm")
def test_rows_in_memory_are_gathered_in_groups(monkeypatch, vectors, name, order):
    monkeypatch.setattr(consumer_delivery, "GROUP_BYTES", 750 * 4008)
    one = loader(vectors, name, order=order, batch_size=250)
    for epoch in range(2):
        rows = rows_of(order, epoch, samples=VECTORS, batch_size=250)
        assert_batches(one, vector_arrays(), rows)


@pytest.mark.parametrize(("worked", "ahead"), [(1_000_000, 0), (0, 2)])
@pytest.mark.usefixtures("always_warm")
def test_the_thread_gathers_only_while_the_consumer_sleeps(monkeypatch, vectors, worked, ahead):
    """Each look at the clocks is a millisecond after the one before, of which it `worked` so long."""
    clocks = {"perf_counter_ns": itertools.count(0, 1_000_000), "thread_time_ns": itertools.count(0, worked)}
    monkeypatch.setattr(consumer_delivery, "GROUP_BYTES", 1)
    monkeypatch.setattr(
        consumer_delivery, "time", SimpleNamespace(**{n: c.__next__ for n, c in clocks.items()})
    )
    threads, gather = [], CachedReader.gather

    def noting(self, rows, out, alone):
        threads.append(threading.current_thread().name)
        gather(self, rows, out, alone)

    monkeypatch.setattr(CachedReader, "gather", noting)
    one = loader(vectors, "npy", order="random", batch_size=1024)
    assert_batches(one, vector_arrays(), rows_of("random", samples=VECTORS, batch_size=1024))
    assert threads == ["MainThread"] * (4 - ahead) + ["iobench-stream-0"] * ahead


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.usefixtures("always_warm")
def test_torch_s_threads_are_used_where_they_are_faster_and_only_there(monkeypatch, vectors, busy):
    clock, ways, gather = itertools.count(), [], CachedReader.gather

    def timed(self, rows, out, alone):
        ways.append(alone)
        for _ in range(1 if alone == busy else 100):
            next(clock)
        gather(self, rows, out, alone)

    monkeypatch.setattr(consumer_delivery, "GROUP_BYTES", 1)
    clocks = SimpleNamespace(perf_counter_ns=clock.__next__, thread_time_ns=lambda: 0)
    monkeypatch.setattr(consumer_delivery, "time", clocks)
    monkeypatch.setattr(CachedReader, "gather", timed)
    assert sum(len(batch["y"]) for batch in loader(vectors, "npy", order="random", batch_size=16)) == VECTORS
    assert len(ways) == VECTORS // 16
    assert 1 <= ways.count(not busy) <= 5  # at first, or in one try
    assert {*ways[-50:]} == {busy}


def test_a_forked_child_gathers_what_its_parent_gathered_by_several_threads(vectors):
    one = loader(vectors, "npy", order="random", batch_size=2048)
    assert len(labels(one)) == 2
    expected = rows_of("random", 1, samples=VECTORS, batch_size=2048)
    assert in_child(lambda: labels(one)) == [rows.tolist() for rows in expected]


@pytest.mark.parametrize("width", [512, 12, 10, 7])
def test_words_of_any_size_are_gathered(width):
    rows = np.random.default_rng(0).integers(0, 256, (50, width), np.uint8)
    out, numbers = np.zeros((3, width), np.uint8), np.array([49, 0, 7])
    Elements(rows).in_torch(numbers, out)
    assert (out == rows[numbers]).all()
