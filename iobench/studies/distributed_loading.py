"""A DataLoader whose workers are actors of Ray: what it changes in a training, and when it is faster."""

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

from iobench.errors import DeviceUnavailable, MissingExtra
from iobench.host.device import pick_device
from iobench.loading.ray import RayLoader, cluster
from iobench.studies import _parity
from iobench.studies._base import UNKNOWN, Answer, Study, StudyOptions
from iobench.studies._claims import against, all_of, claimed_faster
from iobench.studies._parity import ALONE, RANKS, Found
from iobench.studies._references import DISTRIBUTED_LOADER
from iobench.studies._turns import Measurements, Turn, interleave, timed, together
from iobench.units import MIB, seconds_text

COLUMNS = 128  # float32: samples of 512 B
SAMPLES = MIB // (COLUMNS * 4)  # of a batch, a MiB
HERE, ELSEWHERE = 2, 6  # workers on this host, and over three hosts
COSTS_S, QUICK_COSTS_S = (0.0, 0.008, 0.032, 0.128), (0.0, 0.128)  # of a transform, per MiB
BATCHES, QUICK_BATCHES = 32, 8
EPOCHS, QUICK_EPOCHS = 10, 2
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


class DistributedLoadingStudy(Study):
    """Accuracy and speed of torch's workers and of Ray's actors."""

    reference = DISTRIBUTED_LOADER
    question = "Does a DataLoader on Ray leave a training as it is, and when is it faster?"

    def about(self, options: StudyOptions) -> str:
        """Sizes and settings, in words."""
        costs = ", ".join(_cost_text(cost) for cost in self._costs(options))
        epochs = QUICK_EPOCHS if options.quick else EPOCHS
        return (
            f"{QUICK_BATCHES if options.quick else BATCHES} batches of 1 MiB with transforms of {costs}, "
            f"processors of other hosts simulated by sleeping; trainings of {epochs} epochs over 1,800 "
            "generated samples, in one process and by DDP over 2 ranks on the CPU"
        )

    def measure(self, options: StudyOptions) -> Measurements:
        """Speed first, in this process, then the trainings, each in processes of their own."""
        if not cluster.installed():
            raise MissingExtra("this study needs Ray: pip install 'iobench[ray]'")
        with cluster.connected(ELSEWHERE):
            import ray

            options.on_status("loaders are started")
            speed, starts_s = self._speed(options)
            epochs = QUICK_EPOCHS if options.quick else EPOCHS
            address = ray.get_runtime_context().gcs_address
            options.on_status("trainings in one process and over 2 ranks")
            ranks = {
                ALONE: _parity.trainings(1, address, epochs),
                RANKS: _parity.trainings(2, address, epochs),
            }
        accuracy = _accuracies(ranks)
        figures: dict[str, Any] = {
            "starts_s": starts_s,
            "costs_s": list(self._costs(options)),
            "ranks": ranks,
        }
        figures["batches"] = QUICK_BATCHES if options.quick else BATCHES
        data = f"batches of 1 MiB and trainings on {torch.get_num_threads()} processors"
        return together([speed, accuracy], data, **figures)

    def answers(self, found: Measurements) -> list[Answer]:
        """What the rounds say about each claim."""
        ranks: dict[str, list[Found]] = found.figures["ranks"]
        most = _cost_text(max(found.figures["costs_s"]))
        light, heavy = (f"{LIGHT}, ", f"{most}, ")
        return [
            unaffected(
                "A training in one process is as accurate with it (there 90.65 against 91.09 %).",
                ranks[ALONE],
            ),
            _data_parallel(),
            unaffected(
                "A training by DDP is as accurate with it (there 88.98 against 89.84 %).", ranks[RANKS]
            ),
            over_ranks("DDP over 2 ranks is the same training as one process.", ranks),
            claimed_faster(
                "Where the transform is heavy, processors of other hosts load faster than this host's.",
                found,
                heavy + RAY_ELSEWHERE,
                heavy + TORCH,
                f"; {_crossing(found)}",
            ),
            claimed_faster(
                "Where it is light, actors load faster than torch's workers.",
                found,
                light + RAY,
                light + TORCH,
                f"; {_starts(found)}",
            ),
        ]

    def _costs(self, options: StudyOptions) -> tuple[float, ...]:
        return QUICK_COSTS_S if options.quick else COSTS_S

    def _speed(self, options: StudyOptions) -> tuple[Measurements, dict[str, float]]:
        requests = Requests(QUICK_BATCHES if options.quick else BATCHES)
        with ExitStack() as ends:
            loaders = _loaders(requests)
            for loader in loaders.values():
                ends.callback(getattr(loader, "close", lambda: None))
            starts_s = {name: _first_batch_s(loader) for name, loader in loaders.items()}
            asked = {
                f"{LIGHT}, {name}": (loaders[name], Asked(0.0, SAMPLES)) for name in (ALONE_HERE, TORCH, RAY)
            }
            for cost in self._costs(options):
                ways = (TORCH, RAY, RAY_ELSEWHERE)
                asked |= {f"{_cost_text(cost)}, {name}": (loaders[name], Asked(cost, 1)) for name in ways}
            contenders = {name: timed(partial(_epoch, requests, *one)) for name, one in asked.items()}
            rounds = 3 if options.quick else 5
            return interleave(contenders, rounds, on_status=options.on_status), starts_s


def unaffected(claim: str, ranks: list[Found]) -> Answer:
    """Whether a training is the same with both loaders: batches, losses, accuracy."""
    torch_s, ray_s = ([rank[kind] for rank in ranks] for kind in ("torch's workers", "Ray's actors"))
    whom = "Ray's actors against torch's workers"
    return all_of(
        claim,
        [
            *(
                _parity.same_batches("", one["hashes"], other["hashes"])
                for one, other in zip(torch_s, ray_s, strict=True)
            ),
            _parity.same_losses("", ray_s[0], torch_s[0], whom),
            _parity.same_accuracy("", _normed(ray_s[0]), _normed(torch_s[0]), whom),
        ],
    )


def over_ranks(claim: str, ranks: dict[str, list[Found]]) -> Answer:
    """Whether a training over several ranks is that of one process."""
    alone, several = (ranks[name][0]["torch's workers"] for name in (ALONE, RANKS))
    return all_of(
        claim,
        [
            _parity.same_losses("", several, alone, f"{RANKS} against {ALONE}"),
            _parity.same_accuracy("", _normed(several), _normed(alone), f"{RANKS} against {ALONE}"),
        ],
    )


def _normed(found: dict[str, Any]) -> list[float]:
    return [one["accuracy"] for one in found["batchnorm"]]


def _accuracies(ranks: dict[str, list[Found]]) -> Measurements:
    """The trainings with BatchNorm as contenders, a round for each seed."""
    found = Measurements({})
    for name, each in ranks.items():
        for loader, trained in each[0].items():
            for one in trained["batchnorm"]:
                found.note(f"{name}, {loader}", Turn(one["seconds"], {"accuracy": one["accuracy"]}))
    return found


def _data_parallel() -> Answer:
    claim = "A training by DataParallel is as accurate with it (there 90.67 against 90.32 %)."
    try:
        pick_device("cuda:1")
        why = "not run: this study trains on the CPU"
    except DeviceUnavailable:
        why = "not run: needs 2 CUDA devices"
    return Answer(claim, UNKNOWN, f"{why}; on the CPU DataParallel changes nothing, and would prove nothing")


def _crossing(found: Measurements) -> str:
    """From which cost of a transform on other hosts' processors pay."""
    pays = [cost for cost in found.figures["costs_s"] if _is_faster(found, _cost_text(cost))]
    shipped = median(found.seconds[f"{_cost_text(0.0)}, {RAY}"]) / found.figures["batches"]
    return (
        f"of the costs tried, {ELSEWHERE} actors are faster "
        f"{f'from {_cost_text(min(pays))} on' if pays else 'at none'}; without a transform, {RAY} take "
        f"{seconds_text(shipped)} a MiB, and a network of 1 Gbit/s between hosts would add 8.4 ms"
    )


def _is_faster(found: Measurements, cost: str) -> bool:
    compared = against(found.seconds, f"{cost}, {RAY_ELSEWHERE}", f"{cost}, {TORCH}")
    return compared.outcome == "faster"


def _starts(found: Measurements) -> str:
    return "first batch after " + ", ".join(
        f"{seconds_text(seconds)} ({name})" for name, seconds in found.figures["starts_s"].items()
    )


def _cost_text(seconds: float) -> str:
    return f"{1000 * seconds:g} ms/MiB"


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


STUDY = DistributedLoadingStudy()
