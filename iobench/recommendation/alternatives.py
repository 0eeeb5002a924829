"""What else there is: formats by size and speed, and what to use if something else matters more."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from iobench.bench.case import Case
from iobench.bench.outcome import Run
from iobench.recommendation.candidates import default_case
from iobench.recommendation.result import Finalist, RacedFormat
from iobench.recommendation.search import Found, cost_of, rate_of
from iobench.results.cases import key_of, labels

CLOSE = 0.9  # of the fastest: what else is worth naming
SMALLER = 0.95  # of the bytes: what is worth naming
MOST_NAMED = 5


def raced(found: Found) -> list[RacedFormat]:
    """Each format by its fastest case of the race, the fastest first, and whether Pareto would keep it."""
    manifest, measured = found.data.manifest, _measured(found.race)
    named = case_labels([case for case, _ in measured])
    best: dict[str, tuple[Case, float]] = {}
    for case, rate in sorted(measured, key=lambda one: -one[1]):
        best.setdefault(case.variant, (case, rate))
    stored = {variant: manifest.artifacts[variant].stored_bytes for variant in best}

    def beats(other: str, variant: str) -> bool:
        ours, theirs = ((best[name][1], -stored[name]) for name in (other, variant))
        return ours != theirs and all(own >= their for own, their in zip(ours, theirs, strict=True))

    return [
        RacedFormat(
            format=variant,
            label=named[case.key],
            bytes_per_s=rate * manifest.schema.sample_bytes,
            stored_bytes=stored[variant] * found.data.scale,
            pareto=not any(beats(other, variant) for other in best),
        )
        for variant, (case, rate) in best.items()
    ]


def alternatives(found: Found, use: Finalist) -> Iterator[str]:
    """What to use instead if something else matters more: the Pareto set of the race, in a few lines."""
    measured = _measured(found.race)
    best = max(rate for _, rate in measured)
    manifest, named = found.data.manifest, case_labels([case for case, _ in measured])
    close = [(case, rate) for case, rate in measured if rate >= CLOSE * best]
    smallest, rate = min(measured, key=lambda one: (manifest.artifacts[one[0].variant].stored_bytes, -one[1]))
    stored = {case.key: manifest.artifacts[case.variant].stored_bytes for case, _ in measured}
    used = next(case for case in found.race.cases if found.again(case).key == use.key)
    if stored[smallest.key] < SMALLER * stored[used.key]:
        part, label = stored[smallest.key] / stored[used.key], named[smallest.key]
        yield f"If disk matters most: {label}, {part:.0%} of the bytes at {rate / best:.0%} of the speed."
    plain = [(case, rate) for case, rate in measured if cost_of(case, manifest)[0] == 0]
    if plain and cost_of(used, manifest)[0]:
        case, rate = max(plain, key=lambda one: one[1])
        yield f"If nothing may be installed: {named[case.key]}, at {rate / best:.0%} of the speed."
    shuffled = [(case, rate) for case, rate in measured if case.order == "random"]
    if used.order == "block" and shuffled:
        case, rate = max(shuffled, key=lambda one: one[1])
        yield f"If a full shuffle matters most: {named[case.key]}, at {rate / best:.0%} of the speed."
    left = [named[case.key] for case, _ in close if found.again(case).key not in found.roles]
    if left:  # of finalists the fresh rounds know better
        yield f"In the race these came within {1 - CLOSE:.0%} of the fastest, too: {'; '.join(left[:3])}."


def time_limited(race: Run, max_time_s: float) -> Iterator[str]:
    """How many cases the race had no time for, and how much it would have taken."""
    if race.skipped:
        tried = len(race.cases) - len(race.skipped)
        yield (
            f"There was time to try {tried} of {len(race.cases)} cases: give about "
            f"--max-time {_enough_s(race, max_time_s)} for all of them."
        )


def untried(race: Run, max_time_s: float) -> Iterator[str]:
    """What took no part in the race, or failed in it, and what that would have needed."""
    yield from _failed(race, "")
    if race.skipped:
        named = case_labels(race.cases)
        called = _some([named[key] for key in race.skipped])
        yield f"no time was left for {called}: give about --max-time {_enough_s(race, max_time_s)}"


def failed_later(found: Found) -> Iterator[str]:
    """Finalists that failed when they were measured again, or with the training step, and why."""
    yield from _failed(found.final, ", measured again")
    if found.stepped is not None:
        yield from _failed(found.stepped, ", with the step")


def without_default(found: Found) -> Iterator[str]:
    """Why nothing is held against what people use by default; nothing where it is."""
    default = default_case(found.race.cases, found.data.usual)
    said = "Nothing is held against what people use by default: DataLoader, sample by sample,"
    if default is None:
        yield f"{said} took no part."
        return
    again = found.again(default).key
    failures = {**found.race.failures, **found.final.failures}
    if (reason := failures.get(default.key) or failures.get(again)) is not None:
        yield f"{said} failed ({reason})."
    elif not any(key_of(made.case) == again for made in found.final.valid_records):
        yield f"{said} had no time: give a longer --max-time."


def _failed(run: Run, how: str) -> Iterator[str]:
    """The cases of a run that failed, those for the same reason together."""
    named, alike = case_labels(run.cases), dict[str, list[str]]()
    for key, reason in run.failures.items():
        alike.setdefault(reason, []).append(named[key])
    yield from (f"{_some(names)}{how}: {reason}" for reason, names in alike.items())


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return "; ".join(names[:MOST_NAMED]) + more


def _enough_s(race: Run, max_time_s: float) -> int:
    """Seconds in which all cases could be tried, at the pace of those that were."""
    enough_s = max_time_s * len(race.cases) / (len(race.cases) - len(race.skipped))
    return math.ceil(enough_s / 10) * 10


def case_labels(cases: Sequence[Case]) -> dict[str, str]:
    """What to call cases, by key; whether they had a process of their own does not matter here."""
    facets = {case.key: {**case.facets, "isolated": False} for case in cases}
    return {key: str(label) for key, label in labels(facets).items()}


def _measured(race: Run) -> list[tuple[Case, float]]:
    return [(case, rate) for case in race.cases if (rate := rate_of(race, case.key))]
