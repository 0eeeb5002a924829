"""Cases over several runs: what each run found, and whether their speed changed by a step at one of them.

A run is one value, its median: what differs from run to run is more than what differs within one (Kalibera
and Jones, "Rigorous benchmarking in reasonable time", 2013). A step is looked for where the runs before and
after differ most for how far they scatter, and is told from chance by how rarely the same runs in another
order differ as much (a permutation test of the largest of all two-sample statistics; Antoch and Hušková,
"Permutation tests in change point analysis", 2001). It is the
case's own only if its speed held against what the machine itself gave in each run has one, too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.base.units import MIB, three_digits
from iobench.results import cases, limits, others, stats
from iobench.results.record import Record
from iobench.results.stats import Estimate

FEWEST_RUNS = 3  # that make a course
STEP_RUNS = 8  # from which on chance can be told from a step
LEAST_SIDE = 2  # runs before a step, and after it
ORDERS = 4999
CHANCE = 0.05  # of a step in runs that only scatter, over all cases together
BLOCKS = "▁▂▃▄▅▆▇█"

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Point:
    """What one run found for a case."""

    run: str
    time: str  # ISO 8601, UTC, of its last round
    bytes_per_s: Estimate
    limit_bytes_per_s: float | None  # what the resource that the case runs into gave meanwhile
    busy: bool  # others were at work in too many rounds


@dataclass(frozen=True)
class Step:
    """A change of speed that chance does not explain: the last run before it and the first one after."""

    before: str
    after: str
    ratio: float  # of the medians, after over before
    machine: float | None  # the same of the machine's own limit
    own: bool | None  # whether it is the case's; None where the machine's part in it was not noted


@dataclass(frozen=True)
class Trend:
    """A case over several runs, the oldest first."""

    dataset: str
    case: str
    key: str
    points: list[Point]
    step: Step | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "sentence": self.sentence}

    @property
    def course(self) -> str:
        """Its speed from run to run in one word: blocks from zero to the highest."""
        speeds = [point.bytes_per_s.median for point in self.points]
        return "".join(BLOCKS[round(speed / max(speeds) * (len(BLOCKS) - 1))] for speed in speeds)

    @property
    def sentence(self) -> str:
        """What became of its speed, in one line."""
        quiet = sum(not point.busy for point in self.points)
        of = f"{len(self.points)} runs" + (
            f", {len(self.points) - quiet} beside other work" * (quiet < len(self.points))
        )
        if self.step is None:
            more = f"; a step is looked for from {STEP_RUNS} quiet runs on" if quiet < STEP_RUNS else ""
            return f"{self.case} on {self.dataset}: no step in {of}{more}"
        return f"{self.case} on {self.dataset}: {_told(self.step)} ({of})"


def trends(runs: Mapping[str, Sequence[Record]]) -> list[Trend]:
    """Every case that several of these runs measured, by the names of the runs; those with a step first."""
    records = [record for run in runs.values() for record in run]
    names = {record.run: name for name, run in runs.items() for record in run}
    groups = cases.by_case(records)
    several = {
        key: points for key, rounds in groups.items() if len(points := _points(rounds, names)) >= FEWEST_RUNS
    }
    labels = _labels({key: groups[key][0] for key in several})
    found = [
        Trend(groups[key][0].dataset.name, labels[key], key, points, _step(points, CHANCE / len(several)))
        for key, points in several.items()
    ]
    return sorted(found, key=lambda trend: (trend.step is None, trend.dataset))


def _labels(shown: Mapping[str, Record]) -> dict[str, str]:
    """What each of these cases is called among those of its dataset, which is named beside it."""
    by_dataset: dict[str, dict[str, cases.Facets]] = {}
    for key, one in shown.items():
        by_dataset.setdefault(one.dataset.name, {})[key] = cases.facets_of(one)
    every = [cases.labels(facets) for facets in by_dataset.values()]
    return {key: str(label) for labels in every for key, label in labels.items()}


def _points(rounds: Sequence[Record], names: Mapping[str, str]) -> list[Point]:
    """What each run found; runs of a round or two, such as races, only where there are no others."""
    by_run: dict[str, list[Record]] = {}
    for record in limits.comparable(rounds):
        by_run.setdefault(record.run, []).append(record)
    enough = {run: records for run, records in by_run.items() if len(records) >= stats.FEWEST}
    made = [_point(names[run], records) for run, records in (enough or by_run).items()]
    return sorted(made, key=lambda point: point.time)


def _point(name: str, records: Sequence[Record]) -> Point:
    looks = next(iter(limits.looks(records).values()), [])
    beside = [record.others for record in records]
    return Point(
        run=name,
        time=max(record.time for record in records),
        bytes_per_s=stats.estimate([record.bytes_per_s for record in records]),
        limit_bytes_per_s=statistics.median(looks) if looks else None,
        busy=any(sign.often(beside) is not None for sign in others.SIGNS),
    )


def _step(points: Sequence[Point], chance: float) -> Step | None:
    """The step among the quiet runs, where there surely is one that is worth naming."""
    quiet = [point for point in points if not point.busy]
    if len(quiet) < STEP_RUNS:
        return None
    speeds = np.log([point.bytes_per_s.median for point in quiet])
    place = _place(speeds, chance)
    if place is None or abs(_change(speeds, place)) < math.log1p(stats.WORTH_NAMING):
        return None
    known = [point.limit_bytes_per_s for point in quiet if point.limit_bytes_per_s is not None]
    machine = np.log(known) if len(known) == len(quiet) else None
    return Step(
        before=quiet[place - 1].run,
        after=quiet[place].run,
        ratio=math.exp(_change(speeds, place)),
        machine=None if machine is None else math.exp(_change(machine, place)),
        own=None if machine is None else _is_own(speeds, machine, place, chance),
    )


def _is_own(speeds: Values, machine: Values, place: int, chance: float) -> bool:
    """Whether speeds held against the machine have a step of the same kind about there, too."""
    held = speeds - machine
    again = _place(held, chance)
    if again is None or abs(again - place) > LEAST_SIDE:
        return False
    whole, rest = _change(speeds, place), _change(held, place)
    return whole * rest > 0 and abs(rest) >= math.log1p(stats.WORTH_NAMING)


def _place(values: Values, chance: float) -> int | None:
    """How many values come before the step, where that is no chance."""
    generator = np.random.Generator(np.random.PCG64(0))
    observed = _statistics(values[None, :])[0]
    shuffled = generator.permuted(np.tile(values, (ORDERS, 1)), axis=1)
    as_large = int((_statistics(shuffled).max(axis=1) >= observed.max() * (1 - 1e-9)).sum())
    if (as_large + 1) / (ORDERS + 1) > chance:
        return None
    return LEAST_SIDE + int(observed.argmax())


def _statistics(rows: Values) -> Values:
    """For each row and each place, what the means before and after it differ by, over their scatter."""
    count = rows.shape[1]
    places = np.arange(LEAST_SIDE, count - LEAST_SIDE + 1)
    sums, squares = rows.cumsum(axis=1), (rows**2).cumsum(axis=1)
    before, after = sums[:, places - 1] / places, (sums[:, [-1]] - sums[:, places - 1]) / (count - places)
    within = squares[:, [-1]] - places * before**2 - (count - places) * after**2
    scatter = np.sqrt(np.maximum(within, 1e-12) * (1 / places + 1 / (count - places)))
    return np.asarray(np.abs(after - before) / scatter)


def _change(values: Values, place: int) -> float:
    return float(np.median(values[place:]) - np.median(values[:place]))


def _told(step: Step) -> str:
    if step.ratio > 1:
        what = f"faster since {step.after}, {step.ratio:.2f} × as fast as until {step.before}"
    else:
        what = f"slower since {step.after}, it takes {1 / step.ratio:.2f} × as long as until {step.before}"
    if step.own is None:
        return f"{what}; what the machine itself gave was not noted"
    machine = f"the machine's own limit is {step.machine:.2f} × what it was"
    return f"{what}; {machine}" if step.own else f"cannot tell: {what}, but {machine}"


def speeds_text(trend: Trend) -> tuple[str, str]:
    """MiB/s of the first run and of the last."""
    first, last = (three_digits(trend.points[place].bytes_per_s.median / MIB) for place in (0, -1))
    return first, last
