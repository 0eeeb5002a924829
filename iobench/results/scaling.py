"""How the speed of a case grows with the number of ranks, and where more of them stop to help."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from iobench.base.units import counted
from iobench.results import cases, stats
from iobench.results.cases import Facets, trains
from iobench.results.ranks import device_wait_share
from iobench.results.record import Record
from iobench.results.stats import Comparison, Estimate
from iobench.results.verdict import ratio_text


@dataclass(frozen=True)
class Point:
    """A case over so many ranks: bytes per second of all together, and what its limit was.

    `efficiency`: bytes per second of a rank over those of a rank at the fewest ranks. `step`: against the
    point before. `waiting`: the part of the time in which devices waited, for batches or the slowest rank.
    """

    ranks: int
    rounds: int
    together: Estimate
    efficiency: Estimate
    limit_bytes_per_s: float | None
    waiting: float
    step: Comparison | None

    @property
    def each(self) -> float:
        """Bytes per second of one rank, on average."""
        return self.together.median / self.ranks


@dataclass(frozen=True)
class Curve:
    """One case over several numbers of ranks, fewest first."""

    case: str
    points: list[Point]
    trains: bool

    @property
    def sentence(self) -> str:
        """Up to where more ranks give more, as far as that can be told."""
        if len(self.points) < 2:
            return f"{self.case}: measured over one number of ranks alone."
        helped = self.points[0].ranks
        for point in self.points[1:]:
            assert point.step is not None
            known = counted(helped, "rank")
            told = _together(point.ranks, point.step.ratio)
            if point.step.outcome == "inconclusive":
                return f"{self.case}: cannot tell if more than {known} helps: {told}; give more --rounds."
            if point.step.outcome != "faster":
                return f"{self.case}: more than {known} does not help: {told}."
            helped = point.ranks
        share = f"{self.points[-1].efficiency.median:.0%}"
        return (
            f"{self.case}: more ranks gave more each time, up to {helped}, where each gives {share} of what "
            f"each of {self.points[0].ranks} gives."
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        points = [{**asdict(point), "each_bytes_per_s": point.each} for point in self.points]
        return {"case": self.case, "points": points, "sentence": self.sentence}


def curves(records: Sequence[Record]) -> list[Curve]:
    """The cases of these records over the numbers of ranks that each was measured with."""
    groups: dict[str, dict[int, list[Record]]] = {}
    for record in records:
        by_ranks = groups.setdefault(cases.key_of(_without_ranks(cases.facets_of(record))), {})
        by_ranks.setdefault(int(record.case.get("world_size", 1)), []).append(record)
    facets = {key: _without_ranks(_facets(by_ranks)) for key, by_ranks in groups.items()}
    labels = cases.labels(facets)
    found = [
        Curve(str(labels[key]), _points(by_ranks), trains(facets[key])) for key, by_ranks in groups.items()
    ]
    return sorted(found, key=lambda curve: curve.points[-1].together.median, reverse=True)


def _facets(by_ranks: dict[int, list[Record]]) -> Facets:
    return cases.facets_of(next(iter(by_ranks.values()))[0])


def _without_ranks(facets: Facets) -> dict[str, Any]:
    """What stays the same when ranks are added: each rank has a device of its own."""
    kept = {name: value for name, value in facets.items() if name not in ("world_size", "isolated")}
    return {**kept, "device": str(facets.get("device", "")).partition(":")[0]}


def _points(by_ranks: dict[int, list[Record]]) -> list[Point]:
    ordered = sorted(by_ranks.items())
    rates = {ranks: [record.bytes_per_s for record in rounds] for ranks, rounds in ordered}
    fewest, steps = ordered[0][0], dict[int, Comparison]()
    for (before, _), (after, _) in pairwise(ordered):
        steps[after] = stats.compare_rates(rates[after], rates[before], comparisons=len(ordered) - 1)
    first = [rate / fewest for rate in rates[fewest]]
    return [
        Point(
            ranks=ranks,
            rounds=len(rounds),
            together=stats.estimate(rates[ranks]),
            efficiency=stats.ratio([rate / ranks for rate in rates[ranks]], first),
            limit_bytes_per_s=max((one.limit.bytes_per_s for one in rounds if one.limit), default=None),
            waiting=statistics.median(map(device_wait_share, rounds)),
            step=steps.get(ranks),
        )
        for ranks, rounds in ordered
    ]


def _together(ranks: int, ratio: Estimate) -> str:
    """So many ranks against fewer, in words that read forwards."""
    if ratio.median >= 1:
        return f"{ranks} together are {ratio_text(ratio)} as fast"
    low, high = (None if end is None else 1 / end for end in (ratio.high, ratio.low))
    return f"{ranks} together take {ratio_text(Estimate(1 / ratio.median, low, high))} as long"
