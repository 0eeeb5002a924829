import gc
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from conftest import SAMPLES, every_dtype_arrays, image_arrays
from kinds import kind as kind_check
from tensordict import MemoryMappedTensor

from iobench.base.errors import CorruptArtifact, LoaderFailed
from iobench.bench.epoch import opened
from iobench.dataset.checksum import Checksum
from iobench.dataset.prepare import DEFAULT_FORMATS
from iobench.host import page_cache
from iobench.host.machine_load import Counters
from iobench.loading import loaders, order
from iobench.loading.loaders import Job, failure
from iobench.loading.loaders.sample_datasets import BatchDataset
from iobench.testing.loaders import files_left_open

FETCHES, LOADERS = ("sample", "batch"), loaders.DEFAULT_LOADERS
ROWS = {
    kind: order.Order(kind, 32, block_rows=10, window_batches=2).batches(SAMPLES, 1) for kind in order.ORDERS
}
every_format = pytest.mark.parametrize("name", DEFAULT_FORMATS)


def open_epochs(manifest, name, loader="dataloader", kind="random", batch_size=32, **options):
    """Open a loader over a format."""
    requested = order.Order(kind, batch_size, block_rows=10, window_batches=2)
    return opened(loaders.get(loader, **options).on("cpu"), Job(manifest.opener(name), requested))


def epoch(manifest, name, loader="dataloader", rows=ROWS["sequential"], **options):
    """Return all batches of an epoch, and close the loader."""
    kind = "sequential" if isinstance(rows[0], slice) else "random"
    epochs = open_epochs(manifest, name, loader, kind, **options)
    try:
        return [dict(batch.items()) for batch in epochs.epoch(rows)]
    finally:
        epochs.close()


def fetching(loader, fetch):
    """Return the option `fetch` if the loader has it."""
    return {"fetch": fetch} if loader == "dataloader" else {}


def assert_epoch(batches, manifest, rows):
    """Compare batches with rows of the source and with the checksum in the manifest."""
    source, check = image_arrays(), Checksum(manifest.schema)
    assert len(batches) == len(rows)
    for batch, expected in zip(batches, rows, strict=True):
        for field in manifest.schema.fields:
            assert type(batch[field.name]) is torch.Tensor
            np.testing.assert_array_equal(batch[field.name].numpy(), source[field.name][expected])
        check.add(batch)
    assert (check.content, check.samples) == (manifest.content, SAMPLES)


@every_format
@pytest.mark.parametrize(("workers", "kind"), [*((0, kind) for kind in order.ORDERS), (2, "random")])
@pytest.mark.parametrize("fetch", FETCHES)
def test_dataloader_returns_every_sample_once_and_releases_files(images, name, kind, workers, fetch):
    forked = {"num_workers": 2, "start_method": "fork"} if workers else {}
    assert_epoch(epoch(images, name, rows=ROWS[kind], fetch=fetch, **forked), images, ROWS[kind])
    assert not files_left_open(images.root)


@pytest.mark.parametrize(("name", "fetch"), [("npy", "sample"), ("lmdb", "batch")])
def test_dataloader_works_with_spawned_workers(images, name, fetch):
    rows = ROWS["random"]
    batches = epoch(images, name, rows=rows, fetch=fetch, num_workers=1, start_method="spawn")
    assert_epoch(batches, images, rows)


@every_format
@pytest.mark.parametrize(("loader", "fetch"), [("native", "batch"), *(("dataloader", f) for f in FETCHES)])
def test_every_dtype_is_preserved(every_dtype, name, loader, fetch):
    (batch,) = epoch(every_dtype, name, loader, rows=[slice(0, 29)], **fetching(loader, fetch))
    for field, expected in every_dtype_arrays().items():
        np.testing.assert_array_equal(batch[field].numpy(), expected, strict=True)


@every_format
@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("kind", order.ORDERS)
def test_bytes_are_read_from_disk(by_file, floats, name, loader, kind):
    files = floats.files_of(name)
    page_cache.evict(files)
    rows = order.Order(kind, 4096, block_rows=512).batches(floats.schema.samples, 1)
    counters = Counters(floats.root)
    counters.start()
    epoch(floats, name, loader, rows=rows, batch_size=4096, **fetching(loader, "batch"))
    assert counters.stop().disk_bytes > 0.99 * sum(file.stat().st_size for file in files)


@every_format
@pytest.mark.parametrize("loader", LOADERS)
def test_batches_are_not_views_of_a_file(images, name, loader):
    for batch in epoch(images, name, loader, **fetching(loader, "sample")):
        spans = list(file_maps(images.root))
        for tensor in batch.values():
            assert not any(low <= tensor.data_ptr() < high for low, high in spans)
            tensor.zero_()  # a view of a map opened read-only would end the process here


def file_maps(root):
    lines = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    spans = [line[0].split("-") for line in lines if line[-1].startswith(str(root.resolve()))]
    return [(int(low, 16), int(high, 16)) for low, high in spans]


def first_read(monkeypatch, manifest, action):
    """Call `action` when row 100 is read."""
    reader = type(manifest.opener("npy")())
    original = reader.sample

    def sample(self, row, convert):
        if row == 100:
            action()
        return original(self, row, convert)

    monkeypatch.setattr(reader, "sample", sample)


@pytest.fixture
def workers_alive():
    """Return what lists this test's live workers."""
    gc.collect()  # an error that an earlier test caught may keep its loader's
    before = set(psutil.Process().children())

    def alive():
        own = set(psutil.Process().children()) - before
        return [child for child in own if child.name() == "pt_data_worker"]

    return alive


FORKED = {"num_workers": 2, "start_method": "fork"}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGBUS, signal.SIGTERM, None])
def test_a_worker_that_is_killed_or_exits_is_one_error_without_a_hang(
    images, monkeypatch, workers_alive, number
):
    first_read(monkeypatch, images, lambda: os.kill(os.getpid(), number) if number else os._exit(3))
    died = kind_check("worker-died", path=images.path_of("npy"))
    with pytest.raises(LoaderFailed, check=died) as caught:
        epoch(images, "npy", **FORKED)
    assert number is None or re.search(r"\bpid\b", caught.value.problem)
    assert "\n" not in str(caught.value)
    assert not workers_alive()


def test_an_epoch_that_is_cut_off_does_not_wait_for_the_batches_of_workers(
    images, monkeypatch, workers_alive
):
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 600.0)  # torch waits for each
    first_read(monkeypatch, images, lambda: time.sleep(600))
    epochs = open_epochs(images, "npy", kind="sequential", **FORKED)
    batches = epochs.epoch(ROWS["sequential"])
    next(batches)
    batches.close()
    assert not workers_alive()
    epochs.close()


@pytest.mark.parametrize("error", [EOFError(), ConnectionResetError(104, "Connection reset by peer")])
def test_a_connection_that_a_dead_worker_closed_is_its_death(images, error):
    opener = images.opener("npy")
    with_workers = loaders.parse("dataloader:num_workers=1")
    assert failure(with_workers, opener, error).kind == "worker-died"
    assert failure(loaders.get("dataloader"), opener, error).kind == "raised"


@pytest.mark.parametrize("workers", [{}, FORKED, {**FORKED, "persistent_workers": True}])
def test_an_error_of_iobench_keeps_its_fields(images, monkeypatch, workers_alive, workers):
    """Torch passes on only its text, which here holds a newline, colons and the start of a traceback."""
    error = CorruptArtifact(
        "Original Traceback (most: recent)\nkind: x",
        kind="truncated",
        path=Path("x.npy"),
        expected="8: bytes",
        hint="prepare\nit again",
    )

    def fail():
        raise error

    first_read(monkeypatch, images, fail)
    with pytest.raises(CorruptArtifact) as caught:
        epoch(images, "npy", **workers)
    assert not workers_alive()
    assert caught.value.fields() == error.fields()


@pytest.mark.parametrize("workers", [{}, FORKED])
@pytest.mark.parametrize(
    "error", [OSError(5, "Input/output error"), RuntimeError("deep\ntrouble"), MemoryError()]
)
def test_any_other_error_of_a_worker_is_one_line(images, monkeypatch, workers, error):
    def fail():
        raise error

    first_read(monkeypatch, images, fail)
    with pytest.raises(LoaderFailed, check=kind_check("raised", path=images.path_of("npy"))) as caught:
        epoch(images, "npy", **workers)
    lines = str(error).splitlines() or [type(error).__name__]
    assert any(line in caught.value.problem for line in lines)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), MemoryError()])
def test_any_error_in_native_is_one_line(images, monkeypatch, error):
    def fail(self, rows):
        raise error

    monkeypatch.setattr(type(images.opener("npy")()), "native", fail)
    with pytest.raises(LoaderFailed, check=kind_check("raised", path=images.path_of("npy"))) as caught:
        epoch(images, "npy", "native")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("fetch", FETCHES)
def test_persistent_workers_last_for_all_epochs_and_end_with_the_loader(images, workers_alive, fetch):
    epochs = open_epochs(images, "npy", **FORKED, persistent_workers=True, fetch=fetch)
    pids = []
    for rows in (ROWS["random"], ROWS["sequential"], ROWS["random"]):
        assert_epoch([dict(batch) for batch in epochs.epoch(rows)], images, rows)
        pids.append({worker.pid for worker in workers_alive()})
    assert len(pids[0]) == 2
    assert pids[0] == pids[1] == pids[2]
    epochs.close()
    assert not psutil.wait_procs(workers_alive(), timeout=60)[1]


@pytest.mark.parametrize("kind", order.ORDERS)
def test_a_dataset_is_asked_for_lists_of_numbers_as_by_torch(images, monkeypatch, kind):
    asked = []
    original = BatchDataset.__getitems__
    monkeypatch.setattr(
        BatchDataset, "__getitems__", lambda self, rows: asked.append(rows) or original(self, rows)
    )
    epoch(images, "npy", rows=ROWS[kind], fetch="batch")
    assert asked == [np.arange(SAMPLES)[rows].tolist() for rows in ROWS[kind]]


@pytest.mark.parametrize(("name", "expected"), [("npy", np.memmap), ("memmap", MemoryMappedTensor)])
def test_a_sample_is_a_row_of_what_the_library_opens(images, monkeypatch, name, expected):
    # indexing these classes costs more than indexing plain arrays, and users do it
    indexed = []
    original = expected.__getitem__
    monkeypatch.setattr(
        expected, "__getitem__", lambda self, row: indexed.append(type(self)) or original(self, row)
    )
    epoch(images, name, fetch="sample")
    assert indexed.count(expected) == SAMPLES * len(images.schema.fields)


def test_workers_are_forked_after_the_format_s_library_is_imported(images):
    """As in a script, which imports it once: else each worker would, in each epoch."""
    code = (
        "import sys; from iobench.dataset.manifest import Manifest; from iobench.loading import loaders; "
        "from iobench.loading.loaders import Job; from iobench.loading.order import Order; "
        f"job = Job(Manifest.load({str(images.root)!r}).opener('memmap'), Order('sequential', 4)); "
        "imported = ['tensordict' in sys.modules]; "
        "loaders.parse('dataloader:num_workers=1,start_method=fork').open(job).close(); "
        "print([*imported, 'tensordict' in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[False,", "True]"]
