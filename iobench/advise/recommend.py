"""Recommendation in one call, with the time of the training step: given, or measured on a batch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from iobench import formats
from iobench.advise import measured_data
from iobench.advise.findings import recommendation_of
from iobench.advise.recommendation import Recommendation
from iobench.advise.requirements import Requirements
from iobench.advise.search import search
from iobench.base.errors import InvalidSettings
from iobench.base.text import enumerated
from iobench.base.units import three_digits
from iobench.bench.budget import Budget
from iobench.bench.outcome import Observer
from iobench.bench.training import Trainer
from iobench.dataset.manifest import Manifest
from iobench.dataset.sources import FirstSamples, Source
from iobench.formats import Batch, joined
from iobench.host.device import pick_device
from iobench.loading import loaders
from iobench.loading.host_to_device import DeviceBatch, HostBatch, HostToDevice
from iobench.loading.target import import_function
from iobench.loading.tensors import tensors_of
from iobench.loading.user_errors import USER_ERRORS, outcome, target_error
from iobench.results.parts import check_prices

UNEVEN = 2.0  # ratio of the median to the lower quartile, from which on steps were disturbed
MAX_STEPS, MAX_TIMED_S = 20, 2.0  # that are timed

StepFunction = Callable[[DeviceBatch], object]


def time_step(of: Manifest | Source, requirements: Requirements, observer: Observer) -> Requirements:
    """Return the requirements with the measured milliseconds of their model's or function's step.

    Raises
    ------
    TargetError
        The user's function raises (``raised``, with its traceback).
    InvalidSettings
        The step is given in two ways (``conflicting-options``), or the model has nothing to train on.
    """
    if bool(requirements.step_ms) + (requirements.model != "none") + bool(requirements.step) > 1:
        problem = "--step-ms, --model and --step each define the training step"
        raise InvalidSettings(problem, kind="conflicting-options", hint="give one of them")
    if not requirements.has_unknown_step:
        return requirements
    transfer = HostToDevice(pick_device(requirements.device), non_blocking=False)
    model = requirements.model, of.schema, transfer.device, requirements.seed
    step = _function(requirements.step) if requirements.step else Trainer(*model).step
    observer.status(f"timing the training step: {requirements.step or requirements.model}")
    times = [_seconds(step, tensors_of(first_batch(of, size)), transfer) for size in requirements.batch_sizes]
    step_ms = [1000 * _lower_quartile(seconds) for seconds in times]
    observer.status(f"a step takes {enumerated([three_digits(one) for one in step_ms])} ms")
    if any(statistics.median(seconds) > UNEVEN * _lower_quartile(seconds) for seconds in times):
        observer.status("half of the steps took much longer, as under background load")
    return replace(requirements, step_ms=step_ms[0], measured_ms=tuple(step_ms))


def first_batch(of: Manifest | Source, count: int) -> Batch:
    """Return the first samples of a dataset or a source, up to `count`."""
    if isinstance(of, Manifest):
        with of.opener(next(iter(of.artifacts)))() as reader:
            return reader.batch(slice(0, min(count, of.schema.samples)))
    parts = list(FirstSamples(of, count).batches())
    return {name: joined([part[name] for part in parts]) for name in parts[0]}


def _function(word: str) -> StepFunction:
    function = import_function(word)

    def step(batch: DeviceBatch) -> None:
        try:
            function(batch)
        except USER_ERRORS as error:
            raise target_error(f"--step {word} {outcome(error)}", error) from error

    return step


def _lower_quartile(seconds: list[float]) -> float:
    return sorted(seconds)[len(seconds) // 4]


def _seconds(step: StepFunction, batch: HostBatch, transfer: HostToDevice) -> list[float]:
    """Return the seconds of some steps over one batch on the device, after one warm-up step."""
    moved, taken = transfer.move(batch), list[float]()
    began = time.monotonic()
    while len(taken) < 2 or (len(taken) <= MAX_STEPS and time.monotonic() - began < MAX_TIMED_S):
        before = time.perf_counter()
        step(dict(moved))  # a copy: the step may remove fields
        transfer.synchronize()
        taken.append(time.perf_counter() - before)
    return taken[1:]


def recommend(
    of: Manifest | Source,
    requirements: Requirements | None = None,
    *,
    data_dir: str | Path = Path("data"),
    source_words: Sequence[str] = (),
    observer: Observer | None = None,
    budget: Budget | None = None,
) -> Recommendation:
    """Recommend a format, a loader and settings for a dataset or a source.

    Parameters
    ----------
    of : Manifest or Source
        A prepared dataset; or a source, of which a sample is written in every format.
    requirements : Requirements, optional
        The training that it is for. No new measurement starts after its `max_time_s`.
    data_dir : str or Path
        Data folder.
    source_words : sequence of str
        Command-line arguments that name the source, for the printed `iobench prepare` command.
    observer : Observer, optional
        Is notified of progress.
    budget : Budget, optional
        Time for everything, by default that of the requirements, from this call on.

    Raises
    ------
    InvalidSettings
        Nothing fits the requirements.
    LoaderFailed
        No case could be measured (``no-case-measured``).
    TargetError
        The user's step raises.
    KeyboardInterrupt
        After Ctrl-C before anything was measured. Later, the answer rests on what was measured until then,
        and a finding ``interrupted`` says so.
    """
    requirements, observer = requirements or Requirements(), observer or Observer()
    budget = budget or Budget(requirements.max_time_s)
    pick_device(requirements.device)
    _check(of, requirements)
    requirements = time_step(of, requirements, observer)
    if isinstance(of, Manifest):
        data = measured_data.from_dataset(of, requirements)
    else:
        folder, status = Path(data_dir), observer.status
        data = measured_data.from_source(of, source_words, requirements, folder, status, budget)
    return recommendation_of(search(data, requirements, observer, budget), requirements)


def _check(of: Manifest | Source, requirements: Requirements) -> None:
    """Raise for unknown formats and loaders, and useless prices, before anything is timed or written."""
    check_prices(requirements.prices, of.url if isinstance(of, Manifest) else None)
    for word in requirements.loaders:
        if word != "all":
            loaders.parse(word)
    for word in requirements.formats:
        if word != "all":
            variant = formats.parse(word).variant
            if isinstance(of, Manifest):
                of.opener(variant)
