"""Trends: cases over several runs, and steps in their speed.

A run counts as one value, its median, because the variance between runs exceeds the variance within one
(Kalibera and Jones, "Rigorous benchmarking in reasonable time", 2013). A step is placed where the runs before
and after differ most relative to their spread, and tested by a permutation test of the largest of all
two-sample statistics (Antoch and Hušková, "Permutation tests in change point analysis", 2001). It is
attributed to the case only if its speed relative to the machine's limit in each run has a step, too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from iobench.base import grouped
from iobench.results import cases, stats
from iobench.results.display import Block, table
from iobench.results.metrics import mib_text
from iobench.results.record import Record
from iobench.results.run_warning import BACKGROUND_SIGNS
from iobench.results.stats import Estimate

MIN_RUNS = 3  # for a trend
MIN_STEP_RUNS = 8  # quiet runs, from which on a step can be significant
MIN_SIDE = 2  # runs before a step, and after it
PERMUTATIONS = 4999
BATCH = 250  # permutations at a time, which fit into a cache; most series without a step need only one
SIGNIFICANCE = 0.05  # probability of a step in runs that only scatter, over all cases together
BLOCKS = "▁▂▃▄▅▆▇█"

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TrendPoint:
    """The result of one run for a case."""

    run: str
    time: str  # ISO 8601, UTC, end of its last round
    bytes_per_s: Estimate
    limit_bytes_per_s: float | None  # rate of the limiting resource during the run
    busy: bool  # too many rounds were under background load


@dataclass(frozen=True)
class CasePoint:
    """The result of one run for a case, with the identity of both: all that trends are computed from."""

    key: str  # of the case
    facets: dict[str, Any]
    run_id: str
    rounds: int
    point: TrendPoint


@dataclass(frozen=True)
class SpeedStep:
    """A significant change of speed: the last run before it and the first one after."""

    before: str
    after: str
    ratio: float  # of the medians, after over before
    limit_ratio: float | None  # the same of the machine's own limit; None where it was not measured
    case_specific: bool | None  # whether the limit does not explain it; None where it was not measured


@dataclass(frozen=True)
class Trend:
    """A case over several runs, the oldest first."""

    derived: ClassVar = ("outcome", "sentence")

    dataset: str
    case: str
    key: str
    points: list[TrendPoint]
    step: SpeedStep | None

    @property
    def sparkline(self) -> str:
        """Its speed from run to run as blocks, from zero to the highest."""
        speeds = [point.bytes_per_s.median for point in self.points]
        return "".join(BLOCKS[round(speed / max(speeds) * (len(BLOCKS) - 1))] for speed in speeds)

    @property
    def busy_runs(self) -> int:
        """Number of runs under background load, which are excluded from the search for a step."""
        return sum(point.busy for point in self.points)

    @property
    def outcome(self) -> str:
        """`faster`, `slower`, `machine-changed`, `no-step` or `too-few-runs`."""
        if self.step is None:
            return "no-step" if len(self.points) - self.busy_runs >= MIN_STEP_RUNS else "too-few-runs"
        if self.step.case_specific is False:
            return "machine-changed"
        return "faster" if self.step.ratio > 1 else "slower"

    @property
    def sentence(self) -> str:
        """The outcome in one line."""
        runs = f"{len(self.points)} runs"
        if self.busy_runs:
            runs += f", {self.busy_runs} under background load"
        subject = f"{self.case} on {self.dataset}"
        if self.step is None:
            hint = f"; steps are searched for from {MIN_STEP_RUNS} quiet runs on"
            return f"{subject}: no step in {runs}{hint if self.outcome == 'too-few-runs' else ''}"
        prefix = "inconclusive (machine changed): " if self.outcome == "machine-changed" else ""
        return f"{subject}: {prefix}{_step_text(self.step)} ({runs})"


def case_points(name: str, records: Sequence[Record]) -> list[CasePoint]:
    """Return the points of all cases in the records of a file with the name of a run."""
    return [
        CasePoint(key, rounds[0].facets, run_id, len(rounds), _point(name, rounds))
        for key, group in cases.by_case(records).items()
        for run_id, rounds in cases.by_run(group).items()
    ]


def trends(points: Iterable[CasePoint]) -> list[Trend]:
    """Return the trend of every case that several runs measured, those with a step first."""
    groups = grouped((one.key, one) for one in points)
    several = {key: chosen for key, group in groups.items() if len(chosen := _chosen(group)) >= MIN_RUNS}
    by_dataset = grouped((str(groups[key][0].facets["dataset"]), key) for key in several)
    result = list[Trend]()
    for dataset in sorted(by_dataset):
        for key, label in cases.labels({key: groups[key][0].facets for key in by_dataset[dataset]}).items():
            step = _step(several[key], SIGNIFICANCE / len(several))
            result.append(Trend(dataset, str(label), key, several[key], step))
    return sorted(result, key=lambda trend: trend.step is None)


def blocks_of(trends: Sequence[Trend]) -> Iterator[Block]:
    """Yield a sentence for each case over several runs, and a table of them."""
    yield Block("answer", [trend.sentence for trend in trends])
    titles = ("dataset", "case", "runs", "first MiB/s", "last MiB/s", "trend")
    rows = []
    for trend in trends:
        first, *_, last = (mib_text(point.bytes_per_s.median) for point in trend.points)
        rows.append((trend.dataset, trend.case, str(len(trend.points)), first, last, trend.sparkline))
    yield table(titles, rows, heads=2)


def _chosen(points: Sequence[CasePoint]) -> list[TrendPoint]:
    """Return a point per run; runs of a round or two, such as races, only where there are no others.

    Of several files with the same run, the one with the most rounds counts.
    """
    by_run = {one.run_id: one for one in sorted(points, key=lambda one: one.rounds)}
    enough = [one.point for one in by_run.values() if one.rounds >= stats.MIN_ROUNDS]
    chosen = enough or [one.point for one in by_run.values()]
    return sorted(chosen, key=lambda point: point.time)


def _point(name: str, records: Sequence[Record]) -> TrendPoint:
    limits = next(iter(cases.measured_rates(records).values()), [])
    background = [record.background for record in records]
    return TrendPoint(
        run=name,
        time=max(record.time for record in records),
        bytes_per_s=stats.estimate([record.bytes_per_s for record in records]),
        limit_bytes_per_s=statistics.median(limits) if limits else None,
        busy=any(sign.frequency(background) is not None for sign in BACKGROUND_SIGNS),
    )


def _step(points: Sequence[TrendPoint], chance: float) -> SpeedStep | None:
    """Return the step among the quiet runs, where it is significant and large enough."""
    quiet = [point for point in points if not point.busy]
    if len(quiet) < MIN_STEP_RUNS:
        return None
    speeds = np.log([point.bytes_per_s.median for point in quiet])
    place = _place(speeds, chance)
    if place is None or abs(_change(speeds, place)) < math.log1p(stats.MIN_DIFFERENCE):
        return None
    known = [point.limit_bytes_per_s for point in quiet if point.limit_bytes_per_s is not None]
    limits = np.log(known) if len(known) == len(quiet) else None
    return SpeedStep(
        before=quiet[place - 1].run,
        after=quiet[place].run,
        ratio=math.exp(_change(speeds, place)),
        limit_ratio=None if limits is None else math.exp(_change(limits, place)),
        case_specific=None if limits is None else _is_case_specific(speeds, limits, place, chance),
    )


def _is_case_specific(speeds: Values, limits: Values, place: int, chance: float) -> bool:
    """Return whether speeds relative to the limit have a step of the same sign near that place, too."""
    relative = speeds - limits
    relative_place = _place(relative, chance)
    if relative_place is None or abs(relative_place - place) > MIN_SIDE:
        return False
    whole, rest = _change(speeds, place), _change(relative, place)
    return whole * rest > 0 and abs(rest) >= math.log1p(stats.MIN_DIFFERENCE)


def _place(values: Values, chance: float) -> int | None:
    """Return the number of values before the step, where it is significant."""
    generator = np.random.Generator(np.random.PCG64(0))
    observed = _statistics(values[None, :])[0]
    as_large = 1  # the runs' own order
    for done in range(0, PERMUTATIONS, BATCH):
        rows = np.tile(values, (min(BATCH, PERMUTATIONS - done), 1))
        shuffled = _statistics(generator.permuted(rows, axis=1))
        as_large += int((shuffled.max(axis=1) >= observed.max() * (1 - 1e-9)).sum())
        if as_large / (PERMUTATIONS + 1) > chance:
            return None
    return MIN_SIDE + int(observed.argmax())


def _statistics(rows: Values) -> Values:
    """Return, per row and place, the difference of the means before and after it over their spread.

    `rows` has the shape (rows, values); the result (rows, places).
    """
    count = rows.shape[1]
    places = np.arange(MIN_SIDE, count - MIN_SIDE + 1)
    sums, squares = rows.cumsum(axis=1), (rows**2).cumsum(axis=1)
    before, after = sums[:, places - 1] / places, (sums[:, [-1]] - sums[:, places - 1]) / (count - places)
    within = squares[:, [-1]] - places * before**2 - (count - places) * after**2
    spread = np.sqrt(np.maximum(within, 1e-12) * (1 / places + 1 / (count - places)))
    return np.asarray(np.abs(after - before) / spread)


def _change(values: Values, place: int) -> float:
    return float(np.median(values[place:]) - np.median(values[:place]))


def _step_text(step: SpeedStep) -> str:
    if step.ratio > 1:
        text = f"faster since {step.after}: {step.ratio:.2f} × the speed until {step.before}"
    else:
        text = f"slower since {step.after}: relative time {1 / step.ratio:.2f} to runs until {step.before}"
    if step.limit_ratio is None:
        return f"{text}; the machine's own limit was not measured"
    return f"{text}; the machine's own limit is {step.limit_ratio:.2f} × what it was"
