"""How many rounds: a number, or as many as it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from iobench.errors import InvalidSettings
from iobench.results import stats

AUTO = "auto"
PRECISION = 0.02  # of the median, to either side
MAX_TIME_S = 300.0


@dataclass(frozen=True)
class Rounds:
    """When a run has enough rounds: after `count`; or, without one, when each case's interval lies
    within ±2 % of its median, or another round would end later than `max_time_s`."""

    count: int | None
    max_time_s: float

    @classmethod
    def parse(cls, wanted: int | str, max_time_s: float | None = None) -> Rounds:
        """From a number or `auto`; InvalidSettings where it is neither."""
        if wanted == AUTO:
            if max_time_s is not None and not max_time_s > 0:
                raise InvalidSettings(f"max-time {max_time_s} is not above 0 seconds")
            return cls(None, MAX_TIME_S if max_time_s is None else max_time_s)
        if max_time_s is not None:
            raise InvalidSettings("max-time goes with rounds auto: a number of rounds takes what it takes")
        try:
            count = int(wanted)
        except ValueError:
            raise InvalidSettings(f"rounds {wanted!r} is neither a number nor {AUTO}") from None
        if count < 1:
            raise InvalidSettings(f"rounds {count} is below 1")
        return cls(count, 0.0)

    def go_on(self, done: int, elapsed_s: float, rates: Mapping[str, Sequence[float]]) -> bool:
        """Whether another round is wanted after `done` of them, given the cases' rates so far."""
        if self.count is not None:
            return done < self.count
        if done and elapsed_s * (done + 1) / done > self.max_time_s:
            return False
        return done < stats.ENOUGH or worst(rates)[1] > PRECISION


def worst(rates: Mapping[str, Sequence[float]]) -> tuple[str, float]:
    """The case whose interval reaches furthest from its median, and how far; 0 without cases."""
    reaches = {label: stats.estimate(values).precision for label, values in rates.items()}
    found = {label: reach for label, reach in reaches.items() if reach is not None}
    return max(found.items(), key=lambda item: item[1], default=("", 0.0))
