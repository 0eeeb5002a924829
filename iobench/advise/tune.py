"""Tuning of a user's loader in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from iobench.advise import answer
from iobench.advise.checks.evidence import Advice
from iobench.advise.checks.table import CHECKS
from iobench.advise.diagnose import diagnose
from iobench.advise.settings import search_space
from iobench.advise.settings.candidate import BASELINE, HEADROOM, Candidate, slowdown
from iobench.advise.settings.settings_race import (
    CUTS,
    ResourceLimits,
    SettingsRace,
    finalists,
    hidden_gain,
)
from iobench.advise.settings.tunable_loader import TunableLoader
from iobench.advise.settings.turn import CYCLES, Consumer, Turn, TurnSpec
from iobench.advise.settings.watchdog import DeadlineReached, Watchdog, loader_budget
from iobench.advise.tuning import TuningResult, nothing_fits, result_of
from iobench.base.errors import InvalidSettings, IobenchError, TargetError
from iobench.base.finding import Finding
from iobench.base.thresholds import CPU_CONTENDED
from iobench.base.units import counted
from iobench.bench.budget import Budget
from iobench.bench.options import check_above_zero
from iobench.bench.policies import COMPARED
from iobench.loading.replay import Replay
from iobench.loading.user_errors import USER_ERRORS, loader_error
from iobench.results import stats
from iobench.results.history import file_name, new_file
from iobench.results.record_file import check_writable
from iobench.results.run_warning import LONGER

MAX_TIME_S = 60.0
CAUSES = 0.15  # of the time, to find what settings cannot change
FIRST_TURN, PROBES, RACE, REFINE = 0.1, 0.1, 0.35, 0.2  # of the time; the rest is for the final rounds
MIN_FINAL = 0.25  # of the time, that refinements leave for the final rounds
FINALISTS = 2  # in addition to the baseline
NEAR = 0.9  # of the fastest in the race: other candidates that get final rounds

Status = Callable[[str], None]


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
    loader = TunableLoader(target)
    if loader.single_pass:
        raise TargetError(
            "it is an iterator, which can be iterated over only once",
            kind="single-pass",
            hint="give the function that builds it, or an iterable such as a DataLoader",
        )
    work = _work(loader, str(consumer.device), budget.sub(CAUSES * budget.seconds), timeout_s, on_status)
    watchdog = Watchdog(timeout_s, loader_budget(budget))
    limits = ResourceLimits(max_workers, max_memory_bytes)
    path = Path(out) if out else new_file(Path(data_dir), f"tune-{file_name(loader.name)}")
    check_writable(path)
    consumer.replay = Replay(consumer.transfer.device_api) if headroom else None
    race = SettingsRace(loader, TurnSpec(consumer, guard=watchdog.guard), limits, path, watchdog.budget)
    with watchdog.active(), race.active():
        tuning = _Tuning(race, limits, consumer, watchdog, on_status, work)
        try:
            return tuning.run(path, seed)
        except IobenchError:
            raise
        except USER_ERRORS as error:
            raise loader_error(error) from error


def _work(
    loader: TunableLoader, device: str, budget: Budget, timeout_s: float, on_status: Status
) -> tuple[Advice, Candidate | None] | None:
    """Return the work for samples, which no setting changes, and the candidate that tries its remedy."""
    try:
        found = diagnose(
            loader, timeout_s=timeout_s, race=False, device=device, on_status=on_status, budget=budget
        )
    except DeadlineReached:
        return None
    causes = [one for one in found.advice if CHECKS[one.kind].work]
    return (causes[0], CHECKS[causes[0].kind].trial(found.candidates)) if causes else None


class _Tuning:
    """The steps of a tuning, each with its share of the time."""

    def __init__(
        self,
        race: SettingsRace,
        limits: ResourceLimits,
        consumer: Consumer,
        watchdog: Watchdog,
        status: Status,
        work: tuple[Advice, Candidate | None] | None,
    ) -> None:
        self._work = work
        self._race, self._limits, self._consumer = race, limits, consumer
        self._watchdog, self._status = watchdog, status

    def run(self, records: Path, seed: int) -> TuningResult:
        """Tune, and return what the rounds support."""
        self._status("measuring the baseline")
        try:
            turn = self._race.warm_up(Candidate(BASELINE), self._watchdog.part(FIRST_TURN).seconds)
        except DeadlineReached:
            if not self._watchdog.delivered:
                raise
            return self._result([Candidate(BASELINE)], [Candidate(BASELINE)], [], records)
        replay = self._consumer.replay
        if replay is not None:
            replay.count, self._consumer.replay = turn.epoch_batches or turn.batches, None
        candidates, chosen, skipped = self._raced(turn, seed)
        chosen += self._remedy(chosen)
        if replay is not None:
            chosen.append(Candidate(HEADROOM, kind="headroom", make=lambda: replay))
        self._status(f"final rounds: {'; '.join(one.name for one in chosen)}")
        self._race.final_rounds(chosen, self._race.budget.left(), seed=seed + 1)
        if (ratio := slowdown(self._race.turns)) is not None:
            raise TargetError(
                f"the loader gets slower with each turn, {ratio:.1f} × from first to last: "
                f"settings cannot be compared (records: {records})",
                kind="slowing-down",
                hint="look for what it keeps from epoch to epoch",
            )
        return self._result(candidates, chosen, skipped, records)

    def _remedy(self, chosen: Sequence[Candidate]) -> list[Candidate]:
        """Return what tries the remedy of work that no setting changes, if there is time for rounds of it."""
        trial = self._work[1] if self._work else None
        turns_s = sum(one.turn_s for one in (*chosen, chosen[0]))
        fits = stats.ENOUGH_ROUNDS * turns_s <= self._race.budget.left()
        return [trial] if trial is not None and fits else []

    def _result(
        self,
        candidates: Sequence[Candidate],
        chosen: Sequence[Candidate],
        skipped: Sequence[Finding],
        records: Path,
    ) -> TuningResult:
        return result_of(
            self._race, candidates, chosen, skipped, str(records), self._consumer.trains, self._work
        )

    def _raced(self, turn: Turn, seed: int) -> tuple[list[Candidate], list[Candidate], list[Finding]]:
        """Race the candidates; return them, those for the final rounds, and why others were skipped."""
        loader, device = self._race.loader, str(self._consumer.device)
        starting = turn.measured.timing.first_batch_s > search_space.SLOW_START * turn.epoch_s
        traits = search_space.LoaderTraits(
            turn.complete,
            starting,
            _idle(turn),
            not _idle(turn),
            device,
            probing=lambda: self._watchdog.within(self._watchdog.part(PROBES).seconds),
        )
        candidates, skipped = search_space.candidates_for(loader, traits, self._limits)
        fitting = self._in_time(turn, candidates)
        skipped += answer.no_time([one.name for one in candidates[len(fitting) :]], LONGER)
        names = "; ".join(one.name for one in fitting)
        self._status(f"race of {counted(len(fitting), 'setting')}: {names}")
        self._race.race(fitting, self._watchdog.part(RACE).seconds, seed)
        if len(fitting) > 1:
            fitting += self._refined(fitting, replace(traits, starting=True), seed)
        return fitting, self._finalists(fitting), skipped

    def _in_time(self, turn: Turn, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates, likeliest first, that there is time for: a turn each, three of the best."""
        timing, cycle = turn.measured.timing, max(1, self._race.loader.workers({}))
        batch_s = turn.epoch_s / max(1, turn.epoch_batches or turn.batches)
        min_s = timing.open_s + timing.first_batch_s + CYCLES * cycle * batch_s
        return list(candidates[: max(COMPARED, int(self._race.budget.left() / min_s - 2 * CUTS))])

    def _refined(
        self, candidates: Sequence[Candidate], traits: search_space.LoaderTraits, seed: int
    ) -> list[Candidate]:
        """Race the fastest candidate against itself with one more setting changed; return the latter."""
        best = max((one for one in candidates if _fits(one)), key=lambda one: one.rate, default=None)
        if best is None or not best.changes:
            return []
        known = [one.changes for one in candidates]
        more = search_space.refinements(self._race.loader, best, traits)
        more = [one for one in more if one.changes not in known]
        reserved = self._watchdog.part(MIN_FINAL).seconds
        seconds = min(self._watchdog.part(REFINE).seconds, self._race.budget.left() - reserved)
        if more and seconds > 0:
            self._status(f"with {best.name}: {'; '.join(one.name for one in more)}")
            again = Candidate(best.name, best.changes, best.kind)
            self._race.race([again, *more], seconds, seed)
        return more

    def _finalists(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the baseline, and the candidates within the limits that are faster and near the fastest."""
        baseline, *others = candidates
        fitting = sorted((one for one in others if _fits(one)), key=lambda one: one.rate, reverse=True)
        if baseline.over_limit is None:
            fitting = [one for one in fitting if one.rate > baseline.rate or hidden_gain(baseline, one)]
        elif not fitting:
            least = min(
                (one for one in candidates if one.memory_bytes), key=lambda one: one.memory_bytes or 0
            )
            raise nothing_fits(
                [f"{least.name}, which uses least memory, {least.over_limit or least.failure}"]
            )
        near = [one for one in fitting[:FINALISTS] if one.rate >= NEAR * fitting[0].rate]
        return finalists(candidates, near, self._race.budget.left())


def _fits(candidate: Candidate) -> bool:
    return bool(candidate.rates) and candidate.failure is None


def _idle(turn: Turn) -> bool:
    """Return True if its processes mostly slept or waited for a disk or network, not for a core."""
    background = turn.measured.background
    if background is not None and (background.processors or 0.0) > CPU_CONTENDED:
        return False
    return turn.measured.processor.cpu_s < 0.5 * turn.measured.timing.epochs_s
