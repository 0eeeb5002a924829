"""Program that trains with both loaders, in one process or in each rank of several.

`python -m iobench.studies._parity_ranks FOLDER EPOCHS` writes its results to FOLDER/RANK.json.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from iobench.bench.epoch import ProcessGroup, SingleProcess
from iobench.contrib.ray.loader import RayLoader
from iobench.host.rank_info import RankInfo
from iobench.ranks.group import Collectives, join

SAMPLES, TESTED, INPUTS, CLASSES = 1800, 1000, 64, 10
BATCH, WORKERS, HIDDEN, RATE = 100, 2, 64, 0.05  # of all ranks together
SEEDS = 5
LOADERS = {"torch's workers": DataLoader, "Ray's actors": RayLoader}


@contextmanager
def joined() -> Iterator[ProcessGroup]:
    """Join and yield the ranks that train together; a single process unless torchrun started it."""
    info = RankInfo.from_env()
    if info is None:
        yield SingleProcess()
        return
    gloo = join(info)
    try:
        yield Collectives(gloo)
    finally:
        gloo.close()


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


def hashes(kind: str, group: ProcessGroup, epochs: int) -> list[str]:
    """Return a hash of each batch of this rank's epochs under random transforms."""
    digests = []
    with loading(kind, NoisyBlobs(SAMPLES, 1), group) as (loader, sampler):
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            digests += [hashlib.sha256(b["x"].numpy().tobytes()).hexdigest() for b in loader]
    return digests


def train(
    batches: tuple[Any, Any], group: ProcessGroup, dtype: torch.dtype, normed: bool, seed: int, epochs: int
) -> dict[str, Any]:
    """Train a network; return the loss of each step over all ranks, the final accuracy and the seconds."""
    loader, sampler = batches
    network = _network(dtype, normed, seed)
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


def _network(dtype: torch.dtype, normed: bool, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    norm = [nn.BatchNorm1d(HIDDEN)] if normed else []
    layers = [nn.Linear(INPUTS, HIDDEN), *norm, nn.ReLU(), nn.Linear(HIDDEN, CLASSES)]
    return nn.Sequential(*layers).to(dtype)


def everything(kind: str, group: ProcessGroup, epochs: int) -> dict[str, Any]:
    """Return all trainings with one loader, and the hashes of its batches."""
    with loading(kind, Blobs(SAMPLES, 1), group) as batches:
        return {
            "float64": train(batches, group, torch.float64, False, 0, epochs),
            "float32": train(batches, group, torch.float32, False, 0, epochs),
            "batchnorm": [train(batches, group, torch.float32, True, seed, epochs) for seed in range(SEEDS)],
            "hashes": hashes(kind, group, 2),
        }


def main(folder: Path, epochs: int) -> None:
    """Write the results of this rank."""
    with joined() as group:
        results = {kind: everything(kind, group, epochs) for kind in LOADERS}
        (folder / f"{group.rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
