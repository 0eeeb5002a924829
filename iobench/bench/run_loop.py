"""Main loop of a run: verification of cases, timed rounds, records, and failures."""

from __future__ import annotations

import math
import time
from contextlib import closing
from dataclasses import replace
from typing import Any

from iobench.base import interrupts
from iobench.base.finding import Finding
from iobench.base.units import counted, rate_text, seconds_text
from iobench.bench.case import Case
from iobench.bench.case_failures import FATAL, CaseFailures
from iobench.bench.estimates import RoundEstimates
from iobench.bench.executor import Tick, TookTooLong
from iobench.bench.executor_factory import ExecutorFactory, LocalBackend
from iobench.bench.losses import loss_mismatches
from iobench.bench.observer import Observer
from iobench.bench.outcome import Run
from iobench.bench.recorder import Recorder
from iobench.bench.resume import check_same
from iobench.bench.round_length import PROOF_ROUNDS, RoundLengths
from iobench.bench.rounds import Rates, interleaved
from iobench.bench.strategy import Strategy
from iobench.bench.training import TrainingStep
from iobench.results import record_file
from iobench.results.over_ranks import joined
from iobench.results.run_warning import LONGER

UNVERIFIED = "--max-time left no time to verify it"


class RunLoop:
    """A run in progress: first the verification of each case, then interleaved rounds."""

    def __init__(
        self,
        run: Run,
        observer: Observer,
        strategy: Strategy,
        backend: ExecutorFactory | None,
        began: float,
    ) -> None:
        self._began = began  # moment of `time.monotonic`, of all that the run does
        self._run, self._options, self._observer, self._strategy = run, run.options, observer, strategy
        self._labels = run.labels
        self._estimates = RoundEstimates(strategy, observer.status)
        self._backend = backend or LocalBackend()
        run.notes += self._backend.begin(run.manifest, run.options, run.cases)
        self._recorder = Recorder(run, self._backend.hosts)
        self._done = {(one.settings_key, one.round) for one in run.records}  # by the run that is resumed
        if run.records:
            check_same(run.records, run.cases, self._recorder.machine)
            observer.resumed(run.records)
            self._estimates.resumed(run, len(self._done))
        self._lengths = RoundLengths(run.manifest.schema)
        self._check_interrupt: interrupts.Check = lambda: None
        self._took_s: dict[str, float] = {}  # latest duration of a verification or round, by case
        self._used_s: dict[str, float] = {}  # by the rounds of each case
        self._failures = CaseFailures(run, self._skip)
        self._opened_s: float | None = None  # of rounds before all cases were verified
        self._late_s = 0.0  # by which what precedes the rounds exceeded its time, deducted from theirs
        for case in {case.model: case for case in run.cases if run.manifest.artifacts}.values():
            # a model that does not fit the data fails before anything is measured
            TrainingStep.of(case, run.manifest.schema)

    def all_rounds(self) -> None:
        """Verify every case, then time it; Ctrl-C ends the run with what it has."""
        self._run.manifest.index_end = self._began + self._strategy.max_time_s
        try:
            with (
                interrupts.deferred(once=self._backend.world_size == 1) as self._check_interrupt,
                closing(self._backend),
                self._recorder.watching(),
            ):
                self._prove_all()
                self._trace_all()
                self._time_all()
        except KeyboardInterrupt:
            self._run.interrupted = True
        except FATAL as error:
            if not self._run.records:
                raise
            self._run.stopped = error  # the rounds made so far are worth showing
        finally:
            self._run.manifest.index_end = math.inf

    def _prove_all(self) -> None:
        self._estimates.before_proofs(len(self._run.cases))
        for number, case in enumerate(self._run.cases):
            if case.key in self._run.failures:
                continue
            spent_s = time.monotonic() - self._proofs_began
            if number and not self._strategy.verifies(spent_s, [*self._took_s.values()]):
                self._skip(case, UNVERIFIED)
                continue
            self._observer.status(f"verifying {self._labels[case.key]}")
            left_s = self._strategy.verification_s(spent_s, len(self._run.cases) - number)
            left_s = min(left_s, PROOF_ROUNDS * case.round_seconds)
            try:
                with self._failures.collecting(case):
                    self._prove(case, left_s)
            except TookTooLong:
                self._skip(case, UNVERIFIED)
            self._failures.check_stored(case, left_s)
            if self._opened_s is None and len(self._took_s) == self._strategy.opening > 0:
                self._open()

    def _open(self) -> None:
        """Time the verified cases once: from now on there is a comparison to show."""
        self._recorder.probe_lower_cache()
        before = time.monotonic()
        self._lengths.limit_s = self._strategy.round_s(before - self._began, len(self._run.cases))
        for case in self._remaining():
            if case.key in self._took_s:
                self._turn(case, 1, before)
        self._opened_s = time.monotonic() - before
        self._done |= {(one.settings_key, one.round) for one in self._run.records}
        figures = [
            f"{self._labels[one.settings_key]} {rate_text(one.samples_per_s)}" for one in self._run.records
        ]
        self._observer.status(f"first figures: {'; '.join(figures)} samples/s")

    @property
    def _proofs_began(self) -> float:
        """Moment from which verification counts, later by what does not: its rounds, and a slow default."""
        excess_s = self._strategy.excess_s([proof.took_s for proof in self._run.proofs.values()])
        return self._began + (self._opened_s or 0.0) + excess_s

    def _skip(self, case: Case, reason: str) -> None:
        """Leave a case out for want of time."""
        self._run.skipped.append(case.key)
        self._backend.executor(case).end(case)
        label = str(self._labels[case.key])
        values: dict[str, float | int | str] = {"reason": "no-time", "case": label, "cause": reason}
        self._run.notes.append(Finding("skipped", f"skipped: {label}: {reason}", LONGER, values))

    def _prove(self, case: Case, limit_s: float) -> None:
        """Verify a case and note the time; raises TookTooLong if the strategy has no more time for it."""
        before, progress = time.monotonic(), self._observer.begins(case.key, 0)
        until = self._proofs_began + self._strategy.verification_end_s([*self._took_s.values()])

        def check() -> None:
            self._check_interrupt()
            if time.monotonic() > until:
                raise TookTooLong

        proof = self._strategy.earlier_proof(case.key, limit_s)
        if proof is None:
            tick, warmup = Tick(check, progress), self._options.warmup
            proof = self._backend.executor(case).prove(case, warmup, tick, limit_s)
            proof = replace(proof, took_s=(time.monotonic() - before) / warmup)
        self._recorder.proved(case, proof.check)
        self._lengths.proved(case, proof)
        self._run.proofs[case.key], self._took_s[case.key] = proof, proof.took_s
        self._failures.checked.add(case.variant)

    def _trace_all(self) -> None:
        for case in self._remaining() if self._options.trace else ():
            path = self._recorder.trace_path(str(self._labels[case.key]))
            self._observer.status(f"tracing {self._labels[case.key]}")
            with self._failures.collecting(case):
                self._backend.executor(case).trace(case, path)
                self._run.traces.append(path)

    def _time_all(self) -> None:
        if self._opened_s is None:
            self._recorder.probe_lower_cache()
        took_s = {case.key: self._took_s.get(case.key, 0.0) for case in self._remaining()}
        self._estimates.after_proofs(took_s, [key for key, _ in self._done])
        began, opened_s = time.monotonic(), self._opened_s or 0.0
        self._late_s = self._strategy.late_s(began - self._proofs_began, opened_s)
        self._lengths.limit_s = self._strategy.round_s(began - self._began, len(self._remaining()))

        def go_on(done: int) -> bool:
            elapsed_s = time.monotonic() - began
            if done == 1 and not self._done and self._run.records:
                self._estimates.after_first_round(elapsed_s)
            return self._after_round(done, elapsed_s + self._late_s)

        for number, case in interleaved(self._run.cases, go_on, self._options.seed, self._first):
            if case in self._remaining() and (case.key, number) not in self._done:
                self._turn(case, number, began)
        if rates := self._rates():
            # no case may have had the time for its turn in the round that began last
            made, elapsed_s = max(one.round for one in self._run.records), time.monotonic() - began
            self._run.notes += self._strategy.notes(made, elapsed_s, rates, self._labels)

    def _first(self, case: Case) -> Any:
        """Return the sort key of a case in the first round."""
        return self._strategy.first(self._run.cases.index(case), self._took_s.get(case.key, 0.0))

    def _turn(self, case: Case, number: int, began: float) -> None:
        """Time a case in a round, if there is time; without its first round it is skipped altogether."""
        before, measured = time.monotonic(), len(self._run.valid_records)
        elapsed_s, total_s = before - began + self._late_s, before - self._began
        next_s = self._next_s(case, number)
        late = self._strategy.skips(number, elapsed_s, total_s, next_s, measured)
        if not late and not (measured and self._is_slow(case, number)):
            with self._failures.collecting(case):
                limit_s = self._strategy.cut_s(number, elapsed_s, total_s, measured)
                limit_s = max(0.0, limit_s - self._lengths.batch_s(case))  # the last batch comes after it
                self._took_s[case.key] = self.time_round(case, number, limit_s)
                self._used_s[case.key] = self._used_s.get(case.key, 0.0) + self._took_s[case.key]
        elif number == 1:
            self._skip(case, f"a round of it takes about {seconds_text(next_s)}")

    def _next_s(self, case: Case, number: int) -> float:
        """Return about how long the case's round of this number takes."""
        return self._lengths.round_s(case) if number == 1 else self._took_s.get(case.key, 0.0)

    def _is_slow(self, case: Case, number: int) -> bool:
        """Return whether the case has had its share of the time."""
        next_s = self._next_s(case, number)
        return self._strategy.is_slow(self._used_s.get(case.key, 0.0), next_s, len(self._remaining()))

    def _after_round(self, done: int, elapsed_s: float) -> bool:
        """Eliminate cases after `done` rounds, and return whether another round follows."""
        rates = self._rates()
        # a case that has had its share makes no further round, and so does not count
        ready = [case for case in self._remaining() if done and not self._is_slow(case, done + 1)]
        took_s = {case.key: self._next_s(case, done + 1) for case in ready}
        lost, more = self._strategy.after_round(done, elapsed_s, rates, took_s)
        self._run.eliminated |= dict.fromkeys(lost, done)
        for case in self._run.cases:
            if case.key in lost:
                self._backend.executor(case).end(case)
        if lost:
            left = counted(len(rates) - len(lost), "case")
            self._observer.status(f"after {counted(done, 'round')}: {left} left")
        return more

    def time_round(self, case: Case, number: int, limit_s: float) -> float:
        """Record a round, and return its seconds; those in which limits are measured are not its own.

        A round that is longer than others is cut off after `limit_s`.
        """
        hosts = self._backend.hosts
        if not case.loader.own_data:
            self._run.manifest.opener(case.variant)  # raises if files are gone or have changed in size
        asked = time.monotonic()
        if number >= self._strategy.limits_from:
            hosts.sample_limits()
        before = time.monotonic()
        limit_s = max(0.0, limit_s - (before - asked))
        headroom = self._recorder.measure_headroom(case, number)
        batches = self._lengths.batches(case)
        self._backend.executor(case).ready(case, Tick(self._check_interrupt), batches)
        state = hosts.establish(case, self._lengths.logical_bytes(case))
        tick = Tick(self._check_interrupt, self._observer.begins(case.key, number))
        measured = self._backend.executor(case).measure(case, number, tick, batches, limit_s)
        made = self._recorder.record(case, number, joined(measured), state, headroom)
        record_file.append(self._run.path, made)
        self._run.records.append(made)
        self._lengths.measured(case, made)
        self._observer.recorded(case.key, made)
        if not case.loader.iterable_style:
            self._run.failures |= loss_mismatches(self._run, case, made)
        return time.monotonic() - before

    def _remaining(self) -> list[Case]:
        gone = {*self._run.failures, *self._run.eliminated, *self._run.skipped}
        return [case for case in self._run.cases if case.key not in gone]

    def _rates(self) -> Rates:
        """Return the rates of the remaining cases by round."""
        rates = {case.key: dict[int, float]() for case in self._remaining()}
        for made in self._run.records:
            if (key := made.settings_key) in rates:
                rates[key][made.round] = made.samples_per_s
        return rates
