"""The rounds of a run: who is proved, who takes a turn, what is recorded, and what ends it."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from typing import Any

from iobench.base.errors import (
    ColdCacheUnavailable,
    CorruptArtifact,
    IobenchError,
    RankLost,
    RecordError,
    WrongContent,
)
from iobench.base.units import counted
from iobench.bench import plan
from iobench.bench.case import Case
from iobench.bench.crew import Alone, Crew
from iobench.bench.duration import Duration
from iobench.bench.epoch import disk_errors, heap_restored
from iobench.bench.executor import Executor, Step, Tick, TookTooLong
from iobench.bench.losses import odd_losses
from iobench.bench.observer import Observer
from iobench.bench.outcome import Run
from iobench.bench.race import COMPARED, Race
from iobench.bench.recorder import Recorder
from iobench.bench.resume import check_same
from iobench.dataset.verify import problem_of
from iobench.host import interrupts
from iobench.results import record
from iobench.results.cases import key_of
from iobench.results.ranks import together

ENDING = (ColdCacheUnavailable, RecordError, RankLost)  # nothing can be measured after one of these


class Measuring:
    """A run under way: proofs first, then rounds in which all cases take turns."""

    def __init__(
        self, run: Run, observer: Observer, race: Race | None = None, crew: Crew | None = None
    ) -> None:
        self._run, self._options, self._observer, self._race = run, run.options, observer, race
        self._labels = run.labels
        self._plan = run.options.plan
        self._duration = Duration(self._plan, observer.status)
        self._crew = crew or Alone()
        run.remarks += self._crew.begin(run.manifest, run.options, run.cases)
        self._recorder = Recorder(run, self._crew.hosts)
        self._done = {(key_of(one.case), one.round) for one in run.records}  # by a run that is gone on with
        if run.records:
            check_same(run.records, run.cases, self._recorder.machine)
            observer.went_before(run.records)
            self._duration.going_on(run, len(self._done))
        self._check_interrupt: interrupts.Check = lambda: None
        self._took_s: dict[str, float] = {}  # the last time that a case was run
        self._began = time.monotonic()  # to prove them
        self._wrong = set[str]()  # cases whose data, or what they made of them, were
        self._vouched = set[str]()  # variants whose files hold what they should
        self._late_s = 0.0  # that proofs took beyond a race's time for them, and rounds have less
        for case in {case.model: case for case in run.cases}.values():
            Step.of(
                case, run.manifest.schema
            )  # a model that does not fit the data fails before anything is measured

    def all_rounds(self) -> None:
        """Prove every case, then time it; Ctrl-C ends the run with what it has."""
        try:
            with (
                heap_restored(),
                interrupts.deferred(once=self._crew.world_size == 1) as self._check_interrupt,
                closing(self._crew),
                self._recorder.watching(),
            ):
                self._prove_all()
                self._trace_all()
                self._time_all()
        except KeyboardInterrupt:
            self._run.interrupted = True
        except ENDING as error:
            if not self._run.records:
                raise
            self._run.stopped = str(error)  # what was measured is worth showing

    def _prove_all(self) -> None:
        if self._race is None:
            self._duration.before_proofs(len(self._run.cases))
        began = self._began = time.monotonic()
        for case in self._run.cases:
            if case.key in self._run.failures:
                continue
            if self._race and not self._race.proves(time.monotonic() - began, [*self._took_s.values()]):
                self._run.untried.append(case.key)
                continue
            self._observer.status(f"checking {self._labels[case.key]}")
            try:
                with self._collecting_failures(case):
                    self._prove(case)
            except TookTooLong:
                self._run.untried.append(case.key)
            if self._race and case.key in self._wrong and case.variant not in self._vouched:
                self._look_at_data(case.variant)
        if self._race:
            self._late_s = max(0.0, time.monotonic() - began - self._race.proofs_s)

    def _prove(self, case: Case) -> None:
        """Prove it and note how long that took; TookTooLong where a race has no more time for it."""
        before, progress = time.monotonic(), self._observer.begins(case.key, 0)
        known = [*self._took_s.values()]
        until = self._began + (self._race.gives_up_s(known) if self._race else math.inf)

        def check() -> None:
            self._check_interrupt()
            if time.monotonic() > until:
                raise TookTooLong

        found = self._executor(case).prove(case, self._options.warmup, Tick(check, progress))
        self._recorder.proved(case, found)
        self._took_s[case.key] = (time.monotonic() - before) / self._options.warmup
        self._vouched.add(case.variant)

    def _look_at_data(self, variant: str) -> None:
        """Where the stored data themselves are wrong, no loader over them can be right: none is proved."""
        self._vouched.add(variant)
        if (problem := problem_of(self._run.manifest, variant)) is not None:
            same = [case.key for case in self._run.cases if case.variant == variant]
            self._run.failures |= dict.fromkeys(same, problem)

    def _trace_all(self) -> None:
        for case in self._live() if self._options.trace else ():
            path = self._recorder.trace_path(str(self._labels[case.key]))
            self._observer.status(f"tracing {self._labels[case.key]}")
            with self._collecting_failures(case):
                self._executor(case).trace(case, path)
                self._run.traces.append(path)

    def _time_all(self) -> None:
        self._recorder.probe_below()
        if self._race is None:  # nobody knows how many will be left of one
            took_s = {case.key: self._took_s.get(case.key, 0.0) for case in self._live()}
            self._duration.after_proofs(took_s, [key for key, _ in self._done])
        began, done = time.monotonic(), 0

        def go_on(rounds: int) -> bool:
            nonlocal done
            done = rounds
            elapsed_s = time.monotonic() - began
            if rounds == 1 and not self._done and self._race is None:
                self._duration.after_first_round(elapsed_s)
            if self._race is not None:
                return self._race_goes_on(self._race, rounds, elapsed_s + self._late_s)
            return bool(self._live()) and self._plan.go_on(rounds, elapsed_s, self._rates())

        first = self._first if self._race is not None else None
        for number, case in plan.interleaved(self._run.cases, go_on, self._options.seed, first):
            if case.key in {live.key for live in self._live()} and (case.key, number) not in self._done:
                before = time.monotonic()
                if self._is_late(number, before - began):
                    if number == 1:
                        self._run.untried.append(case.key)
                        self._executor(case).end(case)
                    continue
                with self._collecting_failures(case):
                    self._time(case, number)
                self._took_s[case.key] = time.monotonic() - before
        if self._race is None and self._live():
            self._run.remarks += self._duration.after_rounds(
                done, time.monotonic() - began, self._rates(), self._labels
            )

    def _first(self, case: Case) -> Any:
        """What the first round of a race is sorted by."""
        place = self._run.cases.index(case)
        return self._race.first(place, self._took_s.get(case.key, 0.0)) if self._race else place

    def _is_late(self, number: int, elapsed_s: float) -> bool:
        """Whether a race has no time for a turn in this round; the first has two if it can, to compare."""
        if self._race is None or not self._run.sound:
            return False
        if time.monotonic() - self._began > self._race.end_s:
            return True
        enough = number == 1 and len(self._run.sound) >= COMPARED
        return enough and elapsed_s + self._late_s > self._race.max_time_s

    def _race_goes_on(self, race: Race, done: int, elapsed_s: float) -> bool:
        """Drop who is clearly behind after `done` rounds, and say whether there is another one."""
        live = self._live()
        rates = {case.key: dict[int, float]() for case in live}
        for made in self._run.sound:
            if (key := key_of(made.case)) in rates:
                rates[key][made.round] = made.samples_per_s
        lost, goes_on = race.after_round(done, elapsed_s, rates, self._took_s)
        self._drop(lost, done)
        if lost:
            left = len(rates) - len(lost)
            self._observer.status(f"after {counted(done, 'round')}: {counted(left, 'case')} left")
        return goes_on

    def _drop(self, keys: Collection[str], done: int) -> None:
        self._run.dropped |= dict.fromkeys(keys, done)
        for case in self._run.cases:
            if case.key in keys:
                self._executor(case).end(case)

    def _time(self, case: Case, number: int) -> None:
        hosts = self._crew.hosts
        self._run.manifest.opener(case.variant)  # complains about files that have gone or changed in size
        hosts.look_at_limits()
        headroom = self._recorder.look_at_headroom(case, number)
        self._executor(case).ready(case, Tick(self._check_interrupt))
        state = hosts.establish(case)
        measured = self._executor(case).measure(case, number, self._tick(case, number))
        made = self._recorder.record(case, number, together(measured), state, headroom)
        record.append(self._run.path, made)
        self._run.records.append(made)
        self._observer.recorded(case.key, made)
        if not case.loader.own_order:
            self._run.failures |= odd_losses(self._run, case, made)

    def _executor(self, case: Case) -> Executor:
        return self._crew.executor(case)

    def _tick(self, case: Case, number: int) -> Tick:
        progress = self._observer.begins(case.key, number)
        return Tick(self._check_interrupt, progress)

    def _live(self) -> list[Case]:
        gone = {*self._run.failures, *self._run.dropped, *self._run.untried}
        return [case for case in self._run.cases if case.key not in gone]

    def _rates(self) -> dict[str, list[float]]:
        """Of those that are in it still: one that failed gets no surer."""
        rates: dict[str, list[float]] = {case.key: [] for case in self._live()}
        for made in self._run.records:
            if (key := key_of(made.case)) in rates:
                rates[key].append(made.samples_per_s)
        return {key: values for key, values in rates.items() if values}

    @contextmanager
    def _collecting_failures(self, case: Case) -> Iterator[None]:
        """Note what is wrong with one case and go on; what would stop every case ends the run."""
        try:
            with disk_errors(self._run.manifest.path_of(case.variant)):
                yield
        except ENDING:
            raise
        except IobenchError as error:
            place = self._run.manifest.place_of(case.variant)
            self._run.failures[case.key] = str(place.with_hint(error))
            if isinstance(error, WrongContent | CorruptArtifact):
                self._wrong.add(case.key)
