"""What it costs to ship batches from Ray's actors, and from which cost of a transform on that pays."""

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
from iobench.loading.ray import RayLoader
from iobench.studies._base import StudyOptions
from iobench.studies._claims import against
from iobench.studies._turns import Measurements, interleave, timed

COLUMNS = 128  # float32: samples of 512 B
SAMPLES = MIB // (COLUMNS * 4)  # of a batch, a MiB
HERE, ELSEWHERE = 2, 6  # workers on this host, and over three hosts
COSTS_S, QUICK_COSTS_S = (0.0, 0.008, 0.032, 0.128), (0.0, 0.128)  # of a transform, per MiB
BATCHES, QUICK_BATCHES = 32, 8
ALONE_HERE, TORCH, RAY, RAY_ELSEWHERE = (
    "this process",
    f"torch, {HERE} workers",
    f"Ray, {HERE} actors",
    f"Ray, {ELSEWHERE} actors",
)
LIGHT = "samples of 512 B"


@dataclass(frozen=True)
class Asked:
    """A batch that is asked for: what its transform costs, and in how many samples it is read."""

    seconds: float
    samples: int


class Priced(Dataset[torch.Tensor]):
    """Batches of a MiB, whose transform takes a processor somewhere else for as long as it is told to.

    The worker sleeps meanwhile, so that a machine with few processors can stand for several hosts.
    """

    def __init__(self) -> None:
        self.rows = torch.rand(SAMPLES, COLUMNS)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, asked: Any) -> torch.Tensor:
        if asked.seconds:
            time.sleep(asked.seconds)
        if asked.samples == 1:
            return self.rows.clone()
        collated: torch.Tensor = default_collate(list(self.rows))
        return collated


class Requests(Sampler[Asked]):
    """What the next epoch asks for."""

    def __init__(self, batches: int) -> None:
        self.batches, self.asked = batches, Asked(0.0, 1)

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[Asked]:
        return iter([self.asked] * self.batches)


def costs(options: StudyOptions) -> tuple[float, ...]:
    """The transforms that are tried: seconds of a processor per MiB."""
    return QUICK_COSTS_S if options.quick else COSTS_S


def batches(options: StudyOptions) -> int:
    """Of an epoch, a MiB each."""
    return QUICK_BATCHES if options.quick else BATCHES


def speed(options: StudyOptions) -> Measurements:
    """Epochs of every loader under every transform, and when each gave its first batch."""
    requests = Requests(batches(options))
    with ExitStack() as ends:
        loaders = _loaders(requests)
        for loader in loaders.values():
            ends.callback(getattr(loader, "close", lambda: None))
        starts_s = {name: _first_batch_s(loader) for name, loader in loaders.items()}
        asked = {
            f"{LIGHT}, {name}": (loaders[name], Asked(0.0, SAMPLES)) for name in (ALONE_HERE, TORCH, RAY)
        }
        for cost in costs(options):
            ways = (TORCH, RAY, RAY_ELSEWHERE)
            asked |= {f"{cost_text(cost)}, {name}": (loaders[name], Asked(cost, 1)) for name in ways}
        contenders = {name: timed(partial(_epoch, requests, *one)) for name, one in asked.items()}
        found = interleave(contenders, 3 if options.quick else 5, on_status=options.on_status)
    found.figures.update(starts_s=starts_s, costs_s=list(costs(options)), batches=batches(options))
    return found


def crossing(found: Measurements) -> str:
    """From which cost of a transform on other hosts' processors pay."""
    pays = [cost for cost in found.figures["costs_s"] if _is_faster(found, cost_text(cost))]
    shipped = median(found.seconds[f"{cost_text(0.0)}, {RAY}"]) / found.figures["batches"]
    return (
        f"of the costs tried, {ELSEWHERE} actors are faster "
        f"{f'from {cost_text(min(pays))} on' if pays else 'at none'}; without a transform, {RAY} take "
        f"{seconds_text(shipped)} a MiB, and a network of 1 Gbit/s between hosts would add 8.4 ms"
    )


def starts(found: Measurements) -> str:
    """When each loader gave its first batch."""
    return "first batch after " + ", ".join(
        f"{seconds_text(seconds)} ({name})" for name, seconds in found.figures["starts_s"].items()
    )


def cost_text(seconds: float) -> str:
    """What a transform costs, as it stands in a contender's name."""
    return f"{1000 * seconds:g} ms/MiB"


def _is_faster(found: Measurements, cost: str) -> bool:
    compared = against(found.seconds, f"{cost}, {RAY_ELSEWHERE}", f"{cost}, {TORCH}")
    return compared.outcome == "faster"


def _loaders(requests: Requests) -> dict[str, Any]:
    dataset = Priced()
    same: dict[str, Any] = {"batch_size": None, "sampler": requests}
    ahead = {**same, "num_workers": HERE, "persistent_workers": True}
    return {
        ALONE_HERE: DataLoader(dataset, **same),
        TORCH: DataLoader(dataset, **ahead),
        RAY: RayLoader(dataset, **ahead),
        RAY_ELSEWHERE: RayLoader(dataset, **{**ahead, "num_workers": ELSEWHERE}),
    }


def _first_batch_s(loader: Any) -> float:
    began = time.perf_counter()
    batches = iter(loader)
    next(batches)
    taken = time.perf_counter() - began
    for _ in batches:  # to its end: workers that persist would go on with it
        pass
    return taken


def _epoch(requests: Requests, loader: Any, asked: Asked) -> None:
    requests.asked = asked
    for _ in loader:
        pass
