"""Number of rounds, and the order of cases within each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from iobench.base.errors import InvalidSettings
from iobench.results import stats

T = TypeVar("T")

AUTO = "auto"
PRECISION = 0.02  # half-width of an interval relative to its median
MAX_TIME_S = 300.0
DEFAULT_ROUNDS = 15  # enough for a verdict over a dozen cases to survive one outlier


@dataclass(frozen=True)
class RoundPlan:
    """Stopping rule of a run.

    Stop after `count` rounds. Without a count, stop after at least ten rounds as soon as each case's
    interval lies within ±2 % of its median. No round except the first begins if it would end later than
    `max_time_s`.
    """

    count: int | None
    max_time_s: float | None

    @classmethod
    def parse(cls, rounds: int | str, max_time_s: float | None = None) -> RoundPlan:
        """Parse a number or `auto`; raises InvalidSettings for anything else."""
        if max_time_s is not None and not 0 < max_time_s < float("inf"):
            raise InvalidSettings(
                "--max-time", kind="out-of-range", expected="a number of seconds above 0", found=max_time_s
            )
        if rounds == AUTO:
            return cls(None, MAX_TIME_S if max_time_s is None else max_time_s)
        try:
            count = int(rounds)
        except ValueError:
            raise InvalidSettings(
                "--rounds", kind="not-a-number", expected=f"a number or {AUTO}", found=repr(rounds)
            ) from None
        if count < 1:
            raise InvalidSettings("--rounds", kind="out-of-range", expected="at least 1", found=count)
        return cls(count, max_time_s)

    def go_on(self, done: int, elapsed_s: float, rates: Mapping[str, Sequence[float]]) -> bool:
        """Return whether another round follows `done` rounds, given the cases' rates so far."""
        if self.count is not None and done >= self.count:
            return False
        if self.max_time_s is not None and done and elapsed_s * (done + 1) / done > self.max_time_s:
            return False
        return self.count is not None or done < stats.PAIRED_ROUNDS or worst(rates)[1] > PRECISION


def interleaved(
    items: Sequence[T],
    go_on: Callable[[int], bool],
    seed: int = 0,
    first: Callable[[T], Any] | None = None,
) -> Iterator[tuple[int, T]]:
    """Yield (round number from 1, item) for all items in turn, while `go_on(done)` is true.

    Each round has its own order, drawn by PCG64 from the seed, because the predecessor of a case affects it
    (memory that one case has freed is quick to allocate for the next). `first` is a sort key that replaces
    the random order in the first round.
    """
    shuffle, done = np.random.Generator(np.random.PCG64(seed)), 0
    while go_on(done):
        done += 1
        order = [items[index] for index in shuffle.permutation(len(items))]
        for item in sorted(items, key=first) if first is not None and done == 1 else order:
            yield done, item


def worst(rates: Mapping[str, Sequence[float]]) -> tuple[str, float]:
    """Return the key of the case with the widest relative interval, and its half-width; 0 without cases."""
    reaches = {key: stats.estimate(values).precision for key, values in rates.items()}
    known = {key: reach for key, reach in reaches.items() if reach is not None}
    return max(known.items(), key=lambda item: item[1], default=("", 0.0))
