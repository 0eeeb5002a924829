"""Records against earlier ones: which cases got faster, which slower, and may they be compared at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from iobench.base.errors import (
    NotComparable,
)
from iobench.base.text import enumerated
from iobench.results import cases, stats
from iobench.results.between import compare_runs
from iobench.results.cases import FACETS, Facets
from iobench.results.machine import Machine
from iobench.results.record import Record
from iobench.results.stats import Comparison, Estimate

# what is another case on another machine, or of another dataset, is still the same choice
_PLACE = ("host", "dataset")


@dataclass(frozen=True)
class Line:
    """One case of one newer run against the same case of the base."""

    case: str  # its label
    new: str
    base_bytes_per_s: Estimate
    new_bytes_per_s: Estimate
    rounds: tuple[int, int]  # of the base and of the newer side
    runs: tuple[int, int]  # of each: from two on the interval is that of runs
    comparison: Comparison  # new over base; its outcome may be `cannot tell`, too
    paced: bool  # whether it is of rates held against the processors' pace
    machine: Machine  # what was different about it
    because: str | None  # why nobody can tell
    settings: list[str]  # that differ between the two
    forced: list[str]  # what else differs, and would have been refused


@dataclass(frozen=True)
class Compared:
    """All lines, and sentences about cases that stand on one side only."""

    base: str
    lines: list[Line]
    missing: list[str]
    smallest: float
    correction: str | None

    @property
    def rests_on(self) -> str:
        """How many runs the intervals rest on, in one sentence."""
        runs = {line.runs for line in self.lines}
        if runs == {(1, 1)}:
            return (
                "It rests on one run of each, so that what differs from run to run is in none of the "
                "intervals; several of each ('iobench compare a,b,c d,e,f') put it there."
            )
        said = enumerated([f"{base} of {self.base} and {new} newer" for base, new in sorted(runs)])
        return f"Intervals are those of whole runs, not of rounds: {said}."

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "rests_on": self.rests_on}


@dataclass(frozen=True)
class _Side:
    """A case of one side: its facets, its label among the cases of that side, its rounds."""

    facets: Facets
    label: str
    rounds: list[Record]

    @property
    def choices(self) -> dict[str, Any]:
        """What was chosen, apart from where it was measured."""
        fixed = [name for name, facet in FACETS.items() if facet.fixed]
        return {name: value for name, value in self.facets.items() if name not in (*_PLACE, *fixed)}


def compare(
    base: Sequence[Record],
    newer: Mapping[str, Sequence[Record]],
    *,
    base_name: str = "base",
    smallest: float = stats.WORTH_NAMING,
    force: bool = False,
) -> Compared:
    """Every case of the base against the same case of each newer run, by name of the run.

    Cases match if all that was chosen does, or else if only one on each side has that format and
    loader. NotComparable where none match, or where machine, device, data, model or state of the
    cache differ and `force` is not given.
    """
    pairs, missing = [], []
    for name, records in newer.items():
        matched, alone = _matched(_sides(base), _sides(records))
        pairs += [(name, before, after) for before, after in matched]
        missing += [f"{label} is only in {name if side else base_name}" for side, label in alone]
    if not pairs:
        raise NotComparable(f"{base_name} and {', '.join(newer)} have no case in common")
    lines = [_line(name, before, after, smallest, len(pairs)) for name, before, after in pairs]
    refused = dict.fromkeys(difference for line in lines for difference in line.forced)
    if refused and not force:
        raise NotComparable(
            f"{base_name} and {', '.join(newer)} were not measured alike: {'; '.join(refused)}; "
            "give --force to compare them anyway"
        )
    return Compared(base_name, lines, missing, smallest, stats.correction(len(lines)))


def _line(name: str, before: _Side, after: _Side, smallest: float, comparisons: int) -> Line:
    old, new = ([record.bytes_per_s for record in side.rounds] for side in (before, after))
    found = compare_runs(before.rounds, after.rounds, smallest, comparisons)
    return Line(
        case=after.label,
        new=name,
        base_bytes_per_s=stats.estimate(old),
        new_bytes_per_s=stats.estimate(new),
        rounds=(len(old), len(new)),
        runs=found.runs,
        comparison=found.comparison,
        paced=found.paced,
        machine=found.machine,
        because=found.because,
        settings=list(_changed(before.choices, after.choices)),
        forced=list(_differences(before.facets, after.facets)),
    )


def _sides(records: Sequence[Record]) -> list[_Side]:
    labels = cases.labels_of(records)
    return [
        _Side(cases.facets_of(rounds[0]), str(labels[key]), rounds)
        for key, rounds in cases.by_case(records).items()
    ]


def _matched(base: list[_Side], new: list[_Side]) -> tuple[list[tuple[_Side, _Side]], list[tuple[int, str]]]:
    """Pairs of the same case, and for those without a partner the side (0 is the base) and the label."""
    pairs = []
    left, right = list(base), list(new)
    for alike in _LADDER:
        for before in list(left):
            mine = [other for other in base if alike(other) == alike(before)]
            theirs = [other for other in new if alike(other) == alike(before)]
            if len(mine) == len(theirs) == 1 and theirs[0] in right:
                pairs.append((before, theirs[0]))
                left.remove(before)
                right.remove(theirs[0])
    alone = [(number, side.label) for number, rest in enumerate((left, right)) for side in rest]
    return pairs, alone


_LADDER: tuple[Callable[[_Side], object], ...] = (
    lambda side: side.facets,
    lambda side: (
        side.choices,
        side.facets.get("cache"),
        side.facets.get("device"),
        side.facets.get("model"),
    ),
    lambda side: side.choices,
    lambda side: (side.facets["format"], side.facets["loader"], side.facets.get("options")),
    lambda side: (side.facets["format"], side.facets["loader"]),
)


def _changed(before: Facets, after: Facets) -> Iterator[str]:
    """Choices that differ, options of the loader one by one."""
    for name in {**before, **after}:
        was, now = before.get(name), after.get(name)
        if isinstance(was, dict) and isinstance(now, dict):
            yield from _changed(was, now)
        elif was != now:
            yield f"{name} {cases.option_text(was)} → {cases.option_text(now)}"


def _differences(before: Facets, after: Facets) -> Iterator[str]:
    """What has to be alike for figures to be compared, and is not."""
    for name, facet in FACETS.items():
        was, now = before.get(name), after.get(name)
        if facet.fixed and was != now:
            yield f"{facet.title} {_shown(was)} → {_shown(now)}"


def _shown(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
