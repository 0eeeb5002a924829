"""How many rounds, and whose turn it is in each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from iobench.base.errors import (
    InvalidSettings,
)
from iobench.results import stats

T = TypeVar("T")

AUTO = "auto"
PRECISION = 0.02  # of the median, to either side
MAX_TIME_S = 300.0
DEFAULT_ROUNDS = 15  # from which on a verdict over a dozen cases bears an odd round


@dataclass(frozen=True)
class RoundPlan:
    """When a run has enough rounds.

    After `count`; without one, from ten rounds on, when each case's interval lies within ±2 % of its
    median. Either way no round is begun that would end later than `max_time_s`, except the first.
    """

    count: int | None
    max_time_s: float | None

    @classmethod
    def parse(cls, wanted: int | str, max_time_s: float | None = None) -> RoundPlan:
        """From a number or `auto`; InvalidSettings where it is neither."""
        if max_time_s is not None and not 0 < max_time_s < float("inf"):
            raise InvalidSettings(f"max-time {max_time_s} is not a number of seconds above 0")
        if wanted == AUTO:
            return cls(None, MAX_TIME_S if max_time_s is None else max_time_s)
        try:
            count = int(wanted)
        except ValueError:
            raise InvalidSettings(f"rounds {wanted!r} is neither a number nor {AUTO}") from None
        if count < 1:
            raise InvalidSettings(f"rounds {count} is below 1")
        return cls(count, max_time_s)

    def go_on(self, done: int, elapsed_s: float, rates: Mapping[str, Sequence[float]]) -> bool:
        """Whether another round is wanted after `done` of them, given the cases' rates so far."""
        if self.count is not None and done >= self.count:
            return False
        if self.max_time_s is not None and done and elapsed_s * (done + 1) / done > self.max_time_s:
            return False
        return self.count is not None or done < stats.PAIRED or worst(rates)[1] > PRECISION


def interleaved(
    items: Sequence[T],
    go_on: Callable[[int], bool],
    seed: int = 0,
    first: Callable[[T], Any] | None = None,
) -> Iterator[tuple[int, T]]:
    """The number of each round, from 1, with each item in its turn, for as long as `go_on(done)` says.

    Each round has an order of its own, drawn by PCG64 from the seed: who comes after whom matters
    (memory that one has given back is quick to get for the next). `first` is what the first round is
    sorted by in place of that.
    """
    shuffle, done = np.random.Generator(np.random.PCG64(seed)), 0
    while go_on(done):
        done += 1
        order = [items[index] for index in shuffle.permutation(len(items))]
        for item in sorted(items, key=first) if first is not None and done == 1 else order:
            yield done, item


def worst(rates: Mapping[str, Sequence[float]]) -> tuple[str, float]:
    """The case whose interval reaches furthest from its median, and how far; 0 without cases."""
    reaches = {key: stats.estimate(values).precision for key, values in rates.items()}
    found = {key: reach for key, reach in reaches.items() if reach is not None}
    return max(found.items(), key=lambda item: item[1], default=("", 0.0))
