"""Pages of maps are mapped before a warm round is timed, where the page cache holds them."""

import mmap
import resource

import numpy as np
import pytest
import torch

import iobench
from iobench.bench import epoch
from iobench.bench.epoch import RoundSpec, measure
from iobench.bench.options import RunOptions
from iobench.host import page_cache
from iobench.host.page_cache import map_cached
from iobench.loading import loaders
from iobench.loading.host_to_device import HostToDevice
from iobench.loading.loaders import Job
from iobench.loading.order import Order

PAGES = 4096


@pytest.fixture
def mapped(tmp_path):
    """A file with blanks in its name that was read, and a map of it that was not."""
    file = tmp_path / "a b" / "x.bin"
    file.parent.mkdir()
    file.write_bytes(bytes(PAGES * mmap.PAGESIZE))
    return file.parent, np.memmap(file, np.uint8, "r")


def faults_of(array):
    """Return the page faults of this thread in one access to each page, the last first."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    array[:: -mmap.PAGESIZE].max()
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def test_mapped_pages_have_no_faults(mapped):
    folder, array = mapped
    map_cached(folder)
    assert faults_of(array) < PAGES // 64  # without the map one for each 16 pages


@pytest.mark.parametrize("why", ["elsewhere", "not cached", "larger than memory"])
def test_other_pages_are_left_as_they_are(mapped, monkeypatch, why):
    folder, array = mapped
    if why == "not cached":
        monkeypatch.setattr(page_cache, "all_cached", lambda begin, size: False)
    elif why == "larger than memory":
        monkeypatch.setattr(page_cache, "total_memory", lambda: PAGES)
    map_cached(folder / "other" if why == "elsewhere" else folder)
    assert faults_of(array) >= 8


@pytest.mark.parametrize(
    ("warm", "batches", "calls"), [(True, 7, 1), (True, None, 1), (False, 7, 0), (False, None, 0)]
)
def test_only_warm_rounds_are_mapped_first(images, monkeypatch, warm, batches, calls):
    seen = []
    monkeypatch.setattr(epoch, "map_cached", seen.append)
    job, transfer = Job(images.opener("npy"), Order("random", 2)), HostToDevice(torch.device("cpu"), False)
    spec = RoundSpec(1, lambda batch: None, 0.0, batches=batches, warm=warm)
    measure(loaders.parse("native").on("cpu"), job, transfer, spec)
    assert len(seen) == calls


def test_a_run_maps_the_pages_of_its_warm_rounds(images, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(epoch, "map_cached", seen.append)
    options = RunOptions(
        ("npy",), ("native",), batch_size=(2,), rounds="2", limits=False, max_batches=10, device=("cpu",)
    )
    iobench.run(images, options, out=tmp_path / "r.jsonl")
    assert seen == [images.path_of("npy")] * 2, "of two rounds, not of the verification"
