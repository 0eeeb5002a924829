"""Random state of a worker: seeded as in torch's own workers, saved and restored."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import worker as torch_worker  # for the same numbers as each version of torch


@dataclass(frozen=True)
class RandomState:
    """State of the random generators of Python, NumPy and torch."""

    python: Any
    numpy: Any
    torch: bytes

    @classmethod
    def now(cls) -> RandomState:
        """Return the state of this process."""
        return cls(random.getstate(), np.random.get_state(), torch.get_rng_state().numpy().tobytes())

    def restore(self) -> None:
        """Set the generators of this process to this state."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(torch.frombuffer(bytearray(self.torch), dtype=torch.uint8))


def become_worker(number: int, workers: int, base_seed: int, dataset: Any) -> None:
    """Set this process up as torch sets up a worker: seeds, one thread, and `get_worker_info()`."""
    seed = base_seed + number
    random.seed(seed)
    torch.manual_seed(seed)
    generate_state: Any = torch_worker._generate_state
    np.random.seed(generate_state(base_seed, number))
    torch.set_num_threads(1)
    torch_worker._worker_info = torch_worker.WorkerInfo(
        id=number, num_workers=workers, seed=seed, dataset=dataset
    )
