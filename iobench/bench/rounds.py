"""Rounds: the order of cases within each, and how precise their figures are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from iobench.results import stats

T = TypeVar("T")
Rates = Mapping[str, Mapping[int, float]]  # samples/s of each remaining case, by its key and by round


def interleaved(
    items: Sequence[T],
    go_on: Callable[[int], bool],
    seed: int = 0,
    first: Callable[[T], Any] = lambda item: 0,
) -> Iterator[tuple[int, T]]:
    """Yield (round number from 1, item) for all items in turn, while `go_on(done)` is true.

    Each round has its own order, drawn by PCG64 from the seed, because the predecessor of a case affects it
    (memory that one case has freed is quick to allocate for the next). The first round is sorted by
    `first`.
    """
    shuffle, done = np.random.Generator(np.random.PCG64(seed)), 0
    while go_on(done):
        done += 1
        order = [items[index] for index in shuffle.permutation(len(items))]
        for item in sorted(order, key=first) if done == 1 else order:
            yield done, item


def worst(rates: Rates) -> tuple[str, float]:
    """Return the key of the case with the widest relative interval, and its half-width; 0 without cases."""
    reaches = {key: stats.estimate([*rounds.values()]).precision for key, rounds in rates.items() if rounds}
    known = {key: reach for key, reach in reaches.items() if reach is not None}
    return max(known.items(), key=lambda item: item[1], default=("", 0.0))
