"""The way to a CUDA device, on a device that is made up: it copies late, out of bare memory."""

import ctypes
import threading
import time
from contextlib import closing

import numpy as np
import pytest
import torch
from conftest import SAMPLES, image_arrays

from iobench.host.memory import touched_array
from iobench.loading.order import Order
from iobench.loading.stream import pipeline
from iobench.loading.stream.backend import open_backend
from iobench.loading.stream.pipeline import Pipeline
from iobench.loading.stream.transfer import CudaTransfer, Transfer, transfer_to

BATCH = 8
BATCHES = -(-SAMPLES // BATCH)
PATIENCE_S = 20.0  # for what has to happen


class OnDevice(torch.Tensor):
    """A tensor that only its device can fill."""

    def record_stream(self, stream):
        pass


class FakeCuda(CudaTransfer):
    """A device that copies what it was asked to when its event is waited for, and no sooner.

    Like a real one it knows addresses only: it keeps no batch from being used again.
    """

    def __init__(self):
        self._device, self._stream = torch.device("cpu"), None
        self._asked = threading.local()
        self.memory, self.sent, self.waited = [], [], 0

    def allocate(self, count):
        self.memory.append(touched_array(count))  # kept, so that a late copy reads old bytes at worst
        return self.memory[-1]

    def send(self, batches):
        self.sent.append(threading.get_ident())
        return super().send(batches)

    def _copy(self, tensor):
        there = torch.zeros_like(tensor).as_subclass(OnDevice)
        self._asked.__dict__.setdefault("copies", []).append((there, tensor.data_ptr(), tensor.nbytes))
        return there

    def _mark(self):
        return Event(self, self._asked.__dict__.pop("copies"))


class Event:
    def __init__(self, device, copies):
        self.device, self.copies = device, copies

    def synchronize(self):
        self.device.waited += 1
        time.sleep(1e-3)  # other threads go on meanwhile
        self.finish()

    def finish(self):
        for there, address, count in self.copies:
            ctypes.memmove(there.data_ptr(), address, count)


class HastyCuda(FakeCuda):
    """The same without waiting: its copies end some time after the epoch."""

    def __init__(self):
        super().__init__()
        self.unfinished = []

    def _mark(self):
        event = super()._mark()
        event.synchronize = lambda: self.unfinished.append(event)
        return event


@pytest.fixture
def open_pipeline(images, monkeypatch):
    """A pipeline over the images whose slots hold one batch, and the order of its batches."""
    monkeypatch.setattr(pipeline, "GROUP_BYTES", 1)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "the consumer's stream")

    def opened(transfer, order="random", threads=2, transform=None):
        schema, epoch = images.schema, Order(order, BATCH)
        source = open_backend(images.opener("npy"), schema, threads, False)
        made = Pipeline(source, schema, epoch, transfer, transform)
        return closing(made), epoch.batches(SAMPLES, 0)

    return opened


def as_expected(found, batches):
    """Whether these are the images and labels of those rows, batch by batch."""
    arrays = image_arrays()
    return [
        all(np.array_equal(batch[name].numpy(), arrays[name][rows]) for name in arrays)
        for batch, rows in zip(found, batches, strict=True)
    ]


@pytest.mark.parametrize("order", ["sequential", "random", "block"])
def test_memory_is_not_used_again_before_its_copy_has_ended(open_pipeline, order):
    device = FakeCuda()
    opened, batches = open_pipeline(device, order)
    with opened as running:
        assert all(as_expected(list(running.run(batches)), batches))
    assert device.waited == BATCHES
    assert len(device.memory) < 2 * BATCHES  # of two fields: slots were used again


def test_that_would_show_on_a_device_that_is_not_waited_for(open_pipeline):
    device = HastyCuda()
    opened, batches = open_pipeline(device)
    with opened as running:
        found = list(running.run(batches))
        for event in device.unfinished:
            event.finish()
    assert len(device.unfinished) == BATCHES
    assert not all(as_expected(found, batches))


def test_a_transform_s_batches_are_copied_before_they_are_let_go(open_pipeline):
    device = FakeCuda()
    transform = lambda batch: {"y": batch["y"] + 1, "x": batch["x"]}  # noqa: E731
    opened, batches = open_pipeline(device, transform=transform)
    with opened as running:
        found = [{**batch, "y": batch["y"] - 1} for batch in running.run(batches)]
    assert all(as_expected(found, batches))


def test_each_batch_is_handed_over_once_in_the_consumers_thread(open_pipeline, monkeypatch):
    handed, recorded = [], []
    hand_over = CudaTransfer.hand_over

    def noting(self, batch):
        handed.append((batch["x"].data_ptr(), threading.get_ident()))
        hand_over(self, batch)

    def recording(self, stream):
        recorded.append((stream, threading.get_ident()))

    monkeypatch.setattr(FakeCuda, "hand_over", noting)
    monkeypatch.setattr(OnDevice, "record_stream", recording)
    opened, batches = open_pipeline(FakeCuda())
    here = threading.get_ident()
    with opened as running:
        for number, batch in enumerate(running.run(batches), 1):
            assert len(handed) == number  # not before it is asked for
            assert handed[-1] == (batch["x"].data_ptr(), here)
    assert recorded == [("the consumer's stream", here)] * 2 * BATCHES  # each of two fields


def test_batches_are_sent_by_other_threads(open_pipeline):
    device = FakeCuda()
    opened, batches = open_pipeline(device)
    with opened as running:
        assert len(list(running.run(batches))) == len(device.sent) == BATCHES
    assert threading.get_ident() not in device.sent


def test_two_batches_are_in_flight_before_the_first_is_consumed(open_pipeline):
    together = threading.Barrier(2, timeout=PATIENCE_S)

    class Meeting(FakeCuda):
        def send(self, batches):
            moved = super().send(batches)
            if len(self.sent) <= 2:
                together.wait()  # raises if nobody else is sending
            return moved

    opened, batches = open_pipeline(Meeting())
    with opened as running:
        assert all(as_expected(list(running.run(batches)), batches))


def test_one_thread_goes_on_while_the_first_batch_is_consumed(open_pipeline):
    second = threading.Event()

    class Noting(FakeCuda):
        def send(self, batches):
            moved = super().send(batches)
            if len(self.sent) == 2:
                second.set()
            return moved

    opened, batches = open_pipeline(Noting(), threads=1)
    with opened as running, closing(running.run(batches)) as epoch:
        next(epoch)
        assert second.wait(PATIENCE_S)


def test_host_batches_are_handed_over_as_they_are(images):
    transfer = transfer_to(torch.device("cpu"))
    assert type(transfer) is Transfer
    batches = [{"x": torch.ones(3)}]
    assert transfer.send(batches) is batches
    transfer.hand_over(batches[0])
    assert transfer.allocate(5).shape == (5,)
