"""Which rows make up each batch of an epoch: the same for every arm."""

from __future__ import annotations

import numpy as np

from formats import Rows

ORDERS = ("sequential", "random")


def batches(samples: int, batch_size: int, order: str, seed: int, epoch: int) -> list[Rows]:
    """One epoch's batches: slices where the order is sequential, int64 rows where it is random.

    Every sample appears once; the last batch may be smaller. A random order is a permutation
    drawn by PCG64 from (seed, epoch), equal on every machine.
    """
    starts = range(0, samples, batch_size)
    if order == "sequential":
        return [slice(start, min(start + batch_size, samples)) for start in starts]
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch])))
    shuffled = generator.permutation(samples)
    return [shuffled[start : start + batch_size] for start in starts]
