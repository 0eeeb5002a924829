"""Finalists with the figures of their final rounds, and the choice among them.

Figures of the race are estimates. Nothing else decides which case to use.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TypeAlias

from iobench.advise.answer import DECIDED, KEEP, NOT_BOTTLENECK, TIED, UNDECIDED, is_undecided
from iobench.advise.recommendation import CHEAPEST, DEFAULT, FASTEST, OTHER_LOADER, RUNNER_UP, Finalist
from iobench.advise.search import SearchResult, cost_of, labels_of, rounds_of
from iobench.bench.case import Case
from iobench.results import stats
from iobench.results.cases import Label
from iobench.results.record import Record
from iobench.results.stats import Estimate, compared
from iobench.results.summary import CaseSummary, case_summary

ByRound: TypeAlias = dict[int, float]  # samples/s by the round's number

WORTH_IT = 0.05  # of a training's time: a loader that saves less is not worth changing to


def finalists_of(result: SearchResult) -> list[Finalist]:
    """Return the finalists by their final rounds, fastest first.

    Rounds with the training step decide if there are any, and any of the default.
    """
    plain = {case.key: rounds_of(result.final, case.key) for case in result.finalists}
    default = next((key for key, roles in result.roles.items() if DEFAULT in roles and plain.get(key)), None)
    stepped, run = dict[str, list[Record]](), result.with_step  # by the key of the case without the step
    if run is not None:
        plain_keys = {replace(case, step_s=0.0, model="none").key: case.key for case in run.cases}
        stepped = {key: rounds_of(run, own) for key, own in plain_keys.items()}
    stepping = any(stepped.values()) and (default is None or bool(stepped.get(default)))
    decisive = stepped if stepping else plain
    rates = {key: {one.round: one.samples_per_s for one in rounds} for key, rounds in decisive.items()}
    labels, measured = labels_of(result.finalists), list[Finalist]()
    for case in result.finalists:
        rounds, against, cores = plain[case.key], None, None
        if not rounds or not rates.get(case.key):
            continue
        one = measured_case(result, case, labels[case.key], rounds, result.roles[case.key])
        if stepped.get(case.key):
            with_step = _summary(case, stepped[case.key], one.label)
            one = replace(one, stepped=with_step, step_decides=stepping)
        if default is not None and default != case.key:
            others = sum(map(bool, rates.values())) - 1  # as many as the fastest is compared with
            against = compared(rates[case.key], rates[default], others)
        if decodes(result, case):
            cores = statistics.median(one.processor.cpu_s / one.timing.epochs_s for one in rounds)
        waits = one.wait_share is not None and not _keeps_busy(one)  # which the race only estimated
        roles = [role for role in one.roles if role != CHEAPEST or not waits]
        measured.append(replace(one, roles=roles, against_default=against, decoding_cores=cores))
    ordered = sorted(measured, key=lambda one: one.rate, reverse=True)
    return [_placed(one, ordered, rates) for one in ordered]


def _placed(one: Finalist, ordered: Sequence[Finalist], rounds: Mapping[str, ByRound]) -> Finalist:
    """Return a finalist with its place among all, the first of which is the fastest."""
    fastest = ordered[0]
    place = FASTEST if one is fastest else RUNNER_UP
    against = compared(rounds[fastest.key], rounds[one.key], max(1, len(ordered) - 1))
    return replace(
        one,
        roles=final_roles(one.roles, place),
        leader=one is fastest or against.outcome != "faster",
        relative=one.decisive.samples_per_s.inverse.times(fastest.rate),
    )


def final_roles(roles: Sequence[str], place: str) -> list[str]:
    """Return the roles of a finalist whose place in the final rounds is `place`."""
    race_places = {FASTEST, RUNNER_UP}
    placed = place == FASTEST or not race_places.isdisjoint(roles)
    # the fastest of all is the fastest of its loader as well
    dropped = race_places | ({OTHER_LOADER} if place == FASTEST else set())
    return [*([place] if placed else []), *(role for role in roles if role not in dropped)]


def measured_case(
    result: SearchResult, case: Case, label: Label, rounds: Sequence[Record], roles: Sequence[str]
) -> Finalist:
    """Return a case with the figures of some rounds, and its costs for the full data."""
    variant = (case.loader.own_data and result.data.own_format) or case.variant
    artifact, scale = result.data.manifest.artifacts[variant], result.data.scale
    summary = _summary(case, rounds, label)
    return Finalist(
        **{spec.name: getattr(summary, spec.name) for spec in fields(summary)},
        format=variant,
        roles=list(roles),
        disk_bytes=result.data.full_stored_bytes(variant),
        write_s=artifact.write_s * scale + result.data.decoding_s,
        user_defined=case.loader.user_defined,
        unknown_files=case.loader.own_data and result.data.own_format is None,
    )


def _summary(case: Case, rounds: Sequence[Record], label: Label) -> CaseSummary:
    return case_summary(case.key, rounds, label, Estimate(1.0, None, None))


def decodes(result: SearchResult, case: Case) -> bool:
    """Return True if most bytes of a sample are stored encoded; False for a user's own loader."""
    if case.loader.user_defined:
        return False
    with result.data.manifest.opener(case.variant)() as reader:
        as_stored = reader.placement().keys()
        encoded = sum(field.sample_bytes for field in reader.schema.fields if field.name not in as_stored)
        return encoded > reader.schema.sample_bytes / 2


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
    tied = [other for other in others if other.leader]
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
    if min(one.decisive.rounds for one in tied) < stats.ENOUGH_ROUNDS:
        return tied[0]
    # by the medians: intervals of noisy rounds exclude hardly anything
    return _cheapest(result, [one for one in tied if one.rate * (1 + WORTH_IT) >= tied[0].rate])


def _keeps_busy(one: Finalist) -> bool:
    """Return True if the device was measured to wait for less than 5 % of the time."""
    return one.wait_share is not None and one.wait_share < WORTH_IT


def _cheapest(result: SearchResult, among: Sequence[Finalist]) -> Finalist:
    cases = {case.key: case for case in result.finalists}
    return min(among, key=lambda one: cost_of(cases[one.key], result.data.manifest))
