"""Cases as contenders: whole epochs under meter and counters, with or without a training step."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from iobench.bench.case import Case
from iobench.bench.epoch import measure
from iobench.bench.meter import Meter
from iobench.bench.training import Trainer
from iobench.dataset.manifest import Opener
from iobench.host.monitor import Monitor
from iobench.loading.loaders import Loader
from iobench.loading.transfer import DeviceBatch, HostToDevice
from iobench.results.record import Measured
from iobench.studies._base import Contender, Took

GPU_SNAPSHOT_S = 0.1


class Step:
    """What is done with each batch: nothing."""

    def __init__(self, opener: Opener, transfer: HostToDevice) -> None:
        self._transfer = transfer

    def __call__(self, batch: DeviceBatch) -> None:
        """Do it."""

    def noted(self) -> dict[str, float]:
        """Figures about all batches so far."""
        return {}


class Training(Step):
    """A small network trained, without waiting for the device after each batch."""

    model = "mlp"

    def __init__(self, opener: Opener, transfer: HostToDevice) -> None:
        super().__init__(opener, transfer)
        self._trainer = Trainer(self.model, opener.schema, transfer.device, seed=0)

    def __call__(self, batch: DeviceBatch) -> None:
        """Train on it."""
        self._trainer.step(batch)


class TrainingApart(Training):
    """A small convolutional network trained, forward and backward timed apart on a synchronised device."""

    model = "cnn"

    def __init__(self, opener: Opener, transfer: HostToDevice) -> None:
        super().__init__(opener, transfer)
        self._forward, self._backward = list[float](), list[float]()

    def __call__(self, batch: DeviceBatch) -> None:
        """Train on it."""
        with Meter() as forward:
            loss = self._trainer.forward(batch)
            self._transfer.synchronize()
        with Meter() as backward:
            self._trainer.backward(loss)
            self._transfer.synchronize()
        self._forward.append(forward.elapsed_s)
        self._backward.append(backward.elapsed_s)

    def noted(self) -> dict[str, float]:
        """Seconds of all batches so far."""
        return {"forward_s": sum(self._forward), "backward_s": sum(self._backward)}


def epochs(
    one: Case,
    opener: Opener,
    device: str,
    count: int = 1,
    step: Callable[[Opener, HostToDevice], Step] = Step,
    loader_type: type[Loader] | None = None,
) -> Contender:
    """A case as a contender, a turn of which is so many epochs, each anew and in an order of its own.

    Opening and closing are not in its time; starting workers is. Noted: `wait_s`, `memory_bytes`
    and what the step notes; on CUDA `gpu_allocated_bytes`, `gpu_reserved_bytes` and `gpu_busy`.
    """
    transfer = HostToDevice(torch.device(device), bool(one.settings.non_blocking))

    def run() -> Took:
        transfer.make_room()  # what another contender reserved there would count here
        train, busy = step(opener, transfer), list[float]()
        with _watching_gpu(opener, device, busy):
            measured = [
                measure(one, opener, transfer, number, train, loader_type=loader_type)
                for number in range(1, count + 1)
            ]
        noted = {**_noted(measured), **_on_gpu(transfer, busy), **train.noted()}
        return Took(sum(epoch.epoch_s for epoch in measured), noted)

    return run


def _noted(measured: list[Measured]) -> dict[str, float]:
    memory = [epoch.memory_bytes for epoch in measured if epoch.memory_bytes is not None]
    peak: dict[str, float] = {"memory_bytes": max(memory)} if memory else {}
    return {"wait_s": sum(epoch.wait_s for epoch in measured), **peak}


def _on_gpu(transfer: HostToDevice, busy: list[float]) -> dict[str, float]:
    peaks = dict(
        zip(("gpu_allocated_bytes", "gpu_reserved_bytes"), transfer.peak_bytes() or (), strict=False)
    )
    return {**peaks, **({"gpu_busy": statistics.mean(busy)} if busy else {})}


@contextmanager
def _watching_gpu(opener: Opener, device: str, busy: list[float]) -> Iterator[None]:
    """Have what part of the time the GPU was busy in the list, once the block has ended."""
    if device == "cpu":
        yield
        return
    monitor = Monitor(opener.path, device, GPU_SNAPSHOT_S)
    with monitor.watching():
        yield
    busy += [look["gpu"] for look in monitor.take() if look["gpu"] is not None]
