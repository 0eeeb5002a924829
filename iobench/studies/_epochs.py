"""Loaders as contenders: whole epochs under meter and counters, with or without a training step."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from iobench.bench.epoch import Round, measure
from iobench.bench.meter import Meter
from iobench.bench.training import Trainer
from iobench.dataset.manifest import Opener
from iobench.host.monitor import Monitor
from iobench.loading.loaders import Job, Loader
from iobench.loading.transfer import DeviceBatch, HostToDevice
from iobench.results.parts import Measured
from iobench.studies._turns import Contender, Turn

GPU_SNAPSHOT_S = 0.1


class Discard:
    """Lets go of each batch."""

    def __init__(self, opener: Opener, transfer: HostToDevice) -> None:
        self._transfer = transfer

    def __call__(self, batch: DeviceBatch) -> None:
        """Do it."""

    def noted(self) -> dict[str, float]:
        """Figures about all batches so far."""
        return {}


class Training(Discard):
    """Trains a small network, without waiting for the device after each batch."""

    model = "mlp"

    def __init__(self, opener: Opener, transfer: HostToDevice) -> None:
        super().__init__(opener, transfer)
        self._trainer = Trainer(self.model, opener.schema, transfer.device, seed=0)

    def __call__(self, batch: DeviceBatch) -> None:
        """Train on it."""
        self._trainer.step(batch)


class TrainingInParts(Training):
    """Trains a small convolutional network, forward and backward each timed on a synchronised device."""

    model = "cnn"

    def __init__(self, opener: Opener, transfer: HostToDevice) -> None:
        super().__init__(opener, transfer)
        self._forward, self._backward = Meter(), Meter()

    def __call__(self, batch: DeviceBatch) -> None:
        """Train on it."""
        with self._forward:
            loss = self._trainer.forward(batch)
            self._transfer.synchronize()
        with self._backward:
            self._trainer.backward(loss)
            self._transfer.synchronize()

    def noted(self) -> dict[str, float]:
        """Seconds of all batches so far."""
        return {"forward_s": self._forward.elapsed_s, "backward_s": self._backward.elapsed_s}


def epochs(
    loader: Loader,
    job: Job,
    count: int = 1,
    consumer: Callable[[Opener, HostToDevice], Discard] = Discard,
) -> Contender:
    """A loader as a contender, a turn of which is so many epochs, each anew and in an order of its own.

    Opening and closing are not in its time; starting workers is. Noted: `wait_s`, `first_batch_s`,
    `memory_bytes`
    and what the consumer notes; on a GPU `gpu_allocated_bytes`, `gpu_reserved_bytes` and `gpu_busy`.
    """
    loader = loader.on(job.device)
    transfer = HostToDevice(torch.device(job.device), loader.copies_without_blocking)

    def run() -> Turn:
        transfer.make_room()  # what another contender reserved there would count here
        consume, busy = consumer(job.opener, transfer), list[float]()
        with _watching_gpu(job, busy):
            measured = [
                measure(loader, job, transfer, Round(number, consume, seconds=0.0))
                for number in range(1, count + 1)
            ]
        noted = {**_noted(measured), **_on_gpu(transfer, busy), **consume.noted()}
        return Turn(sum(epoch.timing.epochs_s for epoch in measured), noted)

    return run


def _noted(measured: list[Measured]) -> dict[str, float]:
    memory = [epoch.memory.peak_bytes for epoch in measured if epoch.memory.peak_bytes is not None]
    peak: dict[str, float] = {"memory_bytes": max(memory)} if memory else {}
    first_s = sum(epoch.timing.first_batch_s for epoch in measured)
    return {"wait_s": sum(epoch.timing.wait_s for epoch in measured), "first_batch_s": first_s, **peak}


def _on_gpu(transfer: HostToDevice, busy: list[float]) -> dict[str, float]:
    peaks = dict(
        zip(("gpu_allocated_bytes", "gpu_reserved_bytes"), transfer.peak_bytes() or (), strict=False)
    )
    return {**peaks, **({"gpu_busy": statistics.mean(busy)} if busy else {})}


@contextmanager
def _watching_gpu(job: Job, busy: list[float]) -> Iterator[None]:
    """Have what part of the time the GPU was busy in the list, once the block has ended."""
    if job.device == "cpu":
        yield
        return
    monitor = Monitor(job.opener.path, job.device, GPU_SNAPSHOT_S)
    with monitor.watching():
        yield
    busy += [snapshot["gpu"] for snapshot in monitor.take() if snapshot["gpu"] is not None]
