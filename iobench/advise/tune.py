"""Tuning of a user's loader in one call: the settings to use, with their gain and cost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from iobench.advise import answer
from iobench.advise.answer import DECIDED, KEEP, LIMITED, NOT_BOTTLENECK, UNDECIDED, Answer
from iobench.advise.checks.evidence import Advice, Gain
from iobench.advise.checks.loop_stats import UNEVEN
from iobench.advise.checks.table import CHECKS
from iobench.advise.diagnose import examine
from iobench.advise.diagnosis import diagnose
from iobench.advise.settings import search_space
from iobench.advise.settings.candidate import (
    BASELINE,
    HEADROOM,
    Candidate,
    candidates_table,
    compare_to_baseline,
    names_of,
    slowdown,
    unsuccessful,
)
from iobench.advise.settings.settings_race import CUTS, ResourceLimits, SettingsRace
from iobench.advise.settings.tunable_loader import TunableLoader
from iobench.advise.settings.turn import Consumer, Turn, TurnSpec
from iobench.advise.settings.watchdog import DeadlineReached, Watchdog, built, loader_budget
from iobench.base.errors import InvalidSettings, IobenchError, TargetError
from iobench.base.finding import Finding
from iobench.base.thresholds import CPU_CONTENDED
from iobench.base.units import counted, rate_text, seconds_text, three_digits
from iobench.bench.budget import Budget
from iobench.bench.options import check_above_zero
from iobench.loading.inspection import Replay
from iobench.loading.user_errors import USER_ERRORS, loader_error
from iobench.results import stats
from iobench.results.display import Columns
from iobench.results.history import file_name, new_file
from iobench.results.record_file import check_writable
from iobench.results.run_warning import LONGER, Values, background_warnings
from iobench.results.stats import Comparison

MAX_TIME_S = 60.0
CAUSES = 0.15  # of the time, to find what settings cannot change
FIRST_TURN, PROBES, REFINE = 0.1, 0.1, 0.2  # of the time; the rest is for the final rounds
RACE = 0.37  # of the time that is left
MIN_FINAL = 0.25  # of the time, that refinements leave for the final rounds
FINALISTS = 2  # in addition to the baseline
NEAR = 0.9  # of the fastest in the race: other candidates that get final rounds

Status = Callable[[str], None]
SampleWork: TypeAlias = tuple[Advice, Candidate | None]  # which no setting changes; what tries its remedy


@dataclass(frozen=True, kw_only=True)
class TuningResult(Answer):
    """The settings to use, and the measurements behind them.

    The outcome is ``decided``: `use` is significantly faster than the baseline, by at least 5 %. ``keep``:
    nothing is. ``undecided``: too few rounds to tell. ``not-bottleneck``: no loader could bring 5 %.
    ``limited``: the baseline exceeds a limit, and `use` is the fastest candidate within it.
    """

    use: Candidate
    candidates: list[Candidate]  # everything that was tried; the first is the baseline
    against: dict[str, Comparison]  # each finalist compared with the baseline
    whole_epochs: bool  # the final rounds were whole epochs
    headroom: Comparison | None = None  # of the loop over batches already on the device

    def tables(self) -> Iterator[Columns]:
        """Yield the settings."""
        against = {**self.against, **({HEADROOM: self.headroom} if self.headroom else {})}
        if any(one.tried for one in self.candidates):
            yield candidates_table(self.candidates, against, self.use.name if self.code else "")

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each setting."""
        return [
            {
                "setting": one.name,
                "samples_per_s": one.rate,
                "relative to baseline": against.ratio.median if against else None,
                "memory_bytes": one.memory_bytes,
                "use": one.name == self.use.name,
            }
            for one in self.candidates
            for against in [self.against.get(one.name)]
        ]


def tune(
    target: str | Iterable[Any],
    *,
    device: str = "auto",
    step_ms: float = 0.0,
    model: str = "none",
    headroom: bool = False,
    max_memory_bytes: int | None = None,
    max_workers: int | None = None,
    max_time_s: float = MAX_TIME_S,
    timeout_s: float = 60.0,
    seed: int = 0,
    data_dir: str | Path = Path("data"),
    out: str | Path | None = None,
    on_status: Status = lambda text: None,
    budget: Budget | None = None,
) -> TuningResult:
    """Find the fastest settings of a loader: a race over them, then final rounds of its winners.

    Every turn is stored as a record.

    Parameters
    ----------
    target : str or iterable
        A DataLoader, any other iterable, or a function that builds one, such as ``train.py:make_loader`` or
        ``train.py:make_loader:batch_size=64``. All settings of a DataLoader can be changed; of any other
        loader, the parameters of its function that have the same names.
    device : str
        Device that the batches go to.
    step_ms : float
        Length of a simulated training step in milliseconds; 0 for none.
    model : str
        Model to train on each batch.
    headroom : bool
        Also measure the loop over batches that are already on the device. Needs a step or a model.
    max_memory_bytes, max_workers : int, optional
        Limits on the memory of this process and its workers, and on the number of workers.
    max_time_s : float
        Time for everything, in seconds: with less, fewer settings are tried, in fewer rounds.
    timeout_s : float
        Seconds without a batch after which the loader counts as hung.
    seed : int
        Seed of the order of turns and of the model.
    data_dir : str or Path
        Data folder; records go to its ``results`` folder.
    out : str or Path, optional
        Record file to append to, instead of a new one.
    on_status : callable
        Is given a line of text at each step.
    budget : Budget, optional
        Time for everything, by default `max_time_s` from this call on.

    Returns
    -------
    TuningResult

    Raises
    ------
    TargetError
        The target cannot be built, raises (``raised``), hangs (``timeout``), yields no batch in the time
        (``out-of-time``), or gets slower from turn to turn (``slowing-down``).
    InvalidSettings
        No settings fit the limits (``nothing-fits``).
    """
    budget = budget or Budget(max_time_s)
    check_above_zero(max_time=budget.seconds, timeout=timeout_s, max_memory=max_memory_bytes)
    if max_workers is not None and max_workers < 0:
        raise InvalidSettings("--max-workers", kind="out-of-range", expected="0 or more", found=max_workers)
    consumer = Consumer(device, step_ms, model, seed)
    if headroom and not consumer.trains:
        raise InvalidSettings(
            "headroom needs a training step", kind="missing-option", hint="give --step-ms or --model with it"
        )
    loader = built(lambda: TunableLoader(target), timeout_s)
    if loader.single_pass:
        hint = "give the function that builds it, or an iterable such as a DataLoader"
        problem = "it is an iterator, which can be iterated over only once"
        raise TargetError(problem, kind="single-pass", hint=hint)
    work = _work(loader, str(consumer.device), budget.sub(CAUSES * budget.seconds), timeout_s, on_status)
    watchdog = Watchdog(timeout_s, loader_budget(budget))
    limits = ResourceLimits(max_workers, max_memory_bytes)
    path = Path(out) if out else new_file(Path(data_dir), f"tune-{file_name(loader.name)}")
    check_writable(path)
    consumer.replay = Replay(consumer.transfer.device_api) if headroom else None
    race = SettingsRace(loader, TurnSpec(consumer, guard=watchdog.guard), limits, path, watchdog.budget)
    with watchdog.active(), race.active():
        try:
            return _Tuning(race, watchdog, on_status, work, seed).run()
        except IobenchError:
            raise
        except USER_ERRORS as error:
            raise loader_error(error) from error


def _work(
    loader: TunableLoader, device: str, budget: Budget, timeout_s: float, on_status: Status
) -> SampleWork | None:
    watchdog = Watchdog(timeout_s, loader_budget(budget))
    try:
        with watchdog.active():
            found, changes = examine(loader, watchdog, device, on_status=on_status)
    except DeadlineReached:
        return None
    found.candidates = [Candidate(BASELINE), *changes]
    cause = next((one for one in diagnose(found, alone=True).advice if CHECKS[one.kind].work), None)
    return None if cause is None else (cause, CHECKS[cause.kind].trial(changes))


@dataclass
class _Tuning:
    race: SettingsRace
    watchdog: Watchdog
    status: Status
    work: SampleWork | None
    seed: int

    def run(self) -> TuningResult:
        """Tune, and return what the rounds support."""
        race, consumer, baseline = self.race, self.race.spec.consumer, Candidate(BASELINE)
        self.status("measuring the baseline")
        try:
            turn = race.take(baseline, self.watchdog.part(FIRST_TURN).seconds)
        except DeadlineReached:
            if not self.watchdog.delivered:
                raise
            return result_of(race, [baseline], [baseline], work=self.work)
        replay = consumer.replay
        if replay is not None:
            replay.count, consumer.replay = turn.epoch_batches or turn.batches, None
        candidates, skipped = self._raced(turn)
        chosen = self._finalists(candidates)
        trial = self.work[1] if self.work else None
        if trial is not None and race.has_time_for([*chosen, chosen[0]]):
            chosen.append(trial)
        if replay is not None:
            chosen.append(Candidate(HEADROOM, kind="headroom", make=lambda: replay))
        self.status(f"final rounds: {names_of(chosen)}")
        race.final_rounds(chosen, race.budget.left(), seed=self.seed + 1)
        if (ratio := slowdown(race.turns)) is not None:
            raise TargetError(
                f"the loader gets slower with each turn, {ratio:.1f} × from first to last: "
                f"settings cannot be compared (records: {race.path})",
                kind="slowing-down",
                hint="look for what it keeps from epoch to epoch",
            )
        return result_of(race, candidates, chosen, skipped, self.work)

    def _raced(self, turn: Turn) -> tuple[list[Candidate], list[Finding]]:
        """Race the candidates after a turn of the baseline; return them, and why others were skipped."""
        race, watchdog, timing = self.race, self.watchdog, turn.measured.timing
        load = turn.measured.background
        contended = load is not None and (load.processors or 0.0) > CPU_CONTENDED
        # its processes mostly slept, or waited for a disk or network, not for a core
        idle = not contended and turn.measured.processor.cpu_s < 0.5 * timing.epochs_s
        traits = search_space.LoaderTraits(
            turn.complete,
            timing.first_batch_s > search_space.SLOW_START * turn.epoch_s,
            idle,
            not idle,
            str(race.spec.consumer.device),
            probing=lambda: watchdog.within(watchdog.part(PROBES).seconds),
            uneven=timing.wait_p50_s <= UNEVEN * timing.wait_s / turn.batches,
        )
        candidates, skipped = search_space.candidates_for(race.loader, traits, race.limits)
        batches = turn.epoch_batches or turn.batches
        turn_s = race.turn_s(timing.open_s + timing.first_batch_s, turn.epoch_s, batches)
        # there must be time for a turn of each, and three of the best
        raced, late = race.race_in_time(
            candidates, turn_s, RACE, self._promises, self.status, 2 * CUTS, self.seed
        )
        if len(raced) > 1:
            raced += self._refined(raced, replace(traits, starting=True))
        return raced, [*skipped, *answer.no_time([one.name for one in late], LONGER)]

    def _promises(self, raced: Sequence[Candidate]) -> bool:
        return raced[0].over_limit is not None or len(self._finalists(raced)) > 1

    def _refined(self, candidates: Sequence[Candidate], traits: search_space.LoaderTraits) -> list[Candidate]:
        """Race the fastest candidate against itself with one more setting changed; return the latter."""
        best = max((one for one in candidates if one.works), key=lambda one: one.rate, default=None)
        if best is None or not best.changes:
            return []
        known = [one.changes for one in candidates]
        more = search_space.refinements(self.race.loader, best, traits)
        more = [one for one in more if one.changes not in known]
        reserved = self.watchdog.part(MIN_FINAL).seconds
        seconds = min(self.watchdog.part(REFINE).seconds, self.race.budget.left() - reserved)
        if more and seconds > 0:
            self.status(f"with {best.name}: {names_of(more)}")
            self.race.race([Candidate(best.name, best.changes, best.kind), *more], seconds, self.seed)
        return more

    def _finalists(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the baseline, and the candidates within the limits that are faster and near the fastest."""
        baseline, *others = candidates
        fitting = sorted((one for one in others if one.works), key=lambda one: one.rate, reverse=True)
        if baseline.over_limit is None:
            fitting = [one for one in fitting if one.rate > baseline.rate or one.hides_gain(baseline)]
        elif not fitting:
            least = min(
                (one for one in candidates if one.memory_bytes), key=lambda one: one.memory_bytes or 0
            )
            why = least.over_limit or least.failure
            raise _nothing_fits([f"{least.name}, which uses least memory, {why}"])
        near = [one for one in fitting[:FINALISTS] if one.rate >= NEAR * fitting[0].rate]
        return self.race.finalists(candidates, near)


def result_of(
    race: SettingsRace,
    candidates: Sequence[Candidate],
    finalists: Sequence[Candidate],
    skipped: Sequence[Finding] = (),
    work: SampleWork | None = None,
) -> TuningResult:
    """Return what the final rounds of a race support; the first of both kinds of candidates is the baseline.

    InvalidSettings if no candidate fits the limits (``nothing-fits``).
    """
    baseline, against = finalists[0], compare_to_baseline(finalists)
    headroom = against.pop(HEADROOM, None)
    settings = {one.name: against[one.name] for one in finalists if one.name in against and not one.make}
    outcome, use = _choose(race, finalists, settings, headroom)
    skipped = [*skipped, *unsuccessful(candidates)]
    untried = sum(int(one.values["skipped"] or 0) for one in skipped if one.kind == "no-time")
    late = untried or not baseline.final_rates
    if outcome == KEEP and (late or answer.is_undecided(settings.values())):
        outcome = UNDECIDED
    whole = all(one.whole_epochs for one in finalists if one.final_rates)
    warnings = background_warnings(race.background)
    findings = [
        _headline(outcome, use, settings, candidates, untried),
        *(_beyond(*work, against, bool(warnings)) if work and outcome != NOT_BOTTLENECK else ()),
        *(_costs(race, baseline, use) if use is not baseline else ()),
        *(_training(baseline, headroom) if race.spec.consumer.trains else ()),
        *([_basis(baseline, whole, interleaved=len(finalists) > 1)] if baseline.final_rates else []),
    ]
    return TuningResult(
        outcome=outcome,
        use=use,
        candidates=[*candidates, *(one for one in finalists if one.make is not None)],
        against=against,
        findings=findings,
        whole_epochs=whole,
        headroom=headroom,
        code=race.loader.code_for(use.changes) if use.changes else "",
        skipped=skipped,
        warnings=warnings,
        records=[str(race.path)],
    )


def next_step(result: TuningResult, target: str, max_time_s: float) -> str:
    """Return what to write or to type after a tuning of a target."""
    if result.outcome == UNDECIDED:
        return f"iobench tune {target} --max-time {math.ceil(2 * max_time_s)}"
    if result.code.startswith("DataLoader("):
        return f"return this DataLoader in {target}, where loader is the one that it makes now"
    if result.code:
        return f"call {target} with {result.code}"
    if result.outcome == NOT_BOTTLENECK:
        return "make the training step faster: loading keeps up with it"
    return f"iobench diagnose {target}, which says what takes the time of each sample"


def _choose(
    race: SettingsRace,
    finalists: Sequence[Candidate],
    against: Mapping[str, Comparison],
    headroom: Comparison | None,
) -> tuple[str, Candidate]:
    baseline, *others = finalists
    if baseline.over_limit:
        fitting = [one for one in others if one.rate and not one.failure and one.make is None]
        if not fitting:
            reasons = [f"{one.name} {one.failure.message}" for one in others if one.failure]
            raise _nothing_fits([f"{baseline.name} {baseline.over_limit}", *reasons])
        return LIMITED, max(fitting, key=lambda one: one.rate)
    better = [one for one in others if one.name in against and against[one.name].outcome == "faster"]
    if better:
        best = max(one.rate for one in better)
        close = [one for one in better if one.rate >= (1 - stats.MIN_DIFFERENCE) * best]
        return DECIDED, min(close, key=lambda one: (race.loader.workers(one.changes), len(one.changes)))
    highest = headroom.ratio.high if headroom is not None else None
    fed = highest is not None and highest < 1 + stats.MIN_DIFFERENCE
    return (NOT_BOTTLENECK if fed else KEEP), baseline


def _nothing_fits(reasons: Sequence[str]) -> InvalidSettings:
    problem, hint = f"no settings fit the limits: {'; '.join(reasons)}", "raise --max-memory or --max-workers"
    return InvalidSettings(problem, kind="nothing-fits", hint=hint)


def _headline(
    outcome: str,
    use: Candidate,
    against: Mapping[str, Comparison],
    candidates: Sequence[Candidate],
    untried: int,
) -> Finding:
    if outcome == NOT_BOTTLENECK:
        evidence = "with batches already on the device the loop gains less than 5 %. Keep your settings"
        return answer.not_bottleneck(evidence, {})
    if outcome == DECIDED:
        return answer.gain(use.name, against[use.name].ratio, "the baseline", {})
    if outcome == LIMITED:
        message = f"Use {use.name}: the fastest setting within the limits, which the baseline exceeds"
        return Finding("limited", message, values={"use": use.name})
    tried = sum(bool(one.rates) for one in candidates[1:])
    if outcome == UNDECIDED and not answer.is_undecided(against.values()):
        values: Values = {"tried": tried, "untried": untried}
        base, best = candidates[0].race_rate, max(candidates, key=lambda one: one.works and one.race_rate)
        why = "no time was left to compare settings"
        if not against and best.race_rate > base > 0:
            values["ratio"] = ratio = best.race_rate / base
            race = f"{best.name} was {three_digits(ratio)} × as fast in the race"
            why = f"{race}, and no time was left for final rounds"
        elif tried and untried:
            others = counted(tried, "other setting")
            why = f"none of {others} is faster, and no time was left for {untried} more"
        return Finding("undecided", f"Undecided: {why}", LONGER, values)
    return answer.keep("your settings", list(against.values()), tried)


def _beyond(
    cause: Advice, trial: Candidate | None, against: Mapping[str, Comparison], busy: bool
) -> Iterator[Finding]:
    """Work for each sample that no setting changes, with its remedy, unless its final rounds refute that."""
    values: Values = {"cause": cause.kind, **cause.values}
    compared = against.get(trial.name) if trial is not None else None
    if trial is None or compared is None or compared.outcome == "inconclusive":
        yield Finding("beyond-settings", f"Beyond settings: {cause.message}", cause.hint, values)
    elif compared.outcome == "faster":
        gain = Gain(trial, compared.ratio, busy)
        message = f"Beyond settings, {gain.text}: {cause.message}"
        yield Finding("beyond-settings", message, cause.hint, {**values, "gain": gain.times})


def _costs(race: SettingsRace, baseline: Candidate, use: Candidate) -> Iterator[Finding]:
    """Yield the memory and the workers of other settings, and the time to the first batch of an epoch."""
    both = use, baseline
    if use.memory_bytes is not None and baseline.memory_bytes is not None:
        costs = [answer.memory(one.memory_bytes) for one in both]
        values: Values = {"memory_bytes": use.memory_bytes, "baseline_memory_bytes": baseline.memory_bytes}
        if race.loader.knows_workers:
            workers = [race.loader.workers(one.changes) for one in both]
            costs = [f"{counted(n, 'worker')} and {cost}" for n, cost in zip(workers, costs, strict=True)]
            values |= {"workers": workers[0], "baseline_workers": workers[1]}
        yield Finding("cost", f"It uses {costs[0]}; baseline: {costs[1]}", values=values)
    if use.first_batch_s and baseline.first_batch_s:
        own_s, other_s = (statistics.median(one.first_batch_s) for one in both)
        message = f"First batch of an epoch after {seconds_text(own_s)}; baseline: {seconds_text(other_s)}"
        values = {"first_batch_s": own_s, "baseline_first_batch_s": other_s}
        yield Finding("cost", message, values=values)


def _training(baseline: Candidate, headroom: Comparison | None) -> Iterator[Finding]:
    """Yield the share of time that the step waits, and the gain if it never waited."""
    waits = statistics.median(baseline.wait_shares) if baseline.wait_shares else None
    if waits is not None:
        message = f"Baseline: the step waits {waits:.1%} of the time"
        yield Finding("wait-share", message, values={"wait_share": waits})
    if headroom is not None:
        # more gain than the waiting explains: the step itself is faster while no loader competes with it
        faster_step = waits is not None and (1 - waits) * headroom.ratio.median > 1 + stats.MIN_DIFFERENCE
        more = "; part of it is a faster step, since no loader uses the CPU" if faster_step else ""
        yield answer.headroom(headroom.ratio, more, step_is_faster=int(faster_step))


def _basis(baseline: Candidate, whole: bool, interleaved: bool) -> Finding:
    rounds = counted(len(baseline.final_rates), "interleaved round" if interleaved else "round")
    measured = "whole epochs" if whole else f"the first batches of an epoch (baseline: {baseline.batches:,})"
    message = f"Measured in {rounds} over {measured}; baseline: {rate_text(baseline.rate)} samples/s"
    hint = None if whole else f"whole epochs need more time: {LONGER}"
    values: Values = {"rounds": len(baseline.final_rates), "whole_epochs": int(whole)}
    values |= {"batches": baseline.batches, "samples_per_s": baseline.rate}
    return Finding("basis", message, hint, values)
