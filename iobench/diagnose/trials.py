"""The obvious variants of a DataLoader, tried without touching the user's code."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate, default_convert

from iobench.diagnose.facts import is_dataloader, tensors_of
from iobench.host.device import device_of, pick_device
from iobench.loading.loaders.dataloader import unwarned
from iobench.units import counted

ROUNDS = 3
MOST_WORKERS = 16
IDLE_TIMES = 8  # as many workers as cores, where they would wait most of the time
AS_IT_IS = "as it is"
BATCH_FETCH = "whole batches from the dataset"

Guard = Callable[[Iterable[Any]], Iterable[Any]]


@dataclass
class Trial:
    """A variant and how fast it was."""

    name: str
    changes: dict[str, Any]  # of DataLoader's arguments
    rates: list[float] = field(default_factory=list)  # samples (or batches) per second of an epoch
    first_batch_s: list[float] = field(default_factory=list)
    failed: str | None = None

    @property
    def rate(self) -> float:
        """The median over its rounds; 0 where it failed."""
        return statistics.median(self.rates) if self.rates else 0.0


def trials_of(loader: Any, idle: bool = False) -> list[Trial]:
    """The loader as it is and, of a DataLoader, what else is worth trying here.

    `idle`: its processes wait most of the time, so that more workers than cores may bring something.
    """
    found = [Trial(AS_IT_IS, {})]
    if not is_dataloader(loader):
        return found
    found += [
        Trial(counted(n, "worker"), {"num_workers": n}) for n in _counts(idle) if n != loader.num_workers
    ]
    if loader.num_workers:
        more = 4 * (loader.prefetch_factor or 2)
        found.append(Trial(f"prefetch factor {more}", {"prefetch_factor": more}))
    if device_of(pick_device("auto")).pins and not loader.pin_memory:
        found.append(Trial("pinned memory", {"pin_memory": True}))
    if fetches_batches(loader):
        found.append(Trial(BATCH_FETCH, {"batch_fetch": True, "num_workers": 0}))
    return found


def run(loader: Any, trials: Sequence[Trial], seconds: float, batches: int, guard: Guard) -> None:
    """Fill in the trials' rates, over rounds in which all take turns; `seconds` for all together.

    `guard` passes items on, and complains where one takes too long.
    """
    each_s = seconds / len(trials) / ROUNDS
    for _ in range(ROUNDS):
        for trial in trials:
            if trial.failed is None:
                with unwarned():
                    _run(trial, loader, each_s, batches, guard)


def rebuilt(loader: Any, changes: dict[str, Any]) -> Any:
    """A DataLoader like the given one but for these arguments; without changes that loader itself."""
    if not changes:
        return loader
    changes = dict(changes)
    if changes.pop("batch_fetch", False):
        changes |= {"batch_size": None, "sampler": loader.batch_sampler, "collate_fn": None}
    elif isinstance(loader.dataset, IterableDataset):
        changes |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    elif loader.batch_sampler is not None:
        changes |= {"batch_sampler": loader.batch_sampler}
    else:
        changes |= {"batch_size": None, "sampler": loader.sampler}
    kept = {"collate_fn": loader.collate_fn, "pin_memory": loader.pin_memory, "timeout": loader.timeout}
    kept |= {"num_workers": loader.num_workers, "worker_init_fn": loader.worker_init_fn}
    arguments = {**kept, "generator": loader.generator, **changes}
    if arguments["num_workers"]:
        own = {"prefetch_factor": loader.prefetch_factor} if loader.num_workers else {}
        context = {"multiprocessing_context": loader.multiprocessing_context}
        arguments = {**own, **context, **arguments}
    return DataLoader(loader.dataset, **arguments)


def fetches_batches(loader: Any) -> bool:
    """Whether the dataset, asked for a list of samples at once, gives the batch that collating gives."""
    dataset = loader.dataset
    if loader.batch_sampler is None or isinstance(dataset, IterableDataset):
        return False
    if hasattr(dataset, "__getitems__") or loader.collate_fn is not default_collate:
        return False
    size = len(dataset)
    rows = list(dict.fromkeys((0, size // 2, size - 1)))
    try:
        whole = default_convert(dataset[rows])  # type: ignore[no-untyped-call]
        single = default_collate([dataset[row] for row in rows])
    except Exception:  # noqa: BLE001 - whatever somebody's dataset says to a list
        return False
    return _same(whole, single)


def _same(one: Any, other: Any) -> bool:
    ones, others = tensors_of(one), tensors_of(other)
    return (
        len(ones) == len(others) > 0
        and isinstance(one, dict) == isinstance(other, dict)
        and all(
            isinstance(b, torch.Tensor) and a.shape == b.shape and a.dtype == b.dtype and bool((a == b).all())
            for a, b in zip(ones, others, strict=True)
        )
    )


def _counts(idle: bool) -> list[int]:
    """Numbers of workers worth trying: none, and powers of two up to the cores, or some times as many."""
    cores = min(MOST_WORKERS, len(os.sched_getaffinity(0)) * (IDLE_TIMES if idle else 1))
    return [0, *(2**power for power in range(1, cores.bit_length()) if 2**power <= cores)]


def _run(trial: Trial, loader: Any, seconds: float, batches: int, guard: Guard) -> None:
    began = time.perf_counter()
    samples, times = 0, [began]
    finished = True
    try:
        for batch in islice(guard(rebuilt(loader, trial.changes)), batches):
            times.append(time.perf_counter())
            samples += _samples(batch)
            if times[-1] - times[1] > seconds and len(times) > 2:
                finished = False
                break
    except Exception as error:  # noqa: BLE001 - what fails is no advice
        trial.failed = str(error).strip().partition("\n")[0] or type(error).__name__
        return
    done, took = len(times) - 1, time.perf_counter() - began
    if done > 1:
        total = _length(loader)
        if total is not None and total > done and (not finished or done == batches):
            took = times[1] - began + (times[-1] - times[1]) / (done - 1) * (total - 1)
            samples = samples // done * total
        trial.rates.append(samples / took)
        trial.first_batch_s.append(times[1] - began)


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:  # an endless one, or a generator
        return None


def _samples(batch: Any) -> int:
    tensors = tensors_of(batch)
    return len(tensors[0]) if tensors and tensors[0].shape else 1
