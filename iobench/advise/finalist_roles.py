"""Roles of the finalists of a search: which cases of the race are measured again, and why."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from iobench.advise.candidates import default_case, loader_word, packages_of
from iobench.advise.measured_data import MeasuredData
from iobench.advise.recommendation import CHEAPEST, DEFAULT, FASTEST, OTHER_LOADER, OWN_FILES, RUNNER_UP
from iobench.advise.requirements import Requirements
from iobench.base.thresholds import ROUND_S
from iobench.bench.case import Case
from iobench.bench.outcome import Run
from iobench.bench.strategy import COMPARED
from iobench.dataset.manifest import Manifest

FINAL = 0.8  # at most, of the time left after the race, for final rounds
FINAL_EPOCHS = 16  # of each finalist: rounds enough for an interval, and as much for all between them
RUNNERS_UP, NEAR = 3, 0.8  # at most; all but the first must be near the fastest: the race has few rounds
OTHER_LOADERS = 3  # at most: without the step it is unknown whether a loader reads while the step runs
FAR = 0.5  # of the fastest's rate: a case over the user's own files needs no conversion
OWN_EPOCHS = FINAL_EPOCHS // 2  # as many must fit if the user's own files are to be a finalist


def rate_of(run: Run, key: str) -> float | None:
    """Return the median samples/s of a case; None if it was not measured."""
    rates = [one.samples_per_s for one in run.valid_records if one.settings_key == key]
    return statistics.median(rates) if rates else None


def rank_of(roles: Sequence[str]) -> int:
    """Return the sort key of a finalist by importance: the fastest, the default, then all others."""
    return 0 if FASTEST in roles else 1 if DEFAULT in roles else 2


def roles_of(
    race: Run, data: MeasuredData, requirements: Requirements, left_s: float
) -> dict[str, list[str]]:
    """Return the roles of the finalists by key; `left_s` are the seconds left to measure them."""
    rates = {case.key: rate for case in race.cases if (rate := rate_of(race, case.key)) is not None}
    if not rates:
        return {}
    measured = [case for case in race.cases if case.key in rates]
    named = [(FASTEST, max(rates, key=lambda key: rates[key]))]
    if (default := default_case(measured, data.own_format)) is not None:
        named.append((DEFAULT, default.key))
    final_s = {key: FINAL_EPOCHS * max(ROUND_S, data.manifest.schema.samples / rates[key]) for key in rates}
    for key in runners_up(rates):  # no more than there is time for: the first two must be decided
        needed_s = sum(final_s[one] for one in {key, *(known for _, known in named)})
        if needed_s <= FINAL * left_s or len({known for _, known in named}) < COMPARED:
            named.append((RUNNER_UP, key))
    named += over_own_files(race.cases, data, rates, named, left_s)
    if requirements.step_ms:
        known = {key for _, key in named}
        stepping = for_step(measured, rates, known, data.manifest, requirements)
        size = requirements.batch_sizes[0]
        epoch_s = data.manifest.schema.samples / size * requirements.step_s(size)
        named += stepping[: max(1, int(left_s / 2 / epoch_s) - len(known))]  # an epoch to check, one to time
    roles: dict[str, list[str]] = {}
    for role, key in named:
        roles.setdefault(key, []).append(role)
    return roles


def over_own_files(
    cases: Sequence[Case],
    data: MeasuredData,
    rates: Mapping[str, float],
    named: Sequence[tuple[str, str]],
    left_s: float,
) -> list[tuple[str, str]]:
    """Return the fastest case over the user's own files, besides the default, if there is time to measure it.

    With the files' own decoder it must not be far behind the fastest. A decoder that the race had no time for
    counts as no slower than the slowest finalist.
    """
    known = {key for _, key in named}
    own = [case for case in cases if case.variant in data.added and (DEFAULT, case.key) not in named]
    if data.manifest.url or any(case.key in known for case in own):
        return []
    decoders = [case for case in own if case.variant in data.added[1:]]
    least = FAR * max(rates.values())
    near = [one.key for one in own if one.key in rates and (one in decoders or rates[one.key] >= least)]
    if not near and not decoders:
        return []
    streams = [case for case in decoders if case.loader.name == "stream"]
    key = max(near, key=lambda one: rates[one]) if near else (streams or decoders)[-1].key
    slowest = min(rates[one] for one in known)
    epoch_s = sum(data.manifest.schema.samples / rates.get(one, slowest) for one in {*known, key})
    return [(OWN_FILES, key)] if OWN_EPOCHS * epoch_s <= FINAL * left_s else []


def for_step(
    measured: Sequence[Case],
    rates: Mapping[str, float],
    known: set[str],
    manifest: Manifest,
    requirements: Requirements,
) -> list[tuple[str, str]]:
    """Return roles and keys of cases that may feed the step: the cheapest, and the fastest of other loaders.

    Another loader qualifies if it would train faster, reading while the step runs, than the fastest case
    that reads between steps.
    """

    def enough(case: Case) -> float:
        return case.batch_size / requirements.step_s(case.batch_size)

    def cost(case: Case) -> tuple[object, ...]:
        return rates[case.key] < enough(case), *cost_of(case, manifest), -rates[case.key]

    quickest = max(measured, key=lambda case: rates[case.key])
    lower_bound = 1 / (1 / rates[quickest.key] + 1 / enough(quickest))
    feeding = [case for case in measured if rates[case.key] >= enough(case)]
    cheapest = [min(feeding, key=cost)] if feeding else []
    taken = {loader_word(case) for case in measured if case in cheapest or case.key in known}
    fastest = {loader_word(case): case for case in sorted(measured, key=lambda case: rates[case.key])}
    others = sorted(
        (
            case
            for word, case in fastest.items()
            if word not in taken and min(rates[case.key], enough(case)) > lower_bound
        ),
        key=cost,
    )
    return [
        *((CHEAPEST, case.key) for case in cheapest),
        *((OTHER_LOADER, case.key) for case in others[:OTHER_LOADERS]),
    ]


def runners_up(rates: Mapping[str, float]) -> list[str]:
    """Return the keys after the fastest: at least one, and others whose rate is near the fastest's."""
    fastest, *others = sorted(rates, key=lambda key: rates[key], reverse=True)
    near = [key for key in others[1:RUNNERS_UP] if rates[key] >= NEAR * rates[fastest]]
    return [*others[:1], *near]


def cost_of(case: Case, manifest: Manifest) -> tuple[int, bool, int, float]:
    """Return the sort key of a case's cost: packages, a conversion, processes, bytes on disk."""
    artifact = manifest.artifacts[case.variant]
    return len(packages_of(case)), artifact.added is None, case.loader.workers, artifact.stored_bytes
