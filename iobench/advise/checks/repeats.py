"""Share of samples that several workers deliver."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

USUAL = 0.1  # of a worker's own samples, that may be the same: above it samples have few values


def repeated_share(batches: Sequence[Sequence[Any]], workers: int) -> float | None:
    """Return the share of samples that more than one worker delivered; None where that cannot be seen.

    Each of the first batches is a sequence of tensors; a worker delivers every `workers`-th one.
    """
    if workers < 2 or len(batches) < workers:
        return None
    samples = [list(chain(*map(_hashes, batches[worker::workers]))) for worker in range(workers)]
    total, distinct = sum(map(len, samples)), [set(one) for one in samples]
    if not total or sum(map(len, distinct)) < (1 - USUAL) * total:
        return None
    seen = sum(len(one) for one in distinct)
    return (seen - len(set().union(*distinct))) / seen * workers / (workers - 1)


def _hashes(tensors: Sequence[Any]) -> list[int]:
    """Return a hash of each sample over all tensors that have one row for each."""
    if not tensors or not tensors[0].shape:
        return []
    count = tensors[0].shape[0]
    rows = [np.asarray(one) for one in tensors if one.shape and one.shape[0] == count]
    return [hash(tuple(one[row].tobytes() for one in rows)) for row in range(count)]
