"""A DataLoader on Ray: its effect on a training, and when it is faster."""

from __future__ import annotations

import hashlib
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, default_collate

from iobench.base.errors import IobenchError, MissingDependency
from iobench.base.text import reason
from iobench.base.units import MIB, seconds_text
from iobench.bench.epoch import ProcessGroup
from iobench.contrib.ray import ray_runtime
from iobench.contrib.ray.loader import RayLoader
from iobench.host.rank_info import RankInfo
from iobench.ranks.group import Collectives, join
from iobench.results.run_warning import Value
from iobench.studies._claims import ClaimResult, Claims, all_of, judged
from iobench.studies._rounds import Measurements, RoundResult, exhaust, interleave, merged, timed
from iobench.studies._study import DISTRIBUTED_LOADER, Study, StudyOptions

PROGRAM = "iobench.studies.distributed_loading"  # `python -m PROGRAM FOLDER EPOCHS` writes FOLDER/RANK.json
LIMIT_S = 300.0
TOLERANCES = {"float64": 1e-12, "float32": 1e-5}  # of a step's loss, without BatchNorm
EQUIVALENT = 0.01  # difference in accuracy, with BatchNorm
CONFIDENCE = 0.9  # of the interval that must lie within it: two one-sided tests at 5 %
SINGLE, RANKS = "one process", "DDP of 2"

RankResults = dict[str, dict[str, Any]]  # by loader


TRAINED, TESTED, INPUTS, CLASSES = 1800, 1000, 64, 10
BATCH, WORKERS, HIDDEN, RATE = 100, 2, 64, 0.05  # of all ranks together
SEEDS, HASHED_EPOCHS = 5, 2
LOADERS = {"torch's workers": DataLoader, "Ray's actors": RayLoader}


class Blobs(Dataset[dict[str, torch.Tensor]]):
    """Ten overlapping classes in float64, drawn from a fixed seed."""

    def __init__(self, samples: int, seed: int) -> None:
        centres = np.random.default_rng(0).standard_normal((CLASSES, INPUTS))
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, CLASSES, samples)
        self.y = torch.from_numpy(labels)
        self.x = torch.from_numpy(centres[labels] + 3.2 * rng.standard_normal((samples, INPUTS)))

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[row], "y": self.y[row]}


class NoisyBlobs(Blobs):
    """Blobs with random transforms by torch, NumPy and Python."""

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        noise = torch.rand(INPUTS, dtype=torch.float64) + np.random.rand() + random.random()
        return {"x": self.x[row] + noise, "y": self.y[row]}


@contextmanager
def loading(kind: str, dataset: Blobs, group: ProcessGroup) -> Iterator[tuple[Any, Any]]:
    """Yield a loader of a kind over this rank's share, and its sampler."""
    sampler: Any = DistributedSampler(dataset, group.world_size, group.rank)
    loader: Any = LOADERS[kind](
        dataset,
        BATCH // group.world_size,
        sampler=sampler,
        num_workers=WORKERS // group.world_size,
        persistent_workers=True,
        generator=torch.Generator().manual_seed(0),
    )
    try:
        yield loader, sampler
    finally:
        if isinstance(loader, RayLoader):
            loader.close()


def train(
    batches: tuple[Any, Any], group: ProcessGroup, dtype: torch.dtype, normed: bool, seed: int, epochs: int
) -> dict[str, Any]:
    """Train a network; return the loss of each step over all ranks, the final accuracy and the seconds."""
    loader, sampler = batches
    torch.manual_seed(seed)
    norm = [nn.BatchNorm1d(HIDDEN)] if normed else []
    layers = [nn.Linear(INPUTS, HIDDEN), *norm, nn.ReLU(), nn.Linear(HIDDEN, CLASSES)]
    network = nn.Sequential(*layers).to(dtype)
    # gradients are averaged over all ranks after each backward pass
    model = network if group.world_size == 1 else DistributedDataParallel(network)
    optimiser = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    losses, began = [], time.perf_counter()
    for epoch in range(epochs):
        sampler.set_epoch(1000 * seed + epoch)
        for batch in loader:
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(batch["x"].to(dtype)), batch["y"])
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            losses.append(float(loss.detach()))
    rows = group.all_gather(losses)
    means = [sum(one) / len(rows) for one in zip(*rows, strict=True)]
    tested = Blobs(TESTED, 2)
    with torch.no_grad():
        predicted = network.eval()(tested.x.to(dtype)).argmax(1)
    accuracy = float((predicted == tested.y).double().mean())
    return {"losses": means, "accuracy": accuracy, "seconds": time.perf_counter() - began}


def everything(kind: str, group: ProcessGroup, epochs: int) -> dict[str, Any]:
    """Return all trainings with one loader, and a hash of each of its batches under random transforms."""
    hashes = []
    with loading(kind, NoisyBlobs(TRAINED, 1), group) as (loader, sampler):
        for epoch in range(HASHED_EPOCHS):
            sampler.set_epoch(epoch)
            hashes += [hashlib.sha256(batch["x"].numpy().tobytes()).hexdigest() for batch in loader]
    with loading(kind, Blobs(TRAINED, 1), group) as batches:
        return {
            "float64": train(batches, group, torch.float64, False, 0, epochs),
            "float32": train(batches, group, torch.float32, False, 0, epochs),
            "batchnorm": [train(batches, group, torch.float32, True, seed, epochs) for seed in range(SEEDS)],
            "hashes": hashes,
        }


def trainings(ranks: int, address: str, epochs: int) -> list[RankResults]:
    """Run the trainings in a process for each rank, and return the results of each rank.

    Raises IobenchError if a process fails (`training-failed`) or takes too long (`timeout`).
    """
    torchrun = [
        *("-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={ranks}", "--local-addr=127.0.0.1"),
        *("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "-m"),
    ]
    launcher = torchrun if ranks > 1 else ["-m"]
    variables = {"GLOO_SOCKET_IFNAME": "lo", "RAY_ADDRESS": address, "PYTHONPATH": os.pathsep.join(sys.path)}
    with TemporaryDirectory(prefix="iobench-") as folder:
        command = [sys.executable, *launcher, PROGRAM, folder, str(epochs)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
        except subprocess.TimeoutExpired as error:
            problem = f"a training of the study has not ended within {LIMIT_S:g} s"
            raise IobenchError(problem, kind="timeout") from error
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "Error" in line]
            cause = reason(Exception(errors[0])) if errors else f"exit code {done.returncode}"
            raise IobenchError(f"a training of the study failed: {cause}", kind="training-failed")
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(ranks)]


def _same_batches(torch_s: Sequence[str], ray_s: Sequence[str]) -> ClaimResult:
    """Return the verdict on a claim that both loaders return the same batches, from their hashes."""
    same = sum(one == other for one, other in zip(torch_s, ray_s, strict=False))
    count = max(len(torch_s), len(ray_s))
    evidence = (
        f"{same} of {count} batches under random transforms are the same bit by bit with Ray's actors "
        "and with torch's workers"
    )
    return judged(same == count, evidence, same_batches=same, batches=count)


def _same_losses(one: dict[str, Any], other: dict[str, Any], pair: str) -> ClaimResult:
    """Return the verdict on a claim that two trainings without BatchNorm have equal losses up to rounding."""
    largest: dict[str, float] = {}
    for dtype in TOLERANCES:
        pairs = zip(one[dtype]["losses"], other[dtype]["losses"], strict=True)
        largest[dtype] = max((abs(a - b) for a, b in pairs), default=float("inf"))
    same = all(largest[dtype] <= tolerance for dtype, tolerance in TOLERANCES.items())
    steps = len(one["float64"]["losses"])
    texts = [f"{most:.1e} in {dtype} (allowed {TOLERANCES[dtype]:g})" for dtype, most in largest.items()]
    evidence = f"{pair}: over {steps} steps losses differ by at most {', '.join(texts)}"
    values: dict[str, Value] = {f"largest_difference_{dtype}": most for dtype, most in largest.items()}
    return judged(same, evidence, compared=pair, steps=steps, **values)


def _same_accuracy(one: dict[str, Any], other: dict[str, Any], pair: str) -> ClaimResult:
    """Return the verdict on a claim of equivalent accuracies with BatchNorm, from differences by seed."""
    from scipy import stats

    accuracies = [[seed["accuracy"] for seed in results["batchnorm"]] for results in (one, other)]
    differences = [a - b for a, b in zip(*accuracies, strict=True)]
    count, mean = len(differences), statistics.mean(differences)
    margin = stats.t.ppf((1 + CONFIDENCE) / 2, count - 1) * statistics.stdev(differences) / count**0.5
    low, high = float(mean - margin), float(mean + margin)
    inside = low > -EQUIVALENT and high < EQUIVALENT
    outside = low >= EQUIVALENT or high <= -EQUIVALENT
    means = [*map(statistics.mean, accuracies)]
    evidence = (
        f"{pair}: with BatchNorm, over {count} seeds, accuracy {means[0]:.2%} against {means[1]:.2%}, "
        f"a difference of {100 * low:.2f} to {100 * high:.2f} points "
        f"({CONFIDENCE:.0%} interval; equivalent within {100 * EQUIVALENT:g})"
    )
    values: dict[str, Value] = {"compared": pair, "accuracy": means[0], "other_accuracy": means[1]}
    return judged(inside if inside or outside else None, evidence, **values, low=low, high=high)


def unaffected(ranks: list[RankResults]) -> ClaimResult:
    """Return the verdict on a claim that batches, losses and accuracy are the same with both loaders."""
    torch_s, ray_s = ([rank[kind] for rank in ranks] for kind in LOADERS)
    batches = [_same_batches(a["hashes"], b["hashes"]) for a, b in zip(torch_s, ray_s, strict=True)]
    compared = ray_s[0], torch_s[0], "Ray's actors against torch's workers"
    return all_of([*batches, _same_losses(*compared), _same_accuracy(*compared)])


def over_ranks(ranks: dict[str, list[RankResults]]) -> ClaimResult:
    """Return the verdict on a claim that a training over several ranks equals that of one process."""
    single, several = (ranks[name][0]["torch's workers"] for name in (SINGLE, RANKS))
    compared = several, single, f"{RANKS} against {SINGLE}"
    return all_of([_same_losses(*compared), _same_accuracy(*compared)])


def _accuracies(ranks: dict[str, list[RankResults]]) -> Measurements:
    """Return the trainings with BatchNorm as contenders, with a round for each seed."""
    measured = Measurements({})
    for name, each in ranks.items():
        for loader, trained in each[0].items():
            for one in trained["batchnorm"]:
                measured.add(f"{name}, {loader}", RoundResult(one["seconds"], {"accuracy": one["accuracy"]}))
    return measured


COLUMNS = 128  # float32: samples of 512 B
SAMPLES = MIB // (COLUMNS * 4)  # in a batch of a MiB
HERE, ELSEWHERE = 2, 6  # workers on this host, and over three hosts
COSTS_S, QUICK_COSTS_S = (0.0, 0.008, 0.032, 0.128), (0.0, 0.128)  # CPU time of a transform per MiB
BATCHES, QUICK_BATCHES = 32, 8
MAIN_PROCESS, TORCH = "this process", f"torch, {HERE} workers"
RAY, RAY_ELSEWHERE = f"Ray, {HERE} actors", f"Ray, {ELSEWHERE} actors"
LIGHT = "samples of 512 B"


BatchRequest = tuple[float, int]  # the cost of a batch's transform, and the samples that it is read in


class SlowTransform(Dataset[torch.Tensor]):
    """Batches of a MiB whose transform takes a given time on a core of another host.

    The worker sleeps for that time, so that a machine with few cores can stand for several hosts.
    """

    def __init__(self) -> None:
        self.rows = torch.rand(SAMPLES, COLUMNS)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, request: Any) -> torch.Tensor:
        seconds, samples = request
        if seconds:
            time.sleep(seconds)
        if samples == 1:
            return self.rows.clone()
        collated: torch.Tensor = default_collate(list(self.rows))
        return collated


def _speed(options: StudyOptions) -> Measurements:
    """Measure epochs of every loader with every transform, and the time to the first batch of each."""
    batches, costs = options.sized(BATCHES, QUICK_BATCHES), options.sized(COSTS_S, QUICK_COSTS_S)
    requests: list[BatchRequest] = [(0.0, 1)] * batches  # of the next epoch: the sampler of all loaders
    dataset, common = SlowTransform(), dict[str, Any](batch_size=None, sampler=requests)
    parallel = {**common, "num_workers": HERE, "persistent_workers": True}
    with ExitStack() as ends:
        loaders: dict[str, Any] = {
            MAIN_PROCESS: DataLoader(dataset, **common),
            TORCH: DataLoader(dataset, **parallel),
            RAY: RayLoader(dataset, **parallel),
            RAY_ELSEWHERE: RayLoader(dataset, **{**parallel, "num_workers": ELSEWHERE}),
        }
        for name in (RAY, RAY_ELSEWHERE):
            ends.callback(loaders[name].close)
        starts_s = {name: _first_batch_s(loader) for name, loader in loaders.items()}
        epochs = {f"{LIGHT}, {name}": (loaders[name], (0.0, SAMPLES)) for name in (MAIN_PROCESS, TORCH, RAY)}
        for cost in costs:
            workers = (TORCH, RAY, RAY_ELSEWHERE)
            epochs |= {f"{_cost(cost)}, {name}": (loaders[name], (cost, 1)) for name in workers}
        contenders = {name: timed(partial(_epoch, requests, *one)) for name, one in epochs.items()}
        measured = interleave(contenders, options.sized(5, 3), on_status=options.on_status)
    measured.figures.update(starts_s=starts_s, costs_s=list(costs), batches=batches)
    return measured


def _crossing(claims: Claims) -> str:
    """Return the lowest cost of a transform at which cores of other hosts pay off, in words."""
    measured, costs = claims.measured, claims.figures["costs_s"]
    names = {cost: (f"{_cost(cost)}, {RAY_ELSEWHERE}", f"{_cost(cost)}, {TORCH}") for cost in costs}
    pays = [cost for cost in costs if claims.compare(*names[cost]).outcome == "faster"]
    shipped = statistics.median(measured.seconds[f"{_cost(0.0)}, {RAY}"]) / measured.figures["batches"]
    return (
        f"of the costs tried, {ELSEWHERE} actors are faster "
        f"{f'from {_cost(min(pays))} on' if pays else 'at none'}; without a transform, {RAY} take "
        f"{seconds_text(shipped)} a MiB, and a network of 1 Gbit/s between hosts would add 8.4 ms"
    )


def _cost(seconds: float) -> str:
    return f"{1000 * seconds:g} ms/MiB"


def _first_batch_s(loader: Any) -> float:
    began = time.perf_counter()
    batches = iter(loader)
    next(batches)
    taken = time.perf_counter() - began
    exhaust(batches)  # to the end: persistent workers would otherwise continue with it
    return taken


def _epoch(requests: list[BatchRequest], loader: Any, request: BatchRequest) -> None:
    requests[:] = [request] * len(requests)
    exhaust(loader)


EPOCHS, QUICK_EPOCHS = 10, 2


def _setup(options: StudyOptions) -> str:
    tried = ", ".join(map(_cost, options.sized(COSTS_S, QUICK_COSTS_S)))
    epochs = options.sized(EPOCHS, QUICK_EPOCHS)
    return (
        f"{options.sized(BATCHES, QUICK_BATCHES)} batches of 1 MiB with transforms of {tried}, "
        f"cores of other hosts simulated by sleeping; trainings of {epochs} epochs over 1,800 "
        "generated samples, in one process and by DDP over 2 ranks on the CPU"
    )


def _measure(options: StudyOptions) -> Measurements:
    if not ray_runtime.installed():
        raise MissingDependency("this study needs Ray", hint="pip install 'iobench[ray]'")
    with ray_runtime.connected(ELSEWHERE):
        import ray

        options.on_status("starting loaders")
        shipped = _speed(options)
        epochs = options.sized(EPOCHS, QUICK_EPOCHS)
        address = ray.get_runtime_context().gcs_address
        options.on_status("trainings in one process and over 2 ranks")
        ranks = {SINGLE: trainings(1, address, epochs), RANKS: trainings(2, address, epochs)}
    data = f"batches of 1 MiB and trainings on {torch.get_num_threads()} cores"
    return merged([shipped, _accuracies(ranks)], data, ranks=ranks, **shipped.figures)


def _verdicts(claims: Claims) -> dict[str, ClaimResult]:
    ranks: dict[str, list[RankResults]] = claims.figures["ranks"]
    light, heavy, faster = f"{LIGHT}, ", f"{_cost(max(claims.figures['costs_s']))}, ", claims.faster
    starts = (f"{seconds_text(seconds)} ({name})" for name, seconds in claims.figures["starts_s"].items())
    return {
        "A training in one process is as accurate with it (there 90.65 against 91.09 %).": unaffected(
            ranks[SINGLE]
        ),
        "A training by DataParallel is as accurate with it (there 90.67 against 90.32 %).": judged(
            None, "not run: this study trains on the CPU, where DataParallel changes nothing"
        ),
        "A training by DDP is as accurate with it (there 88.98 against 89.84 %).": unaffected(ranks[RANKS]),
        "DDP over 2 ranks is the same training as one process.": over_ranks(ranks),
        "Where the transform is heavy, processors of other hosts load faster than this host's.": faster(
            heavy + RAY_ELSEWHERE, heavy + TORCH, f"; {_crossing(claims)}"
        ),
        "Where it is light, actors load faster than torch's workers.": faster(
            light + RAY, light + TORCH, f"; first batch after {', '.join(starts)}"
        ),
    }


QUESTION = "Does a DataLoader on Ray leave a training unchanged, and when is it faster?"
STUDY = Study(DISTRIBUTED_LOADER, QUESTION, _setup, _measure, _verdicts)


def main(folder: Path, epochs: int) -> None:
    """Write the results of this rank; of a single process unless torchrun started it."""
    info = RankInfo.from_env()
    with nullcontext() if info is None else closing(join(info)) as gloo:
        group = ProcessGroup() if gloo is None else Collectives(gloo)
        results = {kind: everything(kind, group, epochs) for kind in LOADERS}
        (folder / f"{group.rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
