"""Shared cases of the tests of StreamLoader: ways of reading, expected batches, checks for leaks."""

import os
import pickle
import signal
import sys
import threading
import traceback

import numpy as np
import pytest
from stream_loaders import stream_loader

from iobench import Manifest
from iobench.formats import Ragged
from iobench.loading.order import ORDERS, Order
from iobench.testing.loaders import files_in_use

# one or two for each placement: strided, chunked, listed, encoded
PLACED = ("npy", "memmap", "hdf5:chunk_bytes=0", "hdf5", "lmdb")
VARIANTS = (*PLACED, "hdf5:compression=gzip", "lmdb:codec=lz4")
DIRECT = [(name, True) for name in PLACED]
# two direct ways stand for all: the kernel takes 50 ms to destroy each of their queues
WAYS = [*((name, None) for name in VARIANTS), DIRECT[2], DIRECT[-1]]

SAMPLES, BATCH = 203, 16
BLOCK_ROWS, WINDOW = 10, 3  # the latter in batches
VECTORS = 1 << 12  # of 4008 bytes, which one page of LMDB holds

every_variant = pytest.mark.parametrize("name", VARIANTS)
every_placed = pytest.mark.parametrize("name", PLACED)
every_way = pytest.mark.parametrize(("name", "direct"), WAYS)
every_direct_way = pytest.mark.parametrize(("name", "direct"), DIRECT)
# slices of rows, and indices; block order has indices as well
either_order = pytest.mark.parametrize("order", ["sequential", "random"])
every_order = pytest.mark.parametrize("order", ORDERS)


def vector_arrays(samples=VECTORS):
    x = np.arange(samples * 1000, dtype=np.float32).reshape(samples, 1000)
    return {"x": x, "y": np.arange(samples)}


def loader(dataset, name, **options):
    """Return a StreamLoader over a manifest or a folder, with small batches, blocks and windows."""
    manifest = dataset if isinstance(dataset, Manifest) else Manifest.load(dataset)
    options = {"batch_size": BATCH, **options}
    block_bytes = BLOCK_ROWS * manifest.schema.sample_bytes
    window_bytes = WINDOW * options["batch_size"] * manifest.schema.sample_bytes
    blocks = {"block_bytes": block_bytes, "window_bytes": window_bytes}
    return stream_loader(manifest.root, format=name, **{**blocks, **options})


def rows_of(order, epoch=0, samples=SAMPLES, **options):
    """Return the expected rows of each batch of `loader`."""
    blocks = {"block_rows": BLOCK_ROWS, "window_batches": WINDOW}
    result = Order(order, **{"batch_size": BATCH, **blocks, **options}).batches(samples, epoch)
    return [np.arange(samples)[rows] for rows in result]


def assert_batches(batches, source, rows):
    """Assert that batches hold these rows of the source's fields, in memory of their own shape."""
    batches = list(batches)
    assert len(batches) == len(rows)
    for batch, expected in zip(batches, rows, strict=True):
        assert list(batch) == list(source)
        for name, own in batch.items():
            wanted = source[name][expected]
            if not isinstance(wanted, Ragged):
                np.testing.assert_array_equal(own.numpy(), wanted, strict=True)
                continue
            np.testing.assert_array_equal(own.values.numpy(), wanted.values, strict=True)
            np.testing.assert_array_equal(own.offsets.numpy(), wanted.offsets, strict=True)


def labels(batches, field="y"):
    """Return the labels of each batch as lists."""
    return [batch[field].tolist() for batch in batches]


def data_file(root, name):
    """Return the largest file of a variant."""
    return max(Manifest.load(root).files_of(name), key=lambda file: file.stat().st_size)


def our_threads():
    """Return the names of iobench's running threads."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("iobench-")]


def assert_nothing_left(root):
    """Assert that no thread of iobench runs, and no file of the dataset is open or mapped."""
    threads, files = our_threads(), files_in_use(root)
    assert not threads, threads
    assert not files, files


def in_child(action, seconds=100):
    """Call `action` in a child process and return its result; fail the test if the child fails or hangs."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    if not (child := os.fork()):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # it is pytest-timeout's
        signal.alarm(seconds)
        try:
            answer = (True, action())
        except BaseException:  # noqa: BLE001 - reported by the parent
            answer = (False, traceback.format_exc())
        with open(writing, "wb") as pipe:
            pickle.dump(answer, pipe)
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        messages = pipe.read()
    if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        pytest.fail(f"the child was ended by {signal.Signals(-code).name}")
    fine, answer = pickle.loads(messages)
    return answer if fine else pytest.fail(answer)
