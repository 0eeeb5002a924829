import ctypes
import gc
import threading
from itertools import chain

import pytest
import torch
from conftest import image_arrays
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from stream_cases import (
    SAMPLES,
    WAYS,
    assert_batches,
    data_file,
    every_variant,
    every_way,
    in_child,
    loader,
    rows_of,
    vector_arrays,
)

from iobench.host.memory import PAGE
from iobench.host.process_counters import status_of
from iobench.loading.order import ORDERS
from iobench.stream import pipeline

pytest_plugins = ("stream_fixtures",)

SOURCE = image_arrays(SAMPLES)
MIB = 1 << 20


@pytest.fixture
def batch_by_batch(monkeypatch):
    """Give every batch its own memory, as large ones have."""
    monkeypatch.setattr(pipeline, "GROUP_BYTES", 1)


def anonymous():
    """Return the bytes of this process's anonymous memory, without memory cached by malloc."""
    ctypes.CDLL(None).malloc_trim(0)
    return int(status_of("self", "RssAnon")) << 10


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(held=st.lists(st.integers(0, 101)), order=st.sampled_from(ORDERS), way=st.sampled_from(WAYS))
@example(held=range(102), order="random", way=("lmdb", True))
@pytest.mark.usefixtures("batch_by_batch")
def test_held_batches_never_change(pictures, held, order, way):
    rows = [batch for epoch in (0, 1) for batch in rows_of(order, epoch, batch_size=4)]
    one = loader(pictures, way[0], direct=way[1], order=order, batch_size=4)
    retained = {number: batch for number, batch in enumerate(chain(one, one)) if number in held}
    assert_batches(retained.values(), SOURCE, [rows[number] for number in retained])


def least(growth, by):
    """Return the lowest of three measurements: a leak occurs each time, an allocator's arena once."""
    return min((in_child(growth) for _ in range(3)), key=lambda result: result[by])


@every_way
@pytest.mark.usefixtures("real_direct", "batch_by_batch")
def test_memory_is_used_again_when_batches_are_dropped(pictures, name, direct):
    one = loader(pictures, name, direct=direct, batch_size=1, threads=2, copy=True)
    slots = [batch["x"].data_ptr() // PAGE for batch in one]
    assert len(slots) == SAMPLES
    assert len(set(slots)) <= 8


@every_way
@pytest.mark.usefixtures("real_direct")
def test_batches_share_no_memory_with_each_other_or_the_file(pictures, name, direct):
    before, one = data_file(pictures.root, name).read_bytes(), loader(pictures, name, direct=direct)
    rows = rows_of("sequential")
    for _ in range(2):
        held = list(one)
        assert_batches(held, SOURCE, rows)
        for batch in held[::2]:
            for tensor in batch.values():
                tensor.zero_()
        assert_batches(held[1::2], SOURCE, rows[1::2])
        assert not any(torch.any(batch["x"]) for batch in held[::2])
    assert data_file(pictures.root, name).read_bytes() == before


@every_way
@pytest.mark.usefixtures("real_direct")
def test_a_loader_that_is_gone_leaves_neither_memory_nor_threads(vectors, name, direct):
    def growth():
        def run():
            held = list(loader(vectors, name, direct=direct, order="random"))
            return held, anonymous()

        run()
        gc.disable()
        before, threads = anonymous(), threading.active_count()
        held, during = run()
        held.clear()
        return during - before, anonymous() - before, threading.active_count() - threads

    during, after, threads = least(growth, by=1)
    assert during > 12 * MIB  # of 16; a little of it may have been there before
    assert after < 3 * MIB
    assert threads == 0


@every_variant
def test_a_label_that_is_kept_does_not_keep_its_image(vectors, name):
    def growth():
        list(loader(vectors, name))
        before = anonymous()
        held = [batch["y"] for batch in loader(vectors, name)]
        return torch.cat(held).tolist(), anonymous() - before

    labels, bytes_kept = least(growth, by=1)
    assert labels == vector_arrays()["y"].tolist()
    assert bytes_kept < 4 * MIB


def test_the_memory_of_an_epoch_does_not_grow_with_it(vectors):
    def growth():
        def run(epochs):
            one = loader(vectors, "npy", batch_size=64)
            return max(anonymous() for _ in range(epochs) for _ in one)

        some = run(5)  # by which all slots have been used: which threads are ahead is chance
        return some, run(15) - some

    assert least(growth, by=1)[1] < 3 * MIB
