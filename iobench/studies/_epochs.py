"""Loaders as contenders: whole epochs, with or without a training step."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import nullcontext

import torch

from iobench.bench.epoch import RoundSpec, measure
from iobench.bench.meter import Meter
from iobench.bench.training import Trainer
from iobench.dataset.opener import Opener
from iobench.host.machine_load import Monitor
from iobench.loading.host_to_device import DeviceBatch, HostToDevice
from iobench.loading.loaders import Job, Loader
from iobench.studies._rounds import Contender, RoundResult

GPU_SNAPSHOT_S = 0.1


Consumer = Callable[[DeviceBatch], None]  # with `metrics`, a function, if it has any


def training(opener: Opener, transfer: HostToDevice) -> Consumer:
    """Return a consumer that trains a small network, without waiting for the device after each batch."""
    return Trainer("mlp", opener.schema, transfer.device, seed=0).step


class TrainingInParts:
    """A consumer that trains a small CNN and times forward and backward pass, each with synchronization."""

    def __init__(self, opener: Opener, transfer: HostToDevice) -> None:
        self._trainer, self._transfer = Trainer("cnn", opener.schema, transfer.device, seed=0), transfer
        self._forward, self._backward = Meter(), Meter()

    def __call__(self, batch: DeviceBatch) -> None:
        """Train on a batch."""
        with self._forward:
            loss = self._trainer.forward(batch)
            self._transfer.synchronize()
        with self._backward:
            self._trainer.backward(loss)
            self._transfer.synchronize()

    def metrics(self) -> dict[str, float]:
        """Return the seconds of both passes over all batches so far."""
        return {"forward_s": self._forward.elapsed_s, "backward_s": self._backward.elapsed_s}


def epochs(
    loader: Loader,
    job: Job,
    count: int = 1,
    consumer: Callable[[Opener, HostToDevice], Consumer] = lambda opener, transfer: lambda batch: None,
) -> Contender:
    """Return a contender whose round is `count` epochs of a loader, each opened again, in another order.

    Its time includes the start of workers, but not opening and closing. Its metrics are `wait_s`,
    `first_batch_s`, `memory_bytes` and those of the consumer; on a GPU also `gpu_allocated_bytes`,
    `gpu_reserved_bytes` and `gpu_busy`.
    """
    loader = loader.on(job.device)
    transfer = HostToDevice(torch.device(job.device), loader.copies_without_blocking)

    def run() -> RoundResult:
        transfer.release_memory()  # of other contenders, which would count here
        consume = consumer(job.opener, transfer)
        monitor = None if job.device == "cpu" else Monitor(job.opener.path, job.device, GPU_SNAPSHOT_S)
        with monitor.watching() if monitor else nullcontext():
            measured = [
                measure(loader, job, transfer, RoundSpec(number, consume, seconds=0.0))
                for number in range(1, count + 1)
            ]
        timings = [one.timing for one in measured]
        metrics = {"wait_s": sum(one.wait_s for one in timings)}
        metrics["first_batch_s"] = sum(one.first_batch_s for one in timings)
        memory = [one.memory.peak_bytes for one in measured if one.memory.peak_bytes is not None]
        metrics |= {"memory_bytes": max(memory)} if memory else {}
        peaks = "gpu_allocated_bytes", "gpu_reserved_bytes"
        metrics |= dict(zip(peaks, transfer.peak_bytes() or (), strict=False))
        busy = [one.gpu for one in (monitor.take() if monitor else ()) if one.gpu is not None]
        metrics |= {"gpu_busy": statistics.mean(busy)} if busy else {}
        metrics |= getattr(consume, "metrics", dict)()
        return RoundResult(sum(one.epochs_s for one in timings), metrics)

    return run
