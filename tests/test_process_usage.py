"""Memory of a process and its workers: what they share counts once, the page cache does not count."""

import gc
import mmap
import multiprocessing
import os
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import psutil
import pytest
from conftest import require_disk

from iobench.host import process_counters
from iobench.host.machine_load import Counters

SIZE = 64 << 20
NEAR = 8 << 20
CONTEXT = multiprocessing.get_context("fork")
MAPPED = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
print(sum(held[:: mmap.PAGESIZE]), flush=True)
input()
"""


@pytest.fixture
def memory(tmp_path):
    """Return a function for the memory of this process and its workers, without those that others left."""
    gc.collect()
    others = process_counters.descendants()

    def memory(*excluded):
        counting = Counters(tmp_path, excluded=[*others, *excluded])
        counting.start()
        counting.note_memory()
        return counting.stop().memory_bytes

    return memory


@contextmanager
def forked(count, work):
    """Run processes that hold the result of `work` until the block ends."""
    ready, done = CONTEXT.Barrier(count + 1), CONTEXT.Event()

    def hold():
        gc.disable()  # a collection would write into what a worker shares with this process
        held = work()
        ready.wait()
        done.wait()
        del held

    processes = [CONTEXT.Process(target=hold) for _ in range(count)]
    for process in processes:
        process.start()
    ready.wait()
    try:
        yield
    finally:
        done.set()
        for process in processes:
            process.join()


def test_the_memory_of_each_worker_counts(memory):
    before = memory()
    with forked(2, lambda: np.ones(SIZE, np.uint8)):
        assert memory() - before == pytest.approx(2 * SIZE, abs=2 * NEAR)


def test_memory_that_workers_share_counts_once(memory):
    before = memory()
    inherited, segment = np.ones(SIZE, np.uint8), np.frombuffer(mmap.mmap(-1, SIZE), np.uint8)
    segment[:] = 1
    with forked(2, lambda: int(inherited.sum()) + int(segment.sum())):
        assert memory() - before == pytest.approx(2 * SIZE, abs=2 * NEAR)


def test_a_shared_segment_that_only_a_worker_has_mapped_counts(memory):
    def hold():
        segment = np.frombuffer(mmap.mmap(-1, SIZE), np.uint8)
        segment[:] = 1
        return segment

    before = memory()
    with forked(1, hold):
        assert memory() - before == pytest.approx(SIZE, abs=2 * NEAR)  # as above: a fork copies


@pytest.mark.parametrize("workers", [0, 1])
def test_the_page_cache_does_not_count(tmp_path, memory, workers):
    require_disk(tmp_path)
    with open(tmp_path / "data", "wb") as file:
        file.write(bytes(SIZE))
        os.fsync(file.fileno())

    def mapped():
        data = np.memmap(tmp_path / "data", np.uint8, "r")
        return data, int(data.sum())

    before = memory()
    held = mapped() if not workers else None
    with forked(workers, mapped):
        assert memory() - before < 2 * NEAR  # a fork of a large process copies some MiB of it
    del held


def test_pages_of_a_file_that_are_not_yet_on_disk_do_not_count(tmp_path, memory):
    require_disk(tmp_path)
    (tmp_path / "data").write_bytes(bytes(SIZE))
    before = memory()
    asked = [sys.executable, "-c", MAPPED, tmp_path / "data"]
    with subprocess.Popen(asked, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        worker.stdout.readline()
        assert memory() - before < SIZE / 2
        worker.communicate(b"\n")


def test_memory_of_excluded_processes_does_not_count(memory):
    before = memory()
    with forked(1, lambda: np.ones(SIZE, np.uint8)):
        assert memory(*(child.pid for child in psutil.Process().children())) - before < NEAR


def test_without_the_kernels_report_memory_is_unknown(memory, monkeypatch):
    monkeypatch.setattr(process_counters, "reports_private", lambda: False)
    assert memory() is None
    assert process_counters.private_memory([2**22 + 1]) == {}, "a process that has ended"
