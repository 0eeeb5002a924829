"""The ranks of a training that torchrun has started: the only importer of torch.distributed here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

LIMIT = timedelta(seconds=60)  # for all ranks to come to the same point


@dataclass(frozen=True)
class Group:
    """The ranks that train together; of one rank by itself."""

    rank: int = 0
    world_size: int = 1

    def over_all(self, network: nn.Module) -> nn.Module:
        """The network, its gradients averaged over all ranks after each backward pass."""
        return DistributedDataParallel(network) if self.world_size > 1 else network

    def mean(self, value: torch.Tensor) -> float:
        """The mean of a figure over all ranks."""
        total = value.detach().clone()
        if self.world_size > 1:
            distributed.all_reduce(total)
        return float(total) / self.world_size


@contextmanager
def joined() -> Iterator[Group]:
    """The group of a process that torchrun has started, over gloo; of any other process, by itself."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        yield Group()
        return
    distributed.init_process_group("gloo", timeout=LIMIT)
    try:
        yield Group(distributed.get_rank(), world_size)
    finally:
        distributed.destroy_process_group()
