"""Usual loops over random windows of 1,025 tokens, in batches of 64, as stream_speed compares them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from iobench.loading.order import Order

OF_TOKENS = Order("random", 64)


def stack_of_views(file: Path, number: int) -> Iterator[torch.Tensor]:
    """Yield stacks of slices of a plain array, which are cheaper than slices of `np.memmap`."""
    stored = np.asarray(np.memmap(file, np.uint16, "r"))
    for rows in OF_TOKENS.batches((len(stored) - 1025) // 1024 + 1, number):
        yield torch.from_numpy(np.stack([stored[i * 1024 : i * 1024 + 1025] for i in rows.tolist()]))


def get_batch(file: Path, number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches as nanoGPT's train.py makes them, for as many as an epoch has."""
    samples = (file.stat().st_size // 2 - 1025) // 1024 + 1
    for _ in range(-(-samples // 64)):
        data = np.memmap(file, dtype=np.uint16, mode="r")
        starts = torch.randint(len(data) - 1024, (64,))
        x = torch.stack([torch.from_numpy(data[i : i + 1024].astype(np.int64)) for i in starts])
        y = torch.stack([torch.from_numpy(data[i + 1 : i + 1025].astype(np.int64)) for i in starts])
        yield x, y
