"""Finalists with the figures of their final rounds, and the choice among them.

Figures of the race are estimates. Nothing else decides which case to use.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from iobench.advise.alternatives import case_labels
from iobench.advise.finalist_roles import cost_of
from iobench.advise.recommendation import CHEAPEST, DEFAULT, FASTEST, OTHER_LOADER, RUNNER_UP, Finalist
from iobench.advise.search import SearchResult
from iobench.advise.sentences import DECIDED, KEEP, NOT_BOTTLENECK, TIED, UNDECIDED, is_undecided
from iobench.bench.case import Case
from iobench.bench.outcome import Run
from iobench.results import stats
from iobench.results.ranking import compared

ByRound: TypeAlias = dict[str, dict[int, float]]  # samples/s by a case's key and the round's number

WORTH_IT = 0.05  # of a training's time: a loader that saves less is not worth changing to


def finalists_of(result: SearchResult) -> list[Finalist]:
    """Return the finalists by their final rounds, fastest first.

    Rounds with the training step decide if there are any, and any of the default.
    """
    plain = {case.key: rounds_of(result.final, case.key) for case in result.finalists}
    default = next((key for key, roles in result.roles.items() if DEFAULT in roles and plain.get(key)), None)
    stepped = _rates_with_step(result)
    stepping = any(stepped.values()) and (default is None or stepped.get(default))
    rounds = stepped if stepping else plain
    labels = case_labels(result.finalists)
    wait_shares = _wait_shares(result)
    measured = [
        _finalist(result, case, labels[case.key], (plain, rounds), default, wait_shares.get(case.key))
        for case in result.finalists
        if plain[case.key] and rounds.get(case.key)
    ]
    fastest, *others = sorted(measured, key=lambda one: one.decisive_per_s.median, reverse=True)

    def slower(other: Finalist) -> bool:
        return compared(rounds[fastest.key], rounds[other.key], len(others)).outcome == "faster"

    return [
        replace(fastest, roles=final_roles(fastest.roles, FASTEST)),
        *(
            replace(other, roles=final_roles(other.roles, RUNNER_UP), tied=not slower(other))
            for other in others
        ),
    ]


def final_roles(roles: Sequence[str], place: str) -> list[str]:
    """Return the roles of a finalist whose place in the final rounds is `place`."""
    race_places = {FASTEST, RUNNER_UP}
    placed = place == FASTEST or not race_places.isdisjoint(roles)
    # the fastest of all is the fastest of its loader as well
    dropped = race_places | ({OTHER_LOADER} if place == FASTEST else set())
    return [*([place] if placed else []), *(role for role in roles if role not in dropped)]


def _finalist(
    result: SearchResult,
    case: Case,
    label: str,
    rates: tuple[ByRound, ByRound],
    default: str | None,
    wait_share: float | None,
) -> Finalist:
    """Return one finalist; `rates` are those of all rounds without the step, and of those that decide."""
    plain, rounds = rates
    variant = (case.loader.own_data and result.data.own_format) or case.variant
    own = [one for one in result.final.valid_records if one.settings_key == case.key]
    artifact, scale = result.data.manifest.artifacts[variant], result.data.scale
    limit = max((one.limit for one in own if one.limit), key=lambda one: one.bytes_per_s, default=None)
    speed = statistics.median(one.bytes_per_s for one in own)
    against = None
    if default is not None and default != case.key:
        others = sum(map(bool, rounds.values())) - 1  # as many as the fastest is compared with
        against = compared(rounds[case.key], rounds[default], others)
    return Finalist(
        key=case.key,
        label=label,
        format=variant,
        roles=[role for role in result.roles[case.key] if role != CHEAPEST or _feeds(wait_share)],
        samples_per_s=stats.estimate(list(plain[case.key].values())),
        bytes_per_s=speed,
        rounds=len(plain[case.key]),
        against_default=against,
        tied=False,
        limit=limit.name if limit else None,
        limit_bytes_per_s=limit.bytes_per_s if limit else None,
        wait_share=wait_share,
        memory_bytes=max((one.memory.peak_bytes for one in own if one.memory.peak_bytes), default=None),
        disk_bytes=result.data.full_stored_bytes(variant),
        write_s=artifact.write_s * scale + result.data.decoding_s,
        trained_per_s=None if rounds is plain else stats.estimate(list(rounds[case.key].values())),
        trained_rounds=0 if rounds is plain else len(rounds[case.key]),
        decoding_cores=_median(one.processor.cpu_s / one.timing.epochs_s for one in own)
        if decodes(result, case)
        else None,
        user_defined=case.loader.user_defined,
        unknown_files=case.loader.own_data and result.data.own_format is None,
        requests=_median(one.requests.count / one.epochs for one in own if one.requests),
        epoch_cost=_median(one.epoch_cost for one in own if one.epoch_cost is not None),
    )


def _median(figures: Iterable[float]) -> float | None:
    """Return the median; None of nothing."""
    return statistics.median(known) if (known := [*figures]) else None


def decodes(result: SearchResult, case: Case) -> bool:
    """Return True if most bytes of a sample are stored encoded; False for a user's own loader."""
    if case.loader.user_defined:
        return False
    with result.data.manifest.opener(case.variant)() as reader:
        as_stored = reader.placement().keys()
        encoded = sum(field.sample_bytes for field in reader.schema.fields if field.name not in as_stored)
        return encoded > reader.schema.sample_bytes / 2


def _feeds(wait_share: float | None) -> bool:
    """Return False if a case was measured not to keep the device busy, which the race only estimated."""
    return wait_share is None or wait_share < WORTH_IT


def rounds_of(run: Run, key: str) -> dict[int, float]:
    """Return the samples/s of a case by round."""
    return {one.round: one.samples_per_s for one in run.valid_records if one.settings_key == key}


def _rates_with_step(result: SearchResult) -> ByRound:
    """Return the samples/s with the training step, by the key of the case without it."""
    if result.with_step is None:
        return {}
    return {_plain_key(case): rounds_of(result.with_step, case.key) for case in result.with_step.cases}


def _plain_key(stepping: Case) -> str:
    """Return the key of a case without its training step."""
    return replace(stepping, step_s=0.0, model="none").key


def _wait_shares(result: SearchResult) -> dict[str, float]:
    """Return the share of time that the device waits with the step, by the key of the case without it."""
    if result.with_step is None:
        return {}
    keys = {case.key: _plain_key(case) for case in result.with_step.cases}
    shares: dict[str, list[float]] = {}
    for one in result.with_step.valid_records:
        key = keys[one.settings_key]
        shares.setdefault(key, []).append(one.timing.wait_s / one.timing.epochs_s)
    return {key: statistics.median(values) for key, values in shares.items()}


@dataclass(frozen=True)
class Choice:
    """The finalist to use."""

    outcome: str  # as in `Recommendation`
    use: Finalist
    tied: list[Finalist] = field(default_factory=list)  # others that count as equally fast
    instead_of: Finalist | None = None  # with a higher median, but not significantly faster than the default


def choose(result: SearchResult, finalists: Sequence[Finalist]) -> Choice:
    """Return the choice among the finalists, the first of which is the fastest.

    Without a finalist that is significantly faster than the default, it is the default.
    """
    default = default_of(finalists)
    # with several batch sizes, a larger one may train faster even if this one never waits
    one_size = len({case.batch_size for case in result.finalists}) == 1
    if one_size and default is not None and _keeps_busy(default):
        return Choice(NOT_BOTTLENECK, default)
    busy = [one for one in finalists if _keeps_busy(one) and (one.significantly_better or default is None)]
    if one_size and busy:
        return Choice(DECIDED, _cheapest(result, busy))
    fastest, *others = finalists
    tied = [other for other in others if other.tied]
    choice = _among(result, [fastest, *tied]) if tied else Choice(DECIDED, fastest)
    if default is None or choice.use.significantly_better:
        return choice
    known = [one.against_default for one in finalists if one.against_default is not None]
    return Choice(UNDECIDED if not known or is_undecided(known) else KEEP, default)


def default_of(finalists: Sequence[Finalist]) -> Finalist | None:
    """Return the default; None if it is no finalist."""
    return next((one for one in finalists if DEFAULT in one.roles), None)


def _among(result: SearchResult, tied: Sequence[Finalist]) -> Choice:
    """Choose among ties, the first of which has the highest median.

    Prefer a finalist that is significantly faster than the default over one with a higher but uncertain
    median.
    """
    first, significant = _best(result, tied), [one for one in tied if one.significantly_better]
    use = first if first in significant or not significant else _best(result, significant)
    passed_over = None if use is first else (first if tied[0] in significant else tied[0])
    return Choice(TIED, use, [one for one in tied if one is not use], passed_over)


def _best(result: SearchResult, tied: Sequence[Finalist]) -> Finalist:
    """Return the cheapest of those near the first; the first while there are too few rounds to tell."""
    few = min(one.decisive_rounds for one in tied) < stats.ENOUGH_ROUNDS
    return tied[0] if few else _cheapest(result, [one for one in tied if _near(tied[0], one)])


def _keeps_busy(one: Finalist) -> bool:
    """Return True if the device was measured to wait for less than 5 % of the time."""
    return one.wait_share is not None and one.wait_share < WORTH_IT


def _near(fastest: Finalist, other: Finalist) -> bool:
    """Return True if the median is within 5 %: intervals of noisy rounds exclude hardly anything."""
    return other.decisive_per_s.median * (1 + WORTH_IT) >= fastest.decisive_per_s.median


def _cheapest(result: SearchResult, among: Sequence[Finalist]) -> Finalist:
    cases = {case.key: case for case in result.finalists}
    return min(among, key=lambda one: cost_of(cases[one.key], result.data.manifest))
