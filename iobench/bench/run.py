"""A run: verify cases, then time them in interleaved rounds, one turn of a policy after the other."""

from __future__ import annotations

import math
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from iobench import formats
from iobench.base import interrupts, thresholds
from iobench.base.errors import (
    ColdCacheUnavailable,
    CorruptArtifact,
    InvalidSettings,
    IobenchError,
    RankLost,
    RecordError,
    WrongContent,
)
from iobench.base.finding import Finding
from iobench.base.units import counted, rate_text, seconds_text
from iobench.bench.backend import RunBackend
from iobench.bench.budget import Budget
from iobench.bench.case import Case
from iobench.bench.case_grid import cases_of, skip_notes
from iobench.bench.epoch import disk_errors
from iobench.bench.executor import Tick, TookTooLong
from iobench.bench.options import RunOptions
from iobench.bench.outcome import Observer, Run
from iobench.bench.part import RoundLengths
from iobench.bench.plans import check_same
from iobench.bench.policies import BEHIND, COMPARED, UNVERIFIED, EqualShares, NextTurn, Policy, RunState
from iobench.bench.recorder import Recorder
from iobench.bench.training import TrainingStep
from iobench.dataset.artifact_location import ChangeDetector
from iobench.dataset.index_cache import IndexLate
from iobench.dataset.manifest import Manifest
from iobench.dataset.verify import verify_in_time
from iobench.host.device import pick_device
from iobench.results import history, record_file
from iobench.results.parts import DatasetPart, check_prices, joined
from iobench.results.record import Record
from iobench.results.run_warning import LONGER


def run(
    manifest: Manifest | None,
    options: RunOptions | None = None,
    *,
    out: str | Path | None = None,
    observer: Observer | None = None,
    cases: Sequence[Case] | None = None,
    policy: Policy | None = None,
    earlier_records: Sequence[Record] = (),
    backend: RunBackend | None = None,
    budget: Budget | None = None,
    live: DatasetPart | None = None,
) -> Run:
    """Measure every case of a run in interleaved rounds, with one Record per timed round.

    The first untimed round of a case verifies its content on the device against the manifest. A case that
    fails is not timed and is listed in `Run.failures`. Records are appended to `out` as each round ends, so
    that Ctrl-C keeps them: it sets `Run.interrupted` and returns.

    Parameters
    ----------
    manifest : Manifest or None
        The dataset; None for a live loader, which `cases` and `backend` describe.
    options : RunOptions, optional
        What to measure, by default each prepared format under the default loaders.
    out : str or Path, optional
        File of records, by default a new one in the `results` folder next to the dataset.
    observer : Observer, optional
        Receives progress.
    cases : sequence of Case, optional
        Cases to measure, instead of all that the options make.
    policy : Policy, optional
        Decides which turn is next and which cases are dropped, by default equal shares of the time.
    earlier_records : sequence of Record
        Rounds of an interrupted run, which is resumed.
    backend : RunBackend, optional
        Processes that measure, by default this process alone.
    budget : Budget, optional
        Time for everything, by default that of the options, from this call on.
    live : DatasetPart, optional
        What is known of a live loader's data.

    Raises
    ------
    InvalidSettings, InvalidOption, DeviceUnavailable, ManifestError, ColdCacheUnavailable, RecordError
        If the run is impossible as requested.
    """
    options = options or RunOptions()
    budget = budget or Budget(options.seconds)
    world_size = backend.world_size if backend else 1
    chosen, notes = list(cases or ()), list[Finding]()
    if manifest is not None:
        check_prices(options.prices, manifest.url)
        if cases is None:
            chosen = cases_here(manifest, options, world_size)
            notes = skip_notes(manifest, options, world_size)
        out = out or new_path(manifest)
    path = Path(out or os.devnull)
    record_file.check_writable(path)
    for case in chosen:
        record_file.check_parts(case=case.facets)
    if any(case.loader.workers for case in chosen):
        tempfile.gettempdir()  # raises FileNotFoundError: without it workers would never deliver a batch
    result = Run(manifest, options, chosen, path, list(earlier_records), notes=notes, live=live)
    observer = observer or Observer()
    batch_bytes = {case.key: world_size * case.batch_bytes(manifest.schema) for case in chosen if manifest}
    observer.planned(result.labels, batch_bytes)
    with record_file.only_writer(path):
        policy = policy or EqualShares(options.stopping_rule(chosen))
        RunLoop(result, observer, policy, backend, budget).all_turns()
    return result


def cases_here(manifest: Manifest, options: RunOptions, world_size: int = 1) -> list[Case]:
    """Return the cases of a run on this machine's devices over `world_size` ranks; raises as `run` does."""
    picked = [(name, pick_device(name)) for name in options.device]
    # without an index if each of several ranks has its own
    devices = [str(one) if world_size == 1 or ":" in name else one.type for name, one in picked]
    return cases_of(manifest, options, list(dict.fromkeys(devices)), world_size)


def new_path(manifest: Manifest) -> Path:
    """Return the default file of records for a run that starts now."""
    return history.new_file(manifest.data_dir, manifest.root.name)


class RoundEstimates:
    """Passes estimates of the duration of planned rounds to `status`, one line each, as they become known.

    `planned` is the number of rounds, None where it depends on the figures; `max_time_s` the time for all.
    """

    def __init__(self, planned: int | None, max_time_s: float, status: Callable[[str], None]) -> None:
        self._planned, self._max_time_s, self._status = planned, max_time_s, status
        self._resumed: list[str] = []  # key of the case of each round that a resumed run has already

    def resumed(self, run: Run) -> None:
        """Report how many rounds a resumed run has; raises InvalidSettings if it has all."""
        self._resumed = [one.settings_key for one in run.records]
        done = len({(one.settings_key, one.round) for one in run.records})
        total = len(run.cases) * (self._planned or 0)
        if done == total:
            problem = f"--resume: the run has all {counted(done, 'round')}"
            hint = "show it with 'iobench runs show'"
            raise InvalidSettings(problem, kind="nothing-to-resume", path=run.path, hint=hint)
        of_total = f" of {total}" if total else ""
        self._status(f"resuming {run.path} after {done}{of_total} rounds")

    def before_proofs(self, cases: int) -> None:
        """Report the least time that so many cases take, from the minimal length of a round."""
        if self._planned is not None:
            least = seconds_text(cases * self._planned * thresholds.ROUND_S)
            self._status(f"{self._rounds_of(cases)}, estimate: at least {least} plus verification")

    def before_round(self, number: int, state: RunState) -> None:
        """Report the time that the remaining rounds will take, before the first round and after it."""
        if self._planned is None:
            return
        if number == 1:
            each_s = {case.key: max(thresholds.ROUND_S, state.took_s(case)) for case in state.remaining}
            done_s = sum(each_s.get(key, 0.0) for key in self._resumed)
            expected_s = sum(each_s.values()) * self._planned - done_s
            line = f"{self._rounds_of(len(each_s))}, estimate after verification: {seconds_text(expected_s)}"
            late = f"; no round begins that would end after {seconds_text(self._max_time_s)}"
            self._status(line + late * (expected_s > self._max_time_s))
        elif number == 2 and not self._resumed:
            left_s = min(state.timed_s * (self._planned - 1), self._max_time_s - state.timed_s)
            if left_s > 0:
                self._status(f"after 1 of {self._planned} rounds: about {seconds_text(left_s)} left")

    def _rounds_of(self, cases: int) -> str:
        return f"{counted(cases, 'case')} × {counted(self._planned or 0, 'round')}"


SAME_SAMPLES = ("order", "batch_size", "block_bytes", "window_bytes", "seed", "model", "device", "world_size")


def loss_mismatches(run: Run, case: Case, made: Record) -> dict[str, WrongContent]:
    """Return an error, by case key, for each case whose loss differs from the majority's in this round.

    Without a majority all compared cases are wrong.
    """
    comparable = {one.key for one in run.cases if not one.loader.iterable_style}
    losses = {
        other.settings_key: repr(other.loss)
        for other in run.records
        if other.settings_key in comparable and other.round == made.round
        if other.loss is not None and _same_samples(other, made)
    }
    if made.loss is None or len(set(losses.values())) < 2:
        return {}
    (usual, votes), *_ = Counter(losses.values()).most_common(1)
    decided = 2 * votes > len(losses)
    return {
        key: WrongContent(
            f"loss in round {made.round} differs from other cases' on the same samples",
            kind="loss-mismatch",
            expected=" and ".join(sorted(set(losses.values()) - {loss})),
            found=loss,
        )
        for key, loss in losses.items()
        if not decided or loss != usual
    }


def _same_samples(one: Record, other: Record) -> bool:
    forms = [formats.parse(str(record.case["format"])) for record in (one, other)]
    # the decoded data of a lossy variant are its own
    variants = {None if form.lossless else form.variant for form in forms}
    return len(variants) == 1 and all(one.case.get(name) == other.case.get(name) for name in SAME_SAMPLES)


FATAL = (ColdCacheUnavailable, RecordError, RankLost)  # nothing can be measured after one of these


class RunLoop:
    """A run in progress: the turns of its policy, one after the other."""

    def __init__(
        self, run: Run, observer: Observer, policy: Policy, backend: RunBackend | None, budget: Budget
    ) -> None:
        self._run, self._observer, self._policy = run, observer, policy
        self._estimates = RoundEstimates(policy.planned, budget.seconds, observer.status)
        self._backend = backend or RunBackend()
        manifest = run.manifest
        run.notes += self._backend.begin(manifest, run.options, run.cases) if manifest else []
        self._recorder = Recorder(run, self._backend)
        lengths = RoundLengths(manifest.schema if manifest else None)
        self._state = RunState(run.cases, budget, lengths, run.labels, run.options.seed)
        if run.records:
            check_same(run.records, run.cases, self._recorder.machine)
            observer.resumed(run.records)
            self._estimates.resumed(run)
        for one in run.records:
            self._state.add(one.settings_key, one.round, one.samples_per_s)
        run.proofs = self._state.proofs
        self._check_interrupt: interrupts.Check = lambda: None
        self._wrong = set[str]()  # cases whose stored data or delivered samples were wrong
        self._checked = set[str]()  # variants whose stored data are known to be right, or were reread
        self._files: dict[str, ChangeDetector] = {}  # by variant, as they were first seen
        if manifest is not None:
            for case in {case.model: case for case in run.cases}.values():
                TrainingStep.of(case, manifest.schema)  # raises for a model that does not fit the data

    def all_turns(self) -> None:
        """Take every turn; Ctrl-C ends the run with what it has."""
        try:
            with (
                interrupts.deferred(once=self._backend.world_size == 1) as self._check_interrupt,
                closing(self._backend),
                self._recorder.watching(),
            ):
                self._estimates.before_proofs(len(self._run.cases))
                while (turn := self._next()) is not None:
                    self._state.begin(turn)
                    with self._collecting_errors(turn.case):
                        self._time(turn) if turn.round else self._verify(turn)
                    if not turn.round:
                        self._check_stored(turn.case, turn.limit_s)
                    self._state.gone |= self._run.failures.keys()
                note = self._policy.done(self._state)
                self._run.notes += [note] if note else []
        except KeyboardInterrupt:
            self._run.interrupted = True
        except FATAL as error:
            if not self._run.records:
                raise
            self._run.stopped = error  # the rounds made so far are worth showing
        finally:
            self._index_within(math.inf)

    def _next(self) -> NextTurn | None:
        """Drop the cases that the policy drops, and return its next turn, after announcing it."""
        state, labels, status = self._state, self._state.labels, self._observer.status
        dropped = self._policy.drop(state)
        for case in [case for case in state.remaining if case.key in dropped]:
            if dropped[case.key] == BEHIND:
                self._run.eliminated[case.key] = state.round
                self._end(case)
            else:
                self._skip(case, dropped[case.key])
        if BEHIND in dropped.values():
            status(f"after {counted(state.round, 'round')}: {counted(len(state.remaining), 'case')} left")
        turn = self._policy.next(state)
        if turn is None:
            return None
        if not turn.round:
            status(f"verifying {labels[turn.case.key]}")
        elif not state.round:
            self._recorder.probe_lower_cache()
        if turn.round > state.round and not state.unverified:
            self._estimates.before_round(turn.round, state)
        return turn

    @contextmanager
    def _collecting_errors(self, case: Case) -> Iterator[None]:
        """Note the error of one case and continue with the others; an error of FATAL ends the run."""
        manifest = None if case.loader.own_data else self._run.manifest
        try:
            with disk_errors(self._run.path_of(case)):
                yield
        except FATAL:
            raise
        except TookTooLong as late:
            self._skip(case, str(late))
        except IndexLate as late:
            self._skip(case, late.problem)
        except IobenchError as error:
            advised = error if manifest is None else manifest.location_of(case.variant).with_hint(error)
            self._run.failures[case.key] = advised
            if isinstance(error, WrongContent | CorruptArtifact):
                self._wrong.add(case.key)

    def _check_stored(self, case: Case, limit_s: float) -> None:
        """Reread the variant of a wrong case, if others read it, too; fail all of them if it is wrong.

        In the time there may be no more than a sample of its rows, or nothing that proves them wrong.
        """
        if case.key not in self._wrong or case.variant in self._checked:
            return
        self._checked.add(case.variant)
        same = [one.key for one in self._run.cases if one.variant == case.variant]
        if len(same) == 1 or self._run.manifest is None:
            return
        try:
            verify_in_time(self._run.manifest, case.variant, limit_s)
        except IobenchError as error:
            if error.kind != "no-hashes":
                self._run.failures |= dict.fromkeys(same, error)

    def _index_within(self, end: float) -> None:
        if self._run.manifest is not None:
            self._run.manifest.index_end = end

    def _end(self, case: Case) -> None:
        self._state.gone.add(case.key)
        self._backend.executor(case).end(case)

    def _skip(self, case: Case, reason: str) -> None:
        """Leave a case out for want of time."""
        self._run.skipped.append(case.key)
        self._end(case)
        label = str(self._state.labels[case.key])
        values: dict[str, float | int | str] = {"reason": "no-time", "case": label, "cause": reason}
        self._run.notes.append(Finding("skipped", f"skipped: {label}: {reason}", LONGER, values))

    def _verify(self, turn: NextTurn) -> None:
        """Verify a case and trace it, if asked; raises TookTooLong at the moment that the policy gave."""
        case, now = turn.case, self._state.budget.now
        before, progress = now(), self._observer.begins(case.key, 0)
        executor, warmup = self._backend.executor(case), self._run.options.warmup
        self._index_within(turn.index_end)

        def check() -> None:
            self._check_interrupt()
            if now() > turn.cancel_at:
                raise TookTooLong(UNVERIFIED)

        self._check_files(case)
        proof = turn.proof
        if proof is None:
            proof = executor.prove(case, warmup, Tick(check, progress), turn.limit_s)
            proof = replace(proof, took_s=(now() - before) / warmup)
            self._check_files(case)
        self._state.verified(case, proof)
        self._checked.add(case.variant)
        if self._run.options.trace:
            label = str(self._state.labels[case.key])
            path = history.traces_folder(self._run.path) / f"{history.file_name(label, kept='=')}.json"
            self._observer.status(f"tracing {label}")
            executor.trace(case, path)
            self._run.traces.append(path)

    def _time(self, turn: NextTurn) -> None:
        """Time a case in a round, and record it; the seconds in which limits are measured are not its own."""
        case, number, lengths, now = turn.case, turn.round, self._state.lengths, self._state.budget.now
        backend, executor = self._backend, self._backend.executor(case)
        if self._run.manifest is not None and not case.loader.own_data:
            self._run.manifest.opener(case.variant)  # raises if files are gone or have changed in size
        asked = now()
        if number >= self._policy.limits_from:
            backend.sample_limits()
        before = now()
        limit_s = turn.limit_s - lengths.batch_s(case) - (before - asked)  # the last batch comes after it
        headroom = self._recorder.measure_headroom(case, number)
        lengths.limit_s = turn.round_s
        batches = lengths.batches(case)
        executor.ready(case, Tick(self._check_interrupt), batches)
        cache = backend.establish(case, lengths.logical_bytes(case))
        tick = Tick(self._check_interrupt, self._observer.begins(case.key, number))
        measured = executor.measure(case, number, tick, batches, max(0.0, limit_s))
        self._check_files(case)
        record = self._recorder.record(case, number, joined(measured), cache, headroom)
        record_file.append(self._run.path, record)
        self._run.records.append(record)
        self._observer.recorded(case.key, record)
        self._state.timed(case, record, now() - before)
        if self._state.unverified and len(self._run.records) >= COMPARED:
            made, labels = self._run.records, self._state.labels
            figures = [f"{labels[one.settings_key]} {rate_text(one.samples_per_s)}" for one in made]
            self._observer.status(f"first figures: {'; '.join(figures)} samples/s")
        if not case.loader.iterable_style:
            self._run.failures |= loss_mismatches(self._run, case, record)

    def _check_files(self, case: Case) -> None:
        """Look at all files of a case's artifact; CorruptArtifact if one has changed since the first look."""
        if self._run.manifest is None or case.loader.own_data:
            return
        if case.variant in self._files:
            self._files[case.variant].check(every=True)
        else:
            self._files[case.variant] = ChangeDetector(self._run.manifest.files_of(case.variant))
