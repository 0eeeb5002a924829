"""How long the training step takes that a recommendation is for: told, or measured on a batch of the data."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from iobench.base.errors import (
    InvalidSettings,
)
from iobench.base.text import enumerated
from iobench.base.units import three_digits
from iobench.bench.observer import Observer
from iobench.bench.training import Trainer
from iobench.dataset.manifest import Manifest
from iobench.dataset.sources import FirstSamples, Source
from iobench.formats import Batch
from iobench.host.device import pick_device
from iobench.loading.host_to_device import DeviceBatch, HostBatch, HostToDevice
from iobench.loading.target import failed, function_of, kind_of
from iobench.loading.tensors import tensors_of
from iobench.recommendation.requirements import Requirements

UNEVEN = 2.0  # times as long as a quarter took, that half of them did
STEPS, TIMED_S = 20, 2.0  # that are timed: no more than so many, none after so long

Step = Callable[[DeviceBatch], object]


def timed(of: Manifest | Source, requirements: Requirements, observer: Observer) -> Requirements:
    """The same needs with the milliseconds that a step of its model, or of its callable, takes here.

    TargetError, with the traceback, where the callable raises; InvalidSettings where the model finds
    nothing to train on, or the step is said in two ways.
    """
    if bool(requirements.step_ms) + (requirements.model != "none") + bool(requirements.step) > 1:
        raise InvalidSettings("step-ms, model and step all say what the training step is: give one of them")
    if not requirements.names_step:
        return requirements
    transfer = HostToDevice(pick_device(requirements.device), non_blocking=False)
    step = _callable(requirements.step) if requirements.step else _model(requirements, of, transfer)
    observer.status(f"timing the training step: {requirements.step or requirements.model}")
    timed = [_seconds(step, tensors_of(first_batch(of, size)), transfer) for size in requirements.batch_sizes]
    took_ms = [1000 * _quick(seconds) for seconds in timed]
    observer.status(f"a step takes {enumerated([three_digits(one) for one in took_ms])} ms")
    if any(statistics.median(seconds) > UNEVEN * _quick(seconds) for seconds in timed):
        observer.status("half of the steps took much longer than that, as beside other work on this machine")
    return replace(requirements, step_ms=took_ms[0], measured_ms=tuple(took_ms))


def first_batch(of: Manifest | Source, count: int) -> Batch:
    """The first samples of a dataset or a source, or as many as there are."""
    if isinstance(of, Manifest):
        with of.opener(next(iter(of.artifacts)))() as reader:
            return reader.batch(slice(0, min(count, of.schema.samples)))
    parts = list(FirstSamples(of, count).batches())
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _model(requirements: Requirements, of: Manifest | Source, transfer: HostToDevice) -> Step:
    return Trainer(requirements.model, of.schema, transfer.device, requirements.seed).step


def _callable(word: str) -> Step:
    function = function_of(word)

    def step(batch: DeviceBatch) -> None:
        try:
            function(batch)
        except Exception as error:
            raise failed(f"--step {word} raised {kind_of(error)}", error) from error

    return step


def _quick(seconds: list[float]) -> float:
    """What a step takes that nothing disturbs: of these a quarter took no longer."""
    return sorted(seconds)[len(seconds) // 4]


def _seconds(step: Step, batch: HostBatch, transfer: HostToDevice) -> list[float]:
    """Seconds of some steps over one batch that is on the device, after one that warms up."""
    moved, taken = transfer.move(batch), list[float]()
    began = time.monotonic()
    while len(taken) < 2 or (len(taken) <= STEPS and time.monotonic() - began < TIMED_S):
        before = time.perf_counter()
        step(dict(moved))  # which may take something out of it
        transfer.synchronize()
        taken.append(time.perf_counter() - before)
    return taken[1:]
