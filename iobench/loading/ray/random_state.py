"""The random numbers of a worker: seeded as torch seeds its own, kept and put back."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import worker as torch_worker  # so that numbers are torch's in each version


@dataclass(frozen=True)
class RandomState:
    """What the generators of Python, NumPy and torch will give next."""

    python: Any
    numpy: Any
    torch: bytes

    @classmethod
    def now(cls) -> RandomState:
        """That of this process."""
        return cls(random.getstate(), np.random.get_state(), torch.get_rng_state().numpy().tobytes())

    def restore(self) -> None:
        """Make it that of this process."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(torch.frombuffer(bytearray(self.torch), dtype=torch.uint8))


def become_worker(number: int, workers: int, base_seed: int, dataset: Any) -> None:
    """Make this process a worker as torch makes one: its seeds, one thread, and `get_worker_info()`."""
    seed = base_seed + number
    random.seed(seed)
    torch.manual_seed(seed)
    generate_state: Any = torch_worker._generate_state
    np.random.seed(generate_state(base_seed, number))
    torch.set_num_threads(1)
    torch_worker._worker_info = torch_worker.WorkerInfo(
        id=number, num_workers=workers, seed=seed, dataset=dataset
    )
