"""Search: a race of all candidates, final rounds of the finalists, and the choice among these.

Figures of the race are estimates. Final rounds alone decide which case to use.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from iobench import formats
from iobench.advise import measured_data
from iobench.advise.answer import DECIDED, KEEP, NOT_BOTTLENECK, TIED, UNDECIDED, is_undecided
from iobench.advise.candidates import candidate_set, default_case, loader_word, packages_of
from iobench.advise.measured_data import MeasuredData, OutOfTime
from iobench.advise.recommendation import (
    CHEAPEST,
    DEFAULT,
    FASTEST,
    OTHER_LOADER,
    OWN_FILES,
    RUNNER_UP,
    Finalist,
)
from iobench.advise.requirements import Requirements
from iobench.base.errors import IobenchError, LoaderFailed, RecordError
from iobench.base.finding import Finding
from iobench.base.thresholds import ROUND_S
from iobench.base.units import counted
from iobench.bench.budget import Budget
from iobench.bench.case import Case, content_of
from iobench.bench.options import RunOptions
from iobench.bench.outcome import Observer, Run
from iobench.bench.part import Proof
from iobench.bench.policies import AUTO, COMPARED, UNLIMITED, FinalRounds, SuccessiveHalving
from iobench.bench.run import run
from iobench.dataset.manifest import Manifest
from iobench.host.device import pick_device
from iobench.results import stats
from iobench.results.cases import Label, labels
from iobench.results.record import Record
from iobench.results.stats import Estimate, compared
from iobench.results.summary import CaseSummary, case_summary

PROVING, RACING = 0.2, 0.1  # at most, of the time left after writing: content checks, and the race
FINAL = 0.8  # at most, of the time left after the race, for final rounds
FINAL_BEFORE_STEP = 0.5  # as `FINAL`, with a training step
STEPPED = 0.8  # at most, of the time left for rounds with the step
HALF, HALF_ROUNDS = "rounds over half the samples", 7
MIN_HALF_S = 3.0  # for rounds over half as many samples
OVERTIME = 0.05  # of the time, for rounds without which there is no answer
FINAL_EPOCHS = 16  # of each finalist: rounds enough for an interval, and as much for all between them
RUNNERS_UP, NEAR = 3, 0.8  # at most; all but the first must be near the fastest: the race has few rounds
OTHER_LOADERS = 3  # at most: without the step it is unknown whether a loader reads while the step runs
FAR = 0.5  # of the fastest's rate: a case over the user's own files needs no conversion
OWN_EPOCHS = FINAL_EPOCHS // 2  # as many must fit if the user's own files are to be a finalist
WORTH_IT = 0.05  # of a training's time: a loader that saves less is not worth changing to


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
    ended: tuple[str, KeyboardInterrupt | IobenchError] | None = None  # rounds that ended early, and why
    step_s: float = 0.0  # seconds that rounds of all finalists with the step need, if these were too many
    confirmed: bool = True  # there were final rounds

    @property
    def finalists(self) -> list[Case]:
        """Cases of the final rounds."""
        return [case for case in self.final.cases if case.key in self.roles]

    @property
    def fastest(self) -> Case:
        """The finalist that was the fastest in the race."""
        return next(case for case in self.finalists if FASTEST in self.roles[case.key])

    def final_case(self, case: Case) -> Case:
        """Return a case of the race as it is, or would be, in the final rounds."""
        return replace(case, isolated=self.final.cases[0].isolated)

    def rate(self, case: Case) -> float | None:
        """Return the samples/s of a case of the race: of its final rounds, or else of the race."""
        return rate_of(self.final, self.final_case(case).key) or rate_of(self.race, case.key)


def rounds_of(run: Run, key: str) -> list[Record]:
    """Return the rounds of a case."""
    return [one for one in run.valid_records if one.settings_key == key]


def rate_of(run: Run, key: str) -> float | None:
    """Return the median samples/s of a case; None if it was not measured."""
    rates = [one.samples_per_s for one in rounds_of(run, key)]
    return statistics.median(rates) if rates else None


def labels_of(cases: Sequence[Case]) -> dict[str, Label]:
    """Return the labels of cases by key, without the process isolation, which does not matter here."""
    return labels({case.key: {**case.facets, "isolated": False} for case in cases})


def texts_of(cases: Sequence[Case]) -> dict[str, str]:
    """Return the same in words."""
    return {key: str(label) for key, label in labels_of(cases).items()}


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
    result = SearchResult(data, race, race, roles, [*data.skipped, *candidates.skipped], confirmed=False)
    if race.ended:
        result.ended = "race", race.ended
    elif not budget.over:
        _Confirmation(result, requirements, options, budget, observer).run()
    return result


def nothing_measured(run: Run, requirements: Requirements) -> LoaderFailed:
    """Return the error for a run in which no case could be measured."""
    reasons = "; ".join(dict.fromkeys(map(str, run.failures.values())))
    tried = f"{len(run.cases) - len(run.skipped)} of {counted(len(run.cases), 'case')} were tried"
    return LoaderFailed(
        f"no case could be measured{f': {reasons}' if reasons else ''} (records: {run.path})",
        kind="no-case-measured",
        hint=f"{tried} in --max-time {requirements.max_time_s:g}: give a longer one" if run.skipped else None,
    )


@dataclass
class _Confirmation:
    """Rounds after the race: a winner picked from noisy rounds must not keep its lucky figure."""

    result: SearchResult
    requirements: Requirements
    options: RunOptions
    budget: Budget
    observer: Observer

    def run(self) -> None:
        """Measure the finalists, then with the training step, then the fastest over half the samples."""
        for measure in (self._finalists, self._with_step, self._half_size):
            measure()
            if self.result.ended:
                return

    def _finalists(self) -> None:
        """Measure the finalists again; the figures of the race count where that ends too early."""
        result, race, budget = self.result, self.result.race, self.budget
        chosen = [case for case in race.cases if case.key in result.roles]
        chosen, roles = same_isolation(chosen, result.roles)
        share = FINAL_BEFORE_STEP if self.requirements.step_ms else FINAL
        overtime = Budget((1 + OVERTIME) * budget.seconds, budget.began, budget.now)
        times = budget.share(share), overtime.share(1.0)
        try:
            final = self._rounds("final rounds", chosen, times, proofs=race.proofs, limits=True)
        except RecordError as error:  # a full disk
            result.ended = "final rounds", error
            return
        if final.valid_records:
            result.final, result.roles, result.confirmed = final, roles, True
        elif not final.ended:
            raise nothing_measured(final, self.requirements)

    def _with_step(self) -> None:
        result, budget = self.result, self.budget
        samples, left_s = result.data.manifest.schema.samples, budget.left()
        cases, needed_s = steppable(result.final.cases, result.roles, samples, self.requirements, left_s)
        result.step_s = needed_s if len(cases) < len(result.final.cases) else 0.0
        if cases:
            times = budget.share(STEPPED), budget.share(1.0)
            stepping = with_step(cases, self.requirements)
            result.with_step = self._rounds("rounds with the step", stepping, times)

    def _half_size(self) -> None:
        """Measure the fastest over half as many samples; the answer does not depend on it."""
        result, budget, fastest = self.result, self.budget, self.result.fastest
        enough = len({one.round for one in result.final.valid_records}) >= stats.ENOUGH_ROUNDS
        if not enough or budget.left() < MIN_HALF_S or result.data.manifest.artifacts[fastest.variant].added:
            return  # there was hardly time for the answer, or half of the user's own files is no dataset
        try:
            writing = budget.sub(budget.left() - MIN_HALF_S)
            manifest = measured_data.half_sample(result.data, [fastest.variant], writing)
            if manifest is not None:
                smaller = replace(fastest, dataset=manifest.name, content=content_of(manifest))
                times = budget.share(1.0), budget.share(1.0)
                half = self._rounds(HALF, [smaller], times, HALF_ROUNDS, manifest)
                result.half_size = None if half.ended else half
        except OutOfTime:
            return
        except IobenchError as error:
            result.ended = HALF, error

    def _rounds(
        self,
        name: str,
        cases: Sequence[Case],
        times: tuple[Budget, Budget],
        rounds: int | str = AUTO,
        manifest: Manifest | None = None,
        proofs: Mapping[str, Proof] | None = None,
        limits: bool = False,
    ) -> Run:
        """Run final rounds, as many as the figures need or as given.

        `times` are the budgets of the rounds and of what cannot wait; `proofs` are those of the race, by key.
        """
        own, whole = times
        asked = replace(
            self.options, limits=limits, rounds=str(rounds), max_time=max(1.0, round(own.seconds))
        )
        policy = FinalRounds(own, UNLIMITED if rounds == AUTO else int(rounds), proofs=proofs)
        manifest = manifest or self.result.data.manifest
        made = run(manifest, asked, observer=self.observer, cases=cases, policy=policy, budget=whole)
        self.result.ended = (name, made.ended) if made.ended else None
        return made


def same_isolation(
    cases: Sequence[Case], roles: dict[str, list[str]]
) -> tuple[list[Case], dict[str, list[str]]]:
    """Return the finalists, most important first, all in processes of their own if one needs it."""
    isolated = any(case.isolated for case in cases)
    cases = sorted(cases, key=lambda case: rank_of(roles[case.key]))
    alike = [replace(case, isolated=isolated) for case in cases]
    return alike, {new.key: roles[old.key] for old, new in zip(cases, alike, strict=True)}


def rank_of(roles: Sequence[str]) -> int:
    """Return the sort key of a finalist by importance: the fastest, the default, then all others."""
    return 0 if FASTEST in roles else 1 if DEFAULT in roles else 2


def steppable(
    cases: Sequence[Case],
    roles: Mapping[str, list[str]],
    samples: int,
    requirements: Requirements,
    left_s: float,
) -> tuple[list[Case], float]:
    """Return the finalists that there is time to check and measure once with the step, at least two.

    The fastest comes first, then the default. The number is the seconds that all of them need.
    """
    taken, needed_s = list[Case](), 0.0
    if not requirements.step_ms:
        return taken, needed_s
    for case in sorted(cases, key=lambda case: rank_of(roles[case.key])):
        needed_s += 2 * math.ceil(samples / case.batch_size) * requirements.step_s(case.batch_size)
        if needed_s <= left_s:
            taken.append(case)
    enough = len(taken) >= min(COMPARED, len(cases))
    return [case for case in cases if enough and case in taken], needed_s


def with_step(cases: Sequence[Case], requirements: Requirements) -> list[Case]:
    """Return cases with the training step: the model's, or one that takes as long."""
    model = requirements.model
    return [
        replace(case, step_s=requirements.step_s(case.batch_size) if model == "none" else 0.0, model=model)
        for case in cases
    ]


def roles_of(
    race: Run, data: MeasuredData, requirements: Requirements, left_s: float
) -> dict[str, list[str]]:
    """Return the roles of the finalists by key; `left_s` are the seconds left to measure them."""
    rates = {case.key: rate for case in race.cases if (rate := rate_of(race, case.key)) is not None}
    if not rates:
        return {}
    measured, samples = [case for case in race.cases if case.key in rates], data.manifest.schema.samples
    roles = defaultdict[str, list[str]](list, {max(rates, key=lambda key: rates[key]): [FASTEST]})
    if (default := default_case(measured, data.own_format)) is not None:
        roles[default.key].append(DEFAULT)
    final_s = {key: FINAL_EPOCHS * max(ROUND_S, samples / rates[key]) for key in rates}
    for key in runners_up(rates):  # no more than there is time for: the first two must be decided
        if len(roles) < COMPARED or sum(final_s[one] for one in {key, *roles}) <= FINAL * left_s:
            roles[key].append(RUNNER_UP)
    if (own := over_own_files(race.cases, data, rates, roles, left_s)) is not None:
        roles[own].append(OWN_FILES)
    if requirements.step_ms:
        stepping = for_step(measured, rates, set(roles), data.manifest, requirements)
        size = requirements.batch_sizes[0]
        epoch_s = samples / size * requirements.step_s(size)
        for role, key in stepping[
            : max(1, int(left_s / 2 / epoch_s) - len(roles))
        ]:  # one to check, one to time
            roles[key].append(role)
    return dict(roles)


def over_own_files(
    cases: Sequence[Case],
    data: MeasuredData,
    rates: Mapping[str, float],
    roles: Mapping[str, list[str]],
    left_s: float,
) -> str | None:
    """Return the fastest case over the user's own files, besides the default, if there is time to measure it.

    With the files' own decoder it must not be far behind the fastest. A decoder that the race had no time for
    counts as no slower than the slowest finalist.
    """
    own = [case for case in cases if case.variant in data.added and DEFAULT not in roles.get(case.key, ())]
    if data.manifest.url or any(case.key in roles for case in own):
        return None
    decoders = [case for case in own if case.variant in data.added[1:]]
    least = FAR * max(rates.values())
    near = [one.key for one in own if one.key in rates and (one in decoders or rates[one.key] >= least)]
    if not near and not decoders:
        return None
    streams = [case for case in decoders if case.loader.name == "stream"]
    key = max(near, key=lambda one: rates[one]) if near else (streams or decoders)[-1].key
    slowest = min(rates[one] for one in roles)
    epoch_s = sum(data.manifest.schema.samples / rates.get(one, slowest) for one in {*roles, key})
    return key if OWN_EPOCHS * epoch_s <= FINAL * left_s else None


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


def _placed(
    one: Finalist, ordered: Sequence[Finalist], rounds: Mapping[str, Mapping[int, float]]
) -> Finalist:
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
