"""Cost of sending batches from Ray actors, and the cost of a transform from which that pays off."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from iobench.base.units import MIB, seconds_text
from iobench.contrib.ray.loader import RayLoader
from iobench.studies._base import StudyOptions
from iobench.studies._claims import against
from iobench.studies._rounds import Measurements, exhaust, interleave, timed

COLUMNS = 128  # float32: samples of 512 B
SAMPLES = MIB // (COLUMNS * 4)  # in a batch of a MiB
HERE, ELSEWHERE = 2, 6  # workers on this host, and over three hosts
COSTS_S, QUICK_COSTS_S = (0.0, 0.008, 0.032, 0.128), (0.0, 0.128)  # CPU time of a transform per MiB
BATCHES, QUICK_BATCHES = 32, 8
MAIN_PROCESS, TORCH, RAY, RAY_ELSEWHERE = (
    "this process",
    f"torch, {HERE} workers",
    f"Ray, {HERE} actors",
    f"Ray, {ELSEWHERE} actors",
)
LIGHT = "samples of 512 B"


@dataclass(frozen=True)
class BatchRequest:
    """A requested batch: the cost of its transform, and the number of samples that it is read in."""

    seconds: float
    samples: int


class SlowTransform(Dataset[torch.Tensor]):
    """Batches of a MiB whose transform takes a given time on a core of another host.

    The worker sleeps for that time, so that a machine with few cores can stand for several hosts.
    """

    def __init__(self) -> None:
        self.rows = torch.rand(SAMPLES, COLUMNS)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, request: Any) -> torch.Tensor:
        if request.seconds:
            time.sleep(request.seconds)
        if request.samples == 1:
            return self.rows.clone()
        collated: torch.Tensor = default_collate(list(self.rows))
        return collated


class Requests(Sampler[BatchRequest]):
    """A sampler whose items are the requests of the next epoch."""

    def __init__(self, batches: int) -> None:
        self.batches, self.request = batches, BatchRequest(0.0, 1)

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[BatchRequest]:
        return iter([self.request] * self.batches)


def costs(options: StudyOptions) -> tuple[float, ...]:
    """Return the costs of the transforms: seconds of CPU time per MiB."""
    return QUICK_COSTS_S if options.quick else COSTS_S


def batches(options: StudyOptions) -> int:
    """Return the number of batches in an epoch, a MiB each."""
    return QUICK_BATCHES if options.quick else BATCHES


def speed(options: StudyOptions) -> Measurements:
    """Measure epochs of every loader with every transform, and the time to the first batch of each."""
    requests = Requests(batches(options))
    with ExitStack() as ends:
        loaders = _loaders(requests)
        for loader in loaders.values():
            ends.callback(getattr(loader, "close", lambda: None))
        starts_s = {name: _first_batch_s(loader) for name, loader in loaders.items()}
        epochs = {
            f"{LIGHT}, {name}": (loaders[name], BatchRequest(0.0, SAMPLES))
            for name in (MAIN_PROCESS, TORCH, RAY)
        }
        for cost in costs(options):
            workers = (TORCH, RAY, RAY_ELSEWHERE)
            epochs |= {
                f"{cost_text(cost)}, {name}": (loaders[name], BatchRequest(cost, 1)) for name in workers
            }
        contenders = {name: timed(partial(_epoch, requests, *one)) for name, one in epochs.items()}
        measured = interleave(contenders, 3 if options.quick else 5, on_status=options.on_status)
    measured.figures.update(starts_s=starts_s, costs_s=list(costs(options)), batches=batches(options))
    return measured


def crossing(measured: Measurements) -> str:
    """Return the lowest cost of a transform at which cores of other hosts pay off, in words."""
    pays = [cost for cost in measured.figures["costs_s"] if _is_faster(measured, cost_text(cost))]
    shipped = median(measured.seconds[f"{cost_text(0.0)}, {RAY}"]) / measured.figures["batches"]
    return (
        f"of the costs tried, {ELSEWHERE} actors are faster "
        f"{f'from {cost_text(min(pays))} on' if pays else 'at none'}; without a transform, {RAY} take "
        f"{seconds_text(shipped)} a MiB, and a network of 1 Gbit/s between hosts would add 8.4 ms"
    )


def starts(measured: Measurements) -> str:
    """Return the time to the first batch of each loader, in words."""
    return "first batch after " + ", ".join(
        f"{seconds_text(seconds)} ({name})" for name, seconds in measured.figures["starts_s"].items()
    )


def cost_text(seconds: float) -> str:
    """Return a transform's cost as in contenders' names."""
    return f"{1000 * seconds:g} ms/MiB"


def _is_faster(measured: Measurements, cost: str) -> bool:
    compared = against(measured.seconds, f"{cost}, {RAY_ELSEWHERE}", f"{cost}, {TORCH}")
    return compared.outcome == "faster"


def _loaders(requests: Requests) -> dict[str, Any]:
    dataset = SlowTransform()
    common: dict[str, Any] = {"batch_size": None, "sampler": requests}
    parallel = {**common, "num_workers": HERE, "persistent_workers": True}
    return {
        MAIN_PROCESS: DataLoader(dataset, **common),
        TORCH: DataLoader(dataset, **parallel),
        RAY: RayLoader(dataset, **parallel),
        RAY_ELSEWHERE: RayLoader(dataset, **{**parallel, "num_workers": ELSEWHERE}),
    }


def _first_batch_s(loader: Any) -> float:
    began = time.perf_counter()
    batches = iter(loader)
    next(batches)
    taken = time.perf_counter() - began
    exhaust(batches)  # to the end: persistent workers would otherwise continue with it
    return taken


def _epoch(requests: Requests, loader: Any, request: BatchRequest) -> None:
    requests.request = request
    exhaust(loader)
