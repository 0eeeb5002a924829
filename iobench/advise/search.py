"""Search: a race of all candidates, the choice of finalists, and final rounds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from iobench import formats
from iobench.advise import measured_data
from iobench.advise.answer import some
from iobench.advise.candidates import candidate_set, default_case, loader_word, packages_of
from iobench.advise.measured_data import MeasuredData, OutOfTime
from iobench.advise.recommendation import CHEAPEST, DEFAULT, FASTEST, OTHER_LOADER, OWN_FILES, RUNNER_UP
from iobench.advise.requirements import Requirements
from iobench.base.errors import IobenchError, LoaderFailed, RecordError
from iobench.base.finding import Finding
from iobench.base.thresholds import ROUND_S
from iobench.base.units import counted, seconds_text
from iobench.bench.budget import Budget
from iobench.bench.case import Case, content_of
from iobench.bench.observer import Observer
from iobench.bench.options import RunOptions
from iobench.bench.outcome import Run
from iobench.bench.part import Proof
from iobench.bench.policies import COMPARED, UNLIMITED, FinalRounds, SuccessiveHalving
from iobench.bench.run import run
from iobench.bench.stopping_rules import AUTO
from iobench.dataset.manifest import Manifest
from iobench.host.device import pick_device
from iobench.results.cases import Label, labels
from iobench.results.run_warning import Values
from iobench.results.stats import ENOUGH_ROUNDS


def nothing_measured(run: Run, requirements: Requirements) -> LoaderFailed:
    """Return the error for a run in which no case could be measured."""
    reasons = "; ".join(dict.fromkeys(map(str, run.failures.values())))
    tried = f"{len(run.cases) - len(run.skipped)} of {counted(len(run.cases), 'case')} were tried"
    return LoaderFailed(
        f"no case could be measured{f': {reasons}' if reasons else ''} (records: {run.path})",
        kind="no-case-measured",
        hint=f"{tried} in --max-time {requirements.max_time_s:g}: give a longer one" if run.skipped else None,
    )


def ended_early(ended: BaseException | None, rounds: str) -> Iterator[Finding]:
    """Yield the finding for rounds that Ctrl-C or an error ended; `rounds` names them."""
    if isinstance(ended, KeyboardInterrupt):
        message = f"Interrupted in the {rounds}: the answer rests on what was measured until then"
        yield Finding("interrupted", message)
    elif isinstance(ended, IobenchError):
        yield Finding("stopped", f"The {rounds} ended early: {ended}", values={"error": ended.kind})


def skipped_finalists(run: Run, rounds: str) -> Iterator[Finding]:
    """Yield the finding for finalists that there was no time for; `rounds` names the rounds."""
    if run.skipped:
        labels = run.labels
        names = some([str(labels[key]) for key in run.skipped])
        values: Values = {"cases": names, "skipped": len(run.skipped), "rounds": rounds}
        yield Finding("finalists-skipped", f"There was no time for the {rounds} of {names}", values=values)


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


def labels_of(cases: Sequence[Case]) -> dict[str, Label]:
    """Return the labels of cases by key, without the process isolation, which does not matter here."""
    return labels({case.key: {**case.facets, "isolated": False} for case in cases})


def texts_of(cases: Sequence[Case]) -> dict[str, str]:
    """Return the same in words."""
    return {key: str(label) for key, label in labels_of(cases).items()}


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
    slow = {word for word, case in fastest.items() if min(rates[case.key], enough(case)) <= lower_bound}
    others = sorted((case for word, case in fastest.items() if word not in slow | taken), key=cost)
    named = [(OTHER_LOADER, case.key) for case in others[:OTHER_LOADERS]]
    return [*((CHEAPEST, case.key) for case in cheapest), *named]


def runners_up(rates: Mapping[str, float]) -> list[str]:
    """Return the keys after the fastest: at least one, and others whose rate is near the fastest's."""
    fastest, *others = sorted(rates, key=lambda key: rates[key], reverse=True)
    near = [key for key in others[1:RUNNERS_UP] if rates[key] >= NEAR * rates[fastest]]
    return [*others[:1], *near]


def cost_of(case: Case, manifest: Manifest) -> tuple[int, bool, int, float]:
    """Return the sort key of a case's cost: packages, a conversion, processes, bytes on disk."""
    artifact = manifest.artifacts[case.variant]
    return len(packages_of(case)), artifact.added is None, case.loader.workers, artifact.stored_bytes


PROVING, RACING = 0.2, 0.1  # at most, of the time left after writing: content checks, and the race
FINAL_BEFORE_STEP = 0.5  # as `FINAL`, with a training step
STEPPED = 0.8  # at most, of the time left for rounds with the step
HALF_ROUNDS = 7
MIN_HALF_S = 3.0  # for rounds over half as many samples
OVERTIME = 0.05  # of the time, for rounds without which there is no answer


@dataclass
class SearchResult:
    """Runs of a search."""

    data: MeasuredData
    race: Run
    final: Run  # final rounds of the finalists; the race again where there are none
    roles: dict[str, list[str]]  # why a case is a finalist, by its key
    skipped: list[Finding]  # candidates that were not measured, and why
    with_step: Run | None = None  # final rounds with the training step
    half_size: Run | None = None  # rounds of the fastest case over half as many samples
    notes: list[Finding] = field(default_factory=list)  # what could not be done
    confirmed: bool = True  # there were final rounds

    def final_case(self, case: Case) -> Case:
        """Return a case of the race as it is, or would be, in the final rounds."""
        return replace(case, isolated=self.final.cases[0].isolated)

    @property
    def finalists(self) -> list[Case]:
        """Cases of the final rounds."""
        return [case for case in self.final.cases if case.key in self.roles]


def search(
    data: MeasuredData, requirements: Requirements, observer: Observer, budget: Budget
) -> SearchResult:
    """Race all candidates, then measure the finalists again.

    InvalidSettings if nothing fits (``nothing-fits``), LoaderFailed if no case could be measured
    (``no-case-measured``).
    """
    device, words = str(pick_device(requirements.device)), requirements.formats
    if data.source is not None and "all" not in words:  # there was no time to write the others
        stored = {*data.manifest.artifacts, *data.added}
        words = tuple(word for word in words if formats.parse(word).variant in stored)
    requirements = replace(requirements, full_bytes=data.full_bytes, formats=words)
    cache = "cold" if data.cold else "warm"
    candidates = candidate_set(data.manifest, requirements, device, cache, data.added)
    observer.status(f"requirements: {requirements.describe(data.cache)}")
    options = RunOptions(cache=(cache,), seed=requirements.seed, limits=False, prices=requirements.prices)
    opening = COMPARED + bool(data.added)  # the default, a likely rival, and one that needs no conversion
    rest = budget.share(1.0)
    halving = SuccessiveHalving(RACING * rest.seconds, proofs_s=PROVING * rest.seconds, opening=opening)
    race = run(data.manifest, options, observer=observer, cases=candidates.cases, policy=halving, budget=rest)
    roles = roles_of(race, data, requirements, budget.left())
    if not roles:
        raise race.ended or nothing_measured(race, requirements)
    skipped = [*data.skipped, *candidates.skipped]
    result = SearchResult(data, race, race, roles, skipped, confirmed=False)
    if race.ended:
        result.notes += ended_early(race.ended, "race")
    elif budget.over:
        result.notes.append(Finding("no-final-rounds", "No time was left for final rounds"))
    else:
        _confirm(result, requirements, options, budget, observer)
    return result


def _confirm(
    result: SearchResult, requirements: Requirements, options: RunOptions, budget: Budget, observer: Observer
) -> None:
    """Measure the finalists of the race again; its own figures count where that ends too early."""
    race = result.race
    chosen, roles = same_isolation([case for case in race.cases if case.key in result.roles], result.roles)
    share = FINAL_BEFORE_STEP if requirements.step_ms else FINAL
    overtime = Budget((1 + OVERTIME) * budget.seconds, budget.began, budget.now)
    times, limited = (budget.share(share), overtime.share(1.0)), replace(options, limits=True)
    try:
        final = final_rounds(result.data.manifest, chosen, limited, AUTO, times, observer, race.proofs)
        ended = final.ended
    except RecordError as error:  # a full disk
        final, ended = replace(race, records=[]), error
    if not ended and not final.valid_records:
        raise nothing_measured(final, requirements)
    if final.valid_records:
        result.final, result.roles, result.confirmed = final, roles, True
        result.notes += skipped_finalists(final, "final rounds")
    result.notes += ended_early(ended, "final rounds")
    if not ended:
        _more_rounds(result, requirements, options, budget, observer)


def _more_rounds(
    result: SearchResult, requirements: Requirements, options: RunOptions, budget: Budget, observer: Observer
) -> None:
    """Measure the finalists with the training step, then the fastest over half as many samples."""
    stepping = steppable(result, result.final.cases, requirements, budget.left())
    stepped = run_with_step(result.data.manifest, stepping, requirements, budget, options, observer)
    if stepped is not None:
        result.with_step = stepped if stepped.valid_records else None
        if not result.final.skipped:  # else they were reported already
            result.notes += skipped_finalists(stepped, "rounds with the step")
        result.notes += ended_early(stepped.ended, "rounds with the step")
        if stepped.ended:
            return
    data, fastest = result.data, next(c for c in result.final.cases if FASTEST in result.roles[c.key])
    enough = len({one.round for one in result.final.valid_records}) >= ENOUGH_ROUNDS
    if not enough or budget.left() < MIN_HALF_S or data.manifest.artifacts[fastest.variant].added:
        return  # there was hardly time for the answer, or half of the user's own files is no dataset
    try:
        writing = budget.sub(budget.left() - MIN_HALF_S)
        manifest = measured_data.half_sample(data, [fastest.variant], writing)
        if manifest is None:
            return
        smaller = replace(fastest, dataset=manifest.name, content=content_of(manifest))
        rest = budget.share(1.0)
        half = final_rounds(manifest, [smaller], options, HALF_ROUNDS, (rest, rest), observer)
    except OutOfTime:
        return
    except IobenchError as error:  # the answer does not depend on it
        message = f"Not measured: whether the speed depends on the amount of data ({error})"
        result.notes.append(Finding("half-size-failed", message, values={"error": error.kind}))
        return
    result.half_size = None if half.ended else half
    result.notes += ended_early(half.ended, "rounds over half the samples")


def same_isolation(
    cases: Sequence[Case], roles: dict[str, list[str]]
) -> tuple[list[Case], dict[str, list[str]]]:
    """Return the finalists, most important first, all in processes of their own if one needs it."""
    isolated = any(case.isolated for case in cases)
    cases = sorted(cases, key=lambda case: rank_of(roles[case.key]))
    alike = [replace(case, isolated=isolated) for case in cases]
    return alike, {new.key: roles[old.key] for old, new in zip(cases, alike, strict=True)}


def final_rounds(
    manifest: Manifest,
    cases: Sequence[Case],
    options: RunOptions,
    rounds: int | str,
    times: tuple[Budget, Budget],
    observer: Observer,
    proofs: Mapping[str, Proof] = MappingProxyType({}),
) -> Run:
    """Measure again: a winner picked from noisy rounds must not keep its lucky figure.

    `times` are the budgets of the rounds and of what cannot wait; `proofs` are those of the race, by key.
    """
    own, budget = times
    options = replace(options, rounds=str(rounds), max_time=max(1.0, round(own.seconds)))
    policy = FinalRounds(own, UNLIMITED if rounds == AUTO else int(rounds), proofs=proofs)
    return run(manifest, options, observer=observer, cases=cases, policy=policy, budget=budget)


def steppable(
    result: SearchResult, cases: Sequence[Case], requirements: Requirements, left_s: float
) -> list[Case]:
    """Return the finalists that there is time to check and measure once with the step, at least two.

    The fastest comes first, then the default; the others are noted.
    """
    if not requirements.step_ms:
        return []
    samples, taken, needed_s = result.data.manifest.schema.samples, list[Case](), 0.0
    for case in sorted(cases, key=lambda case: rank_of(result.roles[case.key])):
        needed_s += 2 * math.ceil(samples / case.batch_size) * requirements.step_s(case.batch_size)
        if needed_s <= left_s:
            taken.append(case)
    taken = taken if len(taken) >= min(COMPARED, len(cases)) else []
    if len(taken) < len(cases):
        which = f"all but {counted(len(taken), 'case')}" if taken else "all cases"
        message = f"No time for rounds with the step of {which}: these need about {seconds_text(needed_s)}"
        total_s = requirements.max_time_s + needed_s
        values: Values = {"needed_s": total_s, "measured": len(taken), "cases": len(cases)}
        result.notes.append(Finding("no-time-for-step", message, values=values))
    return [case for case in cases if case in taken]


def run_with_step(
    manifest: Manifest,
    cases: Sequence[Case],
    requirements: Requirements,
    budget: Budget,
    options: RunOptions,
    observer: Observer,
) -> Run | None:
    """Run final rounds with the training step; None without cases."""
    if not cases:
        return None
    model, times = requirements.model, (budget.share(STEPPED), budget.share(1.0))
    steps = {size: requirements.step_s(size) for size in {case.batch_size for case in cases}}
    stepping = [
        replace(case, step_s=steps[case.batch_size] if model == "none" else 0.0, model=model)
        for case in cases
    ]
    return final_rounds(manifest, stepping, options, AUTO, times, observer)
