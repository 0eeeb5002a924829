"""Records against earlier ones: which cases got faster, which slower, and may they be compared at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from iobench.errors import NotComparable
from iobench.results import stats
from iobench.results.record import Record
from iobench.results.stats import Comparison, Estimate

Rounds = list[Record]


@dataclass(frozen=True)
class Line:
    """One case of one newer run against the same case of the base."""

    case: str
    new: str
    base_bytes_per_s: Estimate
    new_bytes_per_s: Estimate
    rounds: tuple[int, int]  # of the base and of the newer run
    comparison: Comparison  # new over base
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

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def compare(
    base: Sequence[Record],
    newer: Mapping[str, Sequence[Record]],
    *,
    base_name: str = "base",
    smallest: float = stats.WORTH_NAMING,
    force: bool = False,
) -> Compared:
    """Every case of the base against the same case of each newer run, by name of the run.

    Cases match if all their settings do, or else if only one on each side has that variant, loader and
    fetch. NotComparable where none match, or where machine, device, data, model or state of the
    cache differ and `force` is not given.
    """
    pairs, missing = [], []
    for name, records in newer.items():
        matched, alone = _matched(_by_case(base), _by_case(records))
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


def _line(name: str, before: Rounds, after: Rounds, smallest: float, comparisons: int) -> Line:
    old, new = ([record.bytes_per_s for record in rounds] for rounds in (before, after))
    return Line(
        case=after[0].case["label"],
        new=name,
        base_bytes_per_s=stats.estimate(old),
        new_bytes_per_s=stats.estimate(new),
        rounds=(len(old), len(new)),
        comparison=stats.compare(new, old, smallest, comparisons),
        settings=[*_changed(before[0].case, after[0].case), *_profiled(before[0], after[0])],
        forced=list(_differences(before[0], after[0])),
    )


def _by_case(records: Sequence[Record]) -> list[Rounds]:
    cases: dict[str, Rounds] = {}
    for record in records:
        cases.setdefault(repr((sorted(record.case.items(), key=str), record.cache["mode"])), []).append(
            record
        )
    return list(cases.values())


def _matched(
    base: list[Rounds], new: list[Rounds]
) -> tuple[list[tuple[Rounds, Rounds]], list[tuple[int, str]]]:
    """Pairs of the same case, and for those without a partner the side (0 is the base) and the label."""
    pairs = []
    left, right = list(base), list(new)
    for key in (_exactly, _kind):
        for before in list(left):
            mine = [other for other in left if key(other) == key(before)]
            theirs = [other for other in right if key(other) == key(before)]
            if len(mine) == len(theirs) == 1:
                pairs.append((before, theirs[0]))
                left.remove(before)
                right.remove(theirs[0])
    alone = [(side, rounds[0].case["label"]) for side, rest in enumerate((left, right)) for rounds in rest]
    return pairs, alone


def _exactly(rounds: Rounds) -> object:
    return rounds[0].case, rounds[0].cache["mode"]


def _kind(rounds: Rounds) -> object:
    case = rounds[0].case
    return case["variant"], case["loader"], case.get("fetch")


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    names = [name for name in {**before, **after} if name != "label" and before.get(name) != after.get(name)]
    return [f"{name} {before.get(name)} → {after.get(name)}" for name in names]


def _profiled(before: Record, after: Record) -> list[str]:
    was, now = before.stages is not None, after.stages is not None
    return [f"profile {was} → {now}"] if was != now else []


_Facet = Callable[[Record], object]

_FACETS: dict[str, _Facet] = {
    "processor": lambda r: (r.machine["cpu"], r.machine.get("usable_cores")),
    "memory": lambda r: round(r.machine.get("memory_bytes", 0) / 2**30),
    "disk": lambda r: (r.machine["disk"].get("file_system"), r.machine["disk"].get("model")),
    "GPU": lambda r: (r.machine.get("gpu") or {}).get("name"),
    "device": lambda r: r.device,
    "samples": lambda r: r.dataset["samples"],
    "fields": lambda r: [(f["name"], list(f["shape"]), f["dtype"]) for f in r.dataset["fields"]],
    "data": lambda r: r.dataset.get("content"),
    "model": lambda r: r.model,
    "cache": lambda r: r.cache["mode"],
}


def _differences(before: Record, after: Record) -> Iterator[str]:
    """What has to be alike for figures to be compared, and is not."""
    for name, facet in _FACETS.items():
        was, now = facet(before), facet(after)
        if was != now:
            yield f"{name} {_shown(was)} → {_shown(now)}"


def _shown(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
