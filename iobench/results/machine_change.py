"""Change of the machine between two runs: its limits, sampled during both, background load and CPU speed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from iobench.base import thresholds
from iobench.results import background_signs, run_limits, stats
from iobench.results.record import Record
from iobench.results.stats import Estimate

UNKNOWN_SPREAD = 0.25  # assumed spread of a limit's samples where there are too few to measure it
MIN_LIMIT_SAMPLES = 4  # of both runs together, from which on the spread is measured

Rounds = Sequence[Record]


@dataclass(frozen=True)
class MachineChange:
    """Differences of the machine between two runs of a case, new over base; None where unknown."""

    limit: str | None = None  # the resource that limits the case
    limit_ratio: Estimate | None = None  # its rate in the newer run over that in the base
    cpu_speed_ratio: float | None = None  # of plain Python beside the newer rounds over the base's
    background_cpu: tuple[float | None, float | None] = (None, None)  # of base and newer run:
    # median share of CPU time used by other processes
    quiet_rounds: tuple[int, int] | None = None  # without background load, of base and newer; None: all

    @property
    def limit_changed(self) -> bool:
        """True if the limit changed significantly and by at least the minimum difference."""
        if self.limit_ratio is None:
            return False
        low, high = bounds(self.limit_ratio)
        large = abs(math.log(self.limit_ratio.median)) > math.log1p(stats.MIN_DIFFERENCE)
        return (low > 1 or high < 1) and large

    @property
    def load_differs(self) -> bool:
        """True if other processes used clearly more CPU time in one of the runs."""
        base, new = self.background_cpu
        return base is not None and new is not None and abs(new - base) > thresholds.BACKGROUND_CPU


def machine_change(base: Rounds, new: Rounds) -> MachineChange:
    """Return how the machine changed between two runs of a case, from their records."""
    quiet = (sum(map(is_quiet, base)), sum(map(is_quiet, new)))
    base_rates, new_rates = run_limits.measured_rates(base), run_limits.measured_rates(new)
    name = next((name for name in base_rates if name in new_rates), None)
    return MachineChange(
        limit=name,
        limit_ratio=None if name is None else _ratio(base_rates[name], new_rates[name]),
        cpu_speed_ratio=_cpu_speed_ratio(base, new),
        background_cpu=(_background_cpu(base), _background_cpu(new)),
        quiet_rounds=None if quiet == (len(base), len(new)) else quiet,
    )


def _ratio(base: Sequence[float], new: Sequence[float]) -> Estimate:
    """Return the ratio of two runs' samples of a limit, with Student's interval over their spread."""
    if len(base) + len(new) >= MIN_LIMIT_SAMPLES:
        return stats.student(base, new, statistics.median, stats.CONFIDENCE)
    centre = math.log(statistics.median(new) / statistics.median(base))
    reach = 1.96 * UNKNOWN_SPREAD * math.sqrt(1 / len(base) + 1 / len(new))
    return Estimate(math.exp(centre), math.exp(centre - reach), math.exp(centre + reach))


def _cpu_speed_ratio(base: Rounds, new: Rounds) -> float | None:
    """Return the ratio of the median CPU speeds; None where any round lacks its speed."""
    base_speeds, new_speeds = (
        [speed for record in side if (speed := record.processor.cpu_speed_per_s)] for side in (base, new)
    )
    if len(base_speeds) + len(new_speeds) < len(base) + len(new):
        return None
    return statistics.median(new_speeds) / statistics.median(base_speeds)


def is_quiet(record: Record) -> bool:
    """Return whether no sign of background load was present during a round."""
    part = record.background
    return part is None or not any(sign.is_present(part) for sign in background_signs.SIGNS)


def _background_cpu(rounds: Rounds) -> float | None:
    shares = [record.background.processors for record in rounds if record.background]
    known = [share for share in shares if share is not None]
    return statistics.median(known) if known else None


def bounds(estimate: Estimate) -> tuple[float, float]:
    """Return the ends of an interval: 0 and infinity where there is none."""
    return estimate.low or 0.0, math.inf if estimate.high is None else estimate.high
