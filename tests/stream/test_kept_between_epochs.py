"""Open files, maps and memory that StreamLoader keeps from one completed epoch to the next."""

import gc
import os
import pickle
import resource
import sys
import threading
from pathlib import Path

import pytest
from conftest import image_arrays
from stream_cases import (
    SAMPLES,
    VECTORS,
    assert_batches,
    assert_nothing_left,
    data_file,
    either_order,
    every_order,
    every_variant,
    every_way,
    in_child,
    loader,
    our_threads,
    rows_of,
    vector_arrays,
)

from iobench.host import maps, page_cache
from iobench.loading import order as order_module
from iobench.loading.draws import KeyedPermutation
from iobench.stream import stream_loader
from iobench.testing.loaders import files_in_use

pytest_plugins = ("stream_fixtures",)

SOURCE = image_arrays(SAMPLES)
OPENING = ("open", "mmap.__new__")  # audited events


def map_addresses(folder):
    """Return where this process has mapped files below a folder."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted(line.split()[0] for line in lines if f"{folder.resolve()}/" in line)


def minor_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@every_way
@pytest.mark.usefixtures("real_direct")
def test_files_are_open_until_the_loader_is_closed_or_gone(pictures, name, direct):
    one = loader(pictures, name, direct=direct, order="random")
    list(one)
    assert files_in_use(pictures.root)
    assert our_threads()
    one.close()
    assert_nothing_left(pictures.root)
    assert_batches(one, SOURCE, rows_of("random", epoch=1))
    del one
    gc.collect()
    assert_nothing_left(pictures.root)


@every_order
@pytest.mark.usefixtures("always_warm")
def test_a_second_warm_epoch_touches_no_new_memory(vectors, order):
    def later_faults():
        one, source = loader(vectors, "npy", order=order, batch_size=64), vectors.files_of("npy")
        page_cache.warm(source)
        for _ in range(2):
            for _ in one:
                pass
        gc.freeze()  # a collection would write into what this child shares with its parent
        faults = []
        for _ in range(5):
            before = minor_faults()
            for _ in one:
                pass
            faults.append(minor_faults() - before)
        return min(faults)  # a memory of 1 MiB more is taken whenever more of them are in use than before

    pages = sum(array.nbytes for array in vector_arrays().values()) // resource.getpagesize()
    assert in_child(later_faults) <= pages // 8


@either_order
@pytest.mark.usefixtures("always_warm")
def test_a_completed_epoch_hands_its_threads_to_the_next(monkeypatch, vectors, order):
    started, start = [], threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda thread: started.append(1) or start(thread))
    one = loader(vectors, "npy", order=order, batch_size=64, threads=3, copy=True)
    for _ in range(3):
        list(one)
    assert len(started) == 2  # the consumer's thread is the third
    next(iter(one))  # left at once: its threads end
    assert our_threads() == []
    list(one)
    assert len(started) == 4


@every_variant
@pytest.mark.usefixtures("always_warm")
def test_a_second_epoch_opens_and_maps_nothing(monkeypatch, pictures, name):
    def second_epoch():
        calls, map_memory = [], maps.map_memory
        one = loader(pictures, name, order="random")
        list(one)
        monkeypatch.setattr(
            maps, "map_memory", lambda *given, **named: calls.append(given) or map_memory(*given, **named)
        )
        sys.addaudithook(lambda event, given: calls.append(given) if event in OPENING else None)
        list(one)
        kept = len(calls)
        one.close()
        list(one)
        return kept, len(calls)

    kept, after_close = in_child(second_epoch)
    assert kept == 0 < after_close


@pytest.mark.parametrize("name", ["npy", "lmdb"])
@pytest.mark.usefixtures("always_warm")
def test_the_first_batch_waits_for_no_more_than_its_own_and_the_next_rows(monkeypatch, vectors, name):
    drawn, call = [], KeyedPermutation.__call__

    def counting(self, rows):
        drawn.append(len(rows))
        return call(self, rows)

    monkeypatch.setattr(KeyedPermutation, "__call__", counting)
    monkeypatch.setattr(order_module, "FIRST_ROWS", 1)
    one = loader(vectors, name, order="random", batch_size=16)
    for _ in range(2):
        drawn.clear()
        batches = iter(one)
        next(batches)
        assert sum(drawn) <= 4 * 16  # one batch, two more, and one to locate the rows of
        list(batches)
    assert sum(drawn) >= VECTORS


@every_variant
def test_a_file_that_was_replaced_between_epochs_is_read_anew(own, name):
    one, file = loader(own, name), data_file(own, name)
    list(one)
    copy = file.with_name("copy")
    copy.write_bytes(file.read_bytes())
    os.replace(copy, file)
    list(one)
    assert str(file) in files_in_use(own)
    assert not any("(deleted)" in path for path in files_in_use(own))


@pytest.fixture
def openings(monkeypatch, always_warm):
    """Collect one item per opening of a dataset."""
    select, calls = stream_loader.open_delivery, []
    monkeypatch.setattr(stream_loader, "open_delivery", lambda *given: calls.append(given) or select(*given))
    return calls


@pytest.mark.parametrize(("later", "opened"), [(1.0, 1), (0.0, 2)])
def test_files_are_opened_again_if_they_became_cold(monkeypatch, openings, pictures, later, opened):
    residency = 1.0
    monkeypatch.setattr(page_cache, "residency", lambda files, sampled: residency)
    one = loader(pictures, "npy")
    list(one)
    residency = later
    assert_batches(one, SOURCE, rows_of("sequential", epoch=1))
    assert len(openings) == opened


@every_way
@pytest.mark.usefixtures("real_direct")
def test_a_forked_child_opens_files_of_its_own(openings, pictures, name, direct):
    one = loader(pictures, name, direct=direct)
    list(one)

    def opened_in_child():
        assert_batches(one, SOURCE, rows_of("sequential", epoch=1))
        return len(openings)

    assert in_child(opened_in_child) == 2
    assert_batches(one, SOURCE, rows_of("sequential", epoch=1))
    assert len(openings) == 1


def test_a_loader_can_be_pickled_after_an_epoch(pictures):
    one = loader(pictures, "npy")
    list(one)
    assert_batches(pickle.loads(pickle.dumps(one)), SOURCE, rows_of("sequential", epoch=1))


def test_of_two_epochs_at_the_same_time_only_one_leaves_its_files_open(pictures):
    one = loader(pictures, "npy")
    list(one)
    alone = map_addresses(pictures.root)
    for left, right in zip(one, one, strict=True):
        assert left["y"].tolist() == right["y"].tolist()
    del left, right  # views
    assert len(map_addresses(pictures.root)) == len(alone)
    one.close()
    assert_nothing_left(pictures.root)
