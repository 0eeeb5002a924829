"""Scaling curves: the speed of a case over the number of ranks, and where more ranks stop helping."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from iobench.base import grouped
from iobench.base.units import counted
from iobench.results import cases, stats
from iobench.results.cases import trains
from iobench.results.display import Block, table
from iobench.results.metrics import device_wait_share, mib_text
from iobench.results.record import Facets, Record, key_of
from iobench.results.stats import Comparison, Estimate
from iobench.results.verdict import ratio_text


@dataclass(frozen=True)
class ScalingPoint:
    """A case with a given number of ranks: total bytes per second and the limit.

    `efficiency` is the rate of one rank over that of one rank at the fewest ranks; `step` compares the total
    with the point before; `wait_share` is the share of the time that devices waited for batches or for the
    slowest rank.
    """

    derived: ClassVar = ("each_bytes_per_s",)

    ranks: int
    rounds: int
    total: Estimate
    efficiency: Estimate
    limit_bytes_per_s: float | None
    wait_share: float
    step: Comparison | None

    @property
    def each_bytes_per_s(self) -> float:
        """Mean bytes per second of one rank."""
        return self.total.median / self.ranks


@dataclass(frozen=True)
class Curve:
    """One case over several numbers of ranks, fewest first."""

    derived: ClassVar = ("outcome", "helpful_ranks", "sentence")

    case: str
    points: list[ScalingPoint]
    trains: bool

    @property
    def _first_without_gain(self) -> ScalingPoint | None:
        """The first point that is not significantly faster than the one before."""
        return next((one for one in self.points if one.step and one.step.outcome != "faster"), None)

    @property
    def outcome(self) -> str:
        """`single`, `scales`, `stops` (more ranks do not help) or `inconclusive`."""
        if len(self.points) < 2:
            return "single"
        stop = self._first_without_gain
        if stop is None or stop.step is None:
            return "scales"
        return "inconclusive" if stop.step.outcome == "inconclusive" else "stops"

    @property
    def helpful_ranks(self) -> int:
        """The number of ranks up to which every increase was significantly faster."""
        stop = self._first_without_gain
        return self.points[-1 if stop is None else self.points.index(stop) - 1].ranks

    @property
    def sentence(self) -> str:
        """The outcome in one line."""
        if self.outcome == "single":
            return f"{self.case}: measured with one number of ranks only."
        stop, helpful = self._first_without_gain, counted(self.helpful_ranks, "rank")
        if stop is None or stop.step is None:
            share = f"{self.points[-1].efficiency.median:.0%}"
            return (
                f"{self.case}: faster with every increase up to {helpful}; efficiency there {share} of "
                f"{counted(self.points[0].ranks, 'rank')}."
            )
        ratio, ranks = stop.step.ratio, counted(stop.ranks, "rank")
        if ratio.median >= 1:
            comparison = f"{ranks} {ratio_text(ratio, 'as fast in total')}"
        else:
            comparison = f"{ranks} {ratio_text(ratio.inverse, 'slower in total')}"
        if self.outcome == "inconclusive":
            return f"{self.case}: inconclusive beyond {helpful}: {comparison}; give more --rounds."
        return f"{self.case}: more than {helpful} does not help: {comparison}."


def curves(records: Sequence[Record]) -> list[Curve]:
    """Return the curve of each case over the numbers of ranks that it was measured with, fastest first."""
    rests = {key: _without_ranks(rounds[0].facets) for key, rounds in cases.by_case(records).items()}
    keys = {key: key_of(rest) for key, rest in rests.items()}
    facets = {keys[key]: rest for key, rest in rests.items()}
    labels = cases.labels(facets)
    groups = grouped((keys[record.key], record) for record in records)
    result = [Curve(str(labels[key]), _points(own), trains(facets[key])) for key, own in groups.items()]
    return sorted(result, key=lambda curve: curve.points[-1].total.median, reverse=True)


def blocks_of(measured: Sequence[Curve]) -> Iterator[Block]:
    """Yield a sentence for each curve, and a table of a row for each case and number of ranks."""
    yield Block("answer", [curve.sentence for curve in measured])
    titles = ["case", "ranks", "MiB/s together (95 %)", "MiB/s each", "efficiency (95 %)", "limit MiB/s"]
    rows = [
        (
            curve.case,
            str(point.ranks),
            point.total.text(mib_text),
            mib_text(point.each_bytes_per_s),
            point.efficiency.text("{:.0%}".format),
            None if point.limit_bytes_per_s is None else mib_text(point.limit_bytes_per_s),
            f"{point.wait_share:.0%}" if curve.trains else None,
        )
        for curve in measured
        for point in curve.points
    ]
    yield table([*titles, "devices wait"], rows, heads=2)


def _without_ranks(facets: Facets) -> dict[str, Any]:
    """Return the facets that stay the same when ranks are added: each rank has a device of its own."""
    shared = {name: value for name, value in facets.items() if name not in ("world_size", "isolated")}
    return {**shared, "device": str(facets.get("device", "")).partition(":")[0]}


def _points(records: Sequence[Record]) -> list[ScalingPoint]:
    ordered = sorted(grouped((int(one.case.get("world_size", 1)), one) for one in records).items())
    rates = {ranks: [record.samples_per_s for record in rounds] for ranks, rounds in ordered}
    fewest, steps = ordered[0][0], dict[int, Comparison]()
    for (before, _), (after, _) in pairwise(ordered):
        steps[after] = stats.compare_rates(rates[after], rates[before], comparisons=len(ordered) - 1)
    first = [rate / fewest for rate in rates[fewest]]
    return [
        ScalingPoint(
            ranks=ranks,
            rounds=len(rounds),
            total=stats.estimate([record.bytes_per_s for record in rounds]),
            efficiency=stats.ratio([rate / ranks for rate in rates[ranks]], first),
            limit_bytes_per_s=max((one.limit.bytes_per_s for one in rounds if one.limit), default=None),
            wait_share=statistics.median(map(device_wait_share, rounds)),
            step=steps.get(ranks),
        )
        for ranks, rounds in ordered
    ]
