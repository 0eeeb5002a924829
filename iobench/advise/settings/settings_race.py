"""Live loaders as cases of runs without a dataset; the settings of one: a race, and final rounds."""

from __future__ import annotations

import math
import os
import statistics
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from iobench.advise.settings.candidate import Candidate, names_of
from iobench.advise.settings.tunable_loader import TunableLoader
from iobench.advise.settings.turn import CYCLES, Turn, TurnSpec
from iobench.advise.settings.watchdog import DeadlineReached
from iobench.base.errors import InvalidSettings, TargetError
from iobench.base.finding import Finding
from iobench.base.machine import BackgroundLoad
from iobench.base.text import reason
from iobench.base.units import bytes_text, counted
from iobench.bench.backend import RunBackend
from iobench.bench.budget import Budget
from iobench.bench.case import Case
from iobench.bench.executor import Executor, Tick, TookTooLong
from iobench.bench.options import RunOptions
from iobench.bench.outcome import Run
from iobench.bench.part import Proof
from iobench.bench.policies import COMPARED, FinalRounds, Policy, SuccessiveHalving
from iobench.bench.run import run
from iobench.host.process_counters import descendants
from iobench.loading.loaders._user_loader import UserLoader
from iobench.loading.loaders.dataloader import unwarned
from iobench.results import stats
from iobench.results.parts import ContentCheckPart, DatasetPart, FieldSpec, Measured
from iobench.results.record import Record
from iobench.results.run_warning import Values

UNVERIFIED = Finding("no-checksums", "it reads data that iobench has no checksums of")
# facets of a live loader; no batch size and no step where these are 0
KNOWN = ("dataset", "format", "loader", "options", "device", "batch_size", "seed", "model", "step_s")
MIN_TURN_S = 0.05
PRESENT = ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers")
DIFFERENT_SAMPLES = 0.02  # of an epoch's samples; a larger difference means other work


@dataclass(frozen=True)
class LiveCase(Case):
    """A setting of a live loader: it has no facets of a dataset."""

    @property
    def facets(self) -> dict[str, Any]:
        """The loader and its settings, the device and the step, and the size of batches that have one."""
        every = {**super().facets, "step_s": self.step_s}
        return {name: every[name] for name in KNOWN if every[name] or name not in ("batch_size", "step_s")}


def live_case(dataset: str, name: str, options: Mapping[str, Any], **known: Any) -> LiveCase:
    """Return a loader of this name with its settings as a case; `known` are the device and other facets."""
    loader = UserLoader("", name, tuple(options.items()), (), None, "")
    return LiveCase(dataset, content="", variant="", loader=loader, **known)


def run_live(
    executors: Sequence[tuple[LiveCase, Executor]],
    policy: Policy,
    budget: Budget,
    data: DatasetPart,
    out: Path | None = None,
    seed: int = 0,
    close: Callable[[], None] = lambda: None,
) -> Run:
    """Run cases by their executors, and end what they started by `close`.

    KeyboardInterrupt after Ctrl-C: what was measured until then answers nothing.
    """
    made = run(
        None,
        RunOptions(limits=False, seed=seed),
        out=out,
        cases=[case for case, _ in executors],
        policy=policy,
        backend=_Executors({case.key: executor for case, executor in executors}, close),
        budget=budget,
        live=data,
    )
    if made.interrupted:
        raise KeyboardInterrupt
    return made


class _Executors(RunBackend):
    def __init__(self, executors: Mapping[str, Executor], close: Callable[[], None]) -> None:
        self._by_case, self._close = executors, close

    def executor(self, case: Case) -> Executor:
        """Return the executor of a case."""
        return self._by_case[case.key]

    def close(self) -> None:
        """End what was started, such as persistent workers."""
        self._close()


@dataclass(frozen=True)
class ResourceLimits:
    """Limits on settings: worker processes, and bytes of memory of all processes together."""

    workers: int | None = None
    memory_bytes: int | None = None

    def worker_problem(self, count: int) -> Finding | None:
        """Return that so many workers are more than are allowed; None if they are not."""
        if self.workers is None or count <= self.workers:
            return None
        message = f"has {counted(count, 'worker')}, more than --max-workers {self.workers}"
        return Finding("worker-limit", message, values={"workers": count, "limit": self.workers})


@dataclass
class _Setting(Executor):
    """Executor of one candidate, in this process: a live loader cannot be sent elsewhere."""

    race: SettingsRace
    candidate: Candidate
    limit_s: float | None  # of an epoch; None for whole ones

    def prove(self, case: Case, warmup: int, tick: Tick, limit_s: float = math.inf) -> Proof:
        """Start persistent workers: starting is part of their first epoch and of no later one."""
        if self.limit_s is None and self.candidate.changes.get("persistent_workers"):
            self._turn(tick)
        return Proof(ContentCheckPart(unverified=[UNVERIFIED]))

    def measure(
        self, case: Case, number: int, tick: Tick, batches: int | None = None, limit_s: float = math.inf
    ) -> list[Measured]:
        """Time one turn; InvalidSettings if a setting other than the baseline exceeds a limit."""
        turn, candidate = self._turn(tick), self.candidate
        if (problem := self.race.violation(candidate, turn)) is not None:
            if candidate.changes:
                candidate.failure = problem
                raise InvalidSettings(problem.message, kind=problem.kind)
            candidate.over_limit = problem
        return [turn.measured]

    def _turn(self, tick: Tick) -> Turn:
        """Let a run skip the case whose turn the end of the time cut off."""
        try:
            return self.race.take(self.candidate, self.limit_s, tick)
        except DeadlineReached as error:
            raise TookTooLong(error.problem) from None


ROUNDS = 15  # of the finalists, if time allows
CUTS = 3  # rounds that must fit in the time for an epoch to be measured whole
RACE_TURN_S = 0.2  # at least: a collection of a large heap takes half of that


class SettingsRace:
    """Runs over the settings of one live loader, in this process: races, then final rounds.

    No turn begins after the `budget`. Records go to `path`, by default nowhere.
    """

    def __init__(
        self,
        loader: TunableLoader,
        spec: TurnSpec,
        limits: ResourceLimits | None = None,
        path: Path = Path(os.devnull),
        budget: Budget | None = None,
    ) -> None:
        self.loader, self.spec, self.limits = loader, spec, limits or ResourceLimits()
        self.path, self.budget = path, budget or Budget()
        self.turns: list[tuple[Candidate, Record]] = []  # in order of time
        self._first: Turn | None = None
        # persistent workers by candidate: their memory is not that of other candidates
        self._persistent: dict[str, set[int]] = {}
        self._samples: float | None = None  # of a whole baseline epoch, once there was one

    @contextmanager
    def active(self) -> Iterator[None]:
        """Context of all turns; persistent workers end with it."""
        with unwarned():
            try:
                yield
            finally:
                self.loader.close()

    @property
    def background(self) -> list[BackgroundLoad]:
        """Load of other processes during each turn."""
        return [turn.background for _, turn in self.turns if turn.background is not None]

    def take(self, candidate: Candidate, limit_s: float | None, tick: Tick | None = None) -> Turn:
        """Run one turn of a candidate; a TargetError of its loader is noted."""
        loader, make = self.loader, candidate.make or (lambda: self.loader.with_changes(candidate.changes))
        others = (pids for name, pids in self._persistent.items() if name != candidate.name)
        before = set(descendants())
        spec = replace(self.spec, limit_s=limit_s)
        turn = Turn(make, loader.workers(candidate.changes), spec, loader.note_batch)
        try:
            turn.run(tick, set[int]().union(*others))
        except DeadlineReached:
            raise
        except TargetError as error:
            cause = error.__cause__ or error
            traceback.clear_frames(cause.__traceback__)  # else it keeps the loader's iterator and its workers
            values: dict[str, Any] = {"error": type(cause).__name__, "reason": reason(cause)}
            candidate.failure = Finding("raised", reason(cause), values=values)
            raise
        candidate.turns.append(turn)
        self._persistent.setdefault(candidate.name, set()).update(set(descendants()) - before)
        if not turn.complete:
            loader.close()  # else persistent workers would start their next epoch inside this one
        if not candidate.changes and candidate.make is None:
            self._samples = turn.samples if turn.complete else None
        self._first = self._first or turn
        return turn

    def violation(self, candidate: Candidate, turn: Turn) -> Finding | None:
        """Return why settings that work cannot be chosen; None if they can."""
        limit, used, expected = self.limits.memory_bytes, candidate.memory_bytes, self._samples
        if candidate.make is not None:
            return None
        if limit is not None and used is None:
            return Finding("memory-limit", "its memory use is unknown")
        if limit is not None and used is not None and used > limit:
            message = f"used {bytes_text(used)} of memory, more than {bytes_text(limit)}"
            values: Values = {"memory_bytes": used, "limit_bytes": limit}
            return Finding("memory-limit", message, values=values)
        if expected is not None and turn.complete and abs(turn.samples / expected - 1) > DIFFERENT_SAMPLES:
            yields = f"yields {counted(round(turn.samples), 'sample')} an epoch, not {expected:,.0f}"
            message = f"{yields}: its dataset does not shard them over the workers"
            values = {"samples": turn.samples, "expected": expected}
            return Finding("samples-not-sharded", message, values=values)
        return None

    def _data(self) -> DatasetPart:
        first = self._first
        known = first is not None and (first.complete or first.epoch_batches is not None)
        fields = [
            FieldSpec(name=f"f{number}", shape=list(shape[1:]), dtype=dtype)
            for number, (shape, dtype) in enumerate(self.loader.fields)
        ]
        samples = round(first.samples) if first is not None and known else None
        return DatasetPart(name=self.loader.name, samples=samples, fields=fields)

    def race(self, candidates: Sequence[Candidate], seconds: float, seed: int = 0) -> None:
        """Run rounds and eliminate candidates that are clearly slower; the first round keeps the order given.

        After `seconds` the first round ends, except for its first two candidates: one turn of a slow
        loader may take all the time, and the second candidate is the most promising change.
        """
        limit_s = max(RACE_TURN_S, seconds / CUTS / len(candidates))
        policy = SuccessiveHalving(seconds, ordered=True)
        for candidate, made in self._run(candidates, limit_s, policy, seed):
            candidate.race.append(made)

    def final_rounds(
        self, candidates: Sequence[Candidate], seconds: float, rounds: int = ROUNDS, seed: int = 1
    ) -> None:
        """Run interleaved rounds of whole epochs, or of parts of them if time is short."""
        whole_s = sum(max(statistics.median(one.epoch_s), one.turn_s) for one in candidates if one.epoch_s)
        whole = CUTS * whole_s <= seconds and not any(one.endless for one in candidates)
        limit_s = None if whole else max(MIN_TURN_S, seconds / stats.ENOUGH_ROUNDS / len(candidates))
        at_least = min(rounds, stats.MIN_ROUNDS)
        policy = FinalRounds(self.budget.sub(seconds), rounds, at_least=at_least)
        for candidate, made in self._run(candidates, limit_s, policy, seed):
            candidate.final.append(made)

    def _run(
        self, candidates: Sequence[Candidate], limit_s: float | None, policy: Policy, seed: int
    ) -> list[tuple[Candidate, Record]]:
        """Run the candidates that have not failed, each as a case, and return their records."""
        cases = [(self._case(one), one) for one in candidates if not one.failure]
        executors = [(case, _Setting(self, one, limit_s)) for case, one in cases]
        budget, data = self.budget.share(1.0), self._data()
        made = run_live(executors, policy, budget, data, self.path, seed, self.loader.close)
        chosen = {case.key: one for case, one in cases}
        for key, error in made.failures.items():
            candidate = chosen[key]
            if not candidate.changes:
                raise error  # without the loader's own settings there is nothing to compare
            candidate.failure = candidate.failure or Finding(error.kind, error.problem, error.hint)
        for key, rounds in made.eliminated.items():
            chosen[key].eliminated = rounds
        turns = [(chosen[one.settings_key], one) for one in made.records]
        self.turns += turns
        return turns

    def _case(self, candidate: Candidate) -> LiveCase:
        own, consumer = self.loader, self.spec.consumer
        sizes = [shape[0] for shape, _ in own.fields[:1] if shape]
        present = {option: getattr(own.loader, option) for option in PRESENT} if own.rebuilds else {}
        return live_case(
            own.name,
            own.name if candidate.make is None else candidate.name,
            {**present, **candidate.changes},
            device=str(consumer.device),
            batch_size=sizes[0] if sizes else 0,
            seed=consumer.seed,
            model=consumer.model,
            step_s=consumer.step_s,
        )

    def race_in_time(
        self,
        candidates: Sequence[Candidate],
        turn_s: float,
        share: float,
        promises: Callable[[Sequence[Candidate]], bool],
        status: Callable[[str], None],
        rounds: int = CUTS,
        seed: int = 0,
    ) -> tuple[list[Candidate], list[Candidate]]:
        """Race the candidates for which there is time; the others, too, if none of them promises a gain.

        A race takes a `share` of the time left; `rounds` are turns that must fit in after it. Return
        those that could take part, and those that could not.
        """
        chosen, late = self._fitting(candidates, turn_s, rounds)
        status(f"race of {counted(len(chosen), 'setting')}: {names_of(chosen)}")
        self.race(chosen, share * self.budget.left(), seed)
        untried = [one for one in chosen[1:] if not one.tried]
        if (untried or late) and not promises(chosen):  # no final rounds need the time that is left
            again, late = self._fitting([chosen[0], *untried, *late], turn_s, CUTS)
            status(f"race of {counted(len(again), 'setting')} more: {names_of(again)}")
            self.race(again, share * self.budget.left(), seed)
            chosen += again[1 + len(untried) :]
        return chosen, late

    def _fitting(
        self, candidates: Sequence[Candidate], turn_s: float, rounds: int
    ) -> tuple[list[Candidate], list[Candidate]]:
        most = max(COMPARED, int(self.budget.left() / turn_s - rounds))
        return list(candidates[:most]), list(candidates[most:])

    def turn_s(self, first_s: float, epoch_s: float, batches: int) -> float:
        """Return the seconds of a cut turn, from those of an epoch, or a part, and of its first batch."""
        more = max(1, batches - 1)
        cycles = min(CYCLES * max(1, self.loader.workers({})), more)
        return max(first_s + cycles * max(0.0, epoch_s - first_s) / more, 1e-9)

    def finalists(self, candidates: Sequence[Candidate], ordered: Sequence[Candidate]) -> list[Candidate]:
        """Return the baseline, the first of `candidates`, and as many of `ordered` as there is time for."""
        chosen = [candidates[0], *ordered[:1]]
        for one in ordered[1:]:
            if self.has_time_for([*chosen, one]):
                chosen.append(one)
        return chosen

    def has_time_for(self, candidates: Sequence[Candidate]) -> bool:
        """Return True if enough rounds of these candidates fit in the time that is left."""
        return stats.ENOUGH_ROUNDS * sum(one.turn_s for one in candidates) <= self.budget.left()
