"""Shuffle quality: how random the batches of an order are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from iobench.formats import Rows, index_of


def shuffle_quality(batches: Sequence[Rows], block_rows: int, samples: int) -> float:
    """Return the randomness of batches, from 0 (a batch is one block) to about 1 (a full shuffle).

    It is the mean effective sample size of a batch if all samples of a block were equal, n² / Σ m² for m
    samples from each block (Kish 1965), divided by its expectation for a permutation of all samples.

    Parameters
    ----------
    batches : sequence of slices or int64 arrays
        Rows of each batch.
    block_rows : int
        Samples per block.
    samples : int
        Samples in the dataset.
    """
    actual = expected = 0.0
    whole, rest = divmod(samples, block_rows)
    pairs = whole * block_rows * (block_rows - 1) + rest * (rest - 1)  # of samples of one block
    alike = pairs / max(1, samples * (samples - 1))
    for rows in batches:
        index = index_of(rows)
        members = np.unique(index // block_rows, return_counts=True)[1].astype(np.float64)
        count = len(index)
        actual += count**2 / float((members**2).sum())
        expected += count**2 / (count + count * (count - 1) * alike)
    return actual / expected if expected else 1.0
