"""Race over settings of one loader in this process, and final rounds of its fastest candidates."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from iobench.base.finding import Finding
from iobench.base.text import reason
from iobench.base.units import bytes_text, counted
from iobench.bench.epoch import heap_restored
from iobench.bench.rounds import interleaved
from iobench.bench.strategies import SuccessiveHalving
from iobench.host.process_counters import descendants
from iobench.loading.loaders.dataloader import unwarned
from iobench.results import stats
from iobench.results.parts import BackgroundPart
from iobench.tuning.candidate import Candidate
from iobench.tuning.tunable_loader import TunableLoader
from iobench.tuning.turn import TurnResult, TurnSpec, run_turn

ROUNDS = 15  # of the finalists, if time allows
CUTS = 3  # rounds that must fit in the time for an epoch to be measured whole
MIN_TURN_S = 0.05
LATE = 2  # times the planned time, that the smallest possible number of rounds may take
HIDDEN_START = 0.3  # of an epoch, for its first batch
DIFFERENT_SAMPLES = 0.02  # of an epoch's samples; a larger difference means other work


@dataclass(frozen=True)
class ResourceLimits:
    """Limits on settings: worker processes, and bytes of memory of all processes together."""

    workers: int | None = None
    memory_bytes: int | None = None


TurnCallback = Callable[[Candidate, int, TurnResult, bool], None]


class SettingsRace:
    """Interleaved turns of one loader's candidates: a race, then final rounds.

    Parameters
    ----------
    loader : TunableLoader
        The loader whose settings are raced.
    spec : TurnSpec
        Use of each batch, and the most batches of a turn.
    limits : ResourceLimits, optional
        Limits that a candidate must not exceed.
    on_turn : callable
        Is given each turn's candidate, round number and result, and True in the final rounds.
    """

    def __init__(
        self,
        loader: TunableLoader,
        spec: TurnSpec,
        limits: ResourceLimits | None = None,
        on_turn: TurnCallback = lambda candidate, number, turn, final: None,
    ) -> None:
        self.loader, self._spec, self._limits, self._on_turn = (
            loader,
            spec,
            limits or ResourceLimits(),
            on_turn,
        )
        # persistent workers by candidate: their memory is not that of other candidates
        self._persistent: dict[str, set[int]] = {}
        self._samples: float | None = None  # of a whole baseline epoch, once there was one
        self.background: list[BackgroundPart] = []
        self.turns: list[tuple[Candidate, float]] = []  # with the rate of each, in order of time

    @contextmanager
    def active(self) -> Iterator[None]:
        """Context of all turns; persistent workers end with it."""
        with heap_restored(), unwarned():
            try:
                yield
            finally:
                self.loader.close()

    def warm_up(self, candidate: Candidate, limit_s: float) -> TurnResult:
        """Run one turn before all rounds; errors of the loader pass through."""
        return self._take(candidate, limit_s)

    def race(self, candidates: Sequence[Candidate], seconds: float, seed: int = 0) -> None:
        """Run rounds and eliminate candidates that are clearly slower; the first round keeps the order given.

        After `seconds` the first round ends, except for its first two candidates: one turn of a slow
        loader may take all the time, and the second candidate is the most promising change.
        """
        halving, began = SuccessiveHalving(seconds), time.monotonic()
        limit_s = max(MIN_TURN_S, seconds / CUTS / len(candidates))

        def continues(before: int) -> bool:
            live = {
                one.name: one
                for one in candidates
                if one.rates and one.failure is None and one.eliminated is None
            }
            eliminated, more = halving.after_round(
                before + 1,
                time.monotonic() - began,
                {name: one.rates for name, one in live.items()},
                {name: one.turn_s for name, one in live.items()},
            )
            for name in eliminated:
                live[name].eliminated = before + 1
            return more and len(live) - len(eliminated) > 1

        first = ((1, candidate) for candidate in candidates)
        later = ((number + 1, candidate) for number, candidate in interleaved(candidates, continues, seed))
        for number, candidate in itertools.chain(first, later):
            late = time.monotonic() - began > seconds
            promising = number == 1 and any(candidate is one for one in candidates[:2])
            if candidate.failure or candidate.eliminated is not None or (late and not promising):
                continue
            self._turn(candidate, number, limit_s, final=False)

    def final_rounds(
        self, candidates: Sequence[Candidate], seconds: float, rounds: int = ROUNDS, seed: int = 1
    ) -> None:
        """Run interleaved rounds of whole epochs, or of parts of them if time is short."""
        began = time.monotonic()
        whole_s = sum(max(statistics.median(one.epoch_s), one.turn_s) for one in candidates if one.epoch_s)
        whole = CUTS * whole_s <= seconds and not any(one.endless for one in candidates)
        limit_s = None if whole else max(MIN_TURN_S, seconds / stats.ENOUGH_ROUNDS / len(candidates))

        def continues(done: int) -> bool:
            elapsed_s = time.monotonic() - began
            if done < stats.MIN_ROUNDS:
                return elapsed_s <= LATE * seconds  # with fewer rounds there is no interval
            return done < rounds and elapsed_s * (done + 1) / done <= seconds

        for candidate in candidates if whole else ():
            if candidate.changes.get("persistent_workers"):
                self._start_workers(candidate)
        for number, candidate in interleaved(candidates, continues, seed):
            if not candidate.failure:
                self._turn(candidate, number, limit_s, final=True)

    def _start_workers(self, candidate: Candidate) -> None:
        """Start persistent workers: starting is part of their first epoch and of no later one."""
        try:
            self._take(candidate, None)
        except Exception as error:  # noqa: BLE001 - a user's loader may raise anything with these settings
            candidate.failure = _raised(error)

    def _turn(self, candidate: Candidate, number: int, limit_s: float | None, final: bool) -> None:
        before = time.monotonic()
        try:
            turn = self._take(candidate, limit_s)
        except Exception as error:  # a user's loader may raise anything with these settings
            if not candidate.changes:
                raise
            candidate.failure = _raised(error)
            return
        finally:
            candidate.turn_s = time.monotonic() - before
        if (problem := self._violation(candidate, turn)) is not None:
            if candidate.changes:
                candidate.failure = problem
                return
            candidate.over_limit = problem
        (candidate.final_rates if final else candidate.rates)[number] = turn.rate
        # a cut turn of the race does not matter to the final rounds
        candidate.whole_epochs = turn.complete and (candidate.whole_epochs or len(candidate.final_rates) < 2)
        candidate.batches = turn.batches
        candidate.endless = candidate.endless or (not turn.complete and turn.epoch_batches is None)
        candidate.epoch_s.append(turn.epoch_s)
        timing = turn.measured.timing
        candidate.first_batch_s.append(timing.first_batch_s)
        if final:
            candidate.wait_shares.append(timing.wait_s / timing.epochs_s)
        self.turns.append((candidate, turn.rate))
        if turn.measured.background is not None:
            self.background.append(turn.measured.background)
        self._on_turn(candidate, number, turn, final)

    def _take(self, candidate: Candidate, limit_s: float | None) -> TurnResult:
        make = candidate.make or (lambda: self.loader.with_changes(candidate.changes))
        others = set[int]().union(
            *(pids for name, pids in self._persistent.items() if name != candidate.name)
        )
        before = set(descendants())
        spec = replace(self._spec, limit_s=limit_s)
        turn = run_turn(make, self.loader.workers(candidate.changes), spec, others)
        self._persistent.setdefault(candidate.name, set()).update(set(descendants()) - before)
        if not turn.complete:
            self.loader.close()  # else persistent workers would start their next epoch inside this one
        candidate.memory_bytes = (
            max(candidate.memory_bytes or 0, turn.measured.memory.peak_bytes or 0) or None
        )
        if not candidate.changes and candidate.make is None:
            self._samples = turn.samples if turn.complete else None
        return turn

    def _violation(self, candidate: Candidate, turn: TurnResult) -> Finding | None:
        """Return why settings that work cannot be chosen; None if they can."""
        limit, expected = self._limits.memory_bytes, self._samples
        if candidate.make is not None:
            return None
        if limit is not None and candidate.memory_bytes is None:
            return Finding("memory-unknown", "its memory use is unknown")
        if limit is not None and candidate.memory_bytes is not None and candidate.memory_bytes > limit:
            return Finding(
                "memory-limit",
                f"used {bytes_text(candidate.memory_bytes)} of memory, more than {bytes_text(limit)}",
                values={"memory_bytes": candidate.memory_bytes, "limit_bytes": limit},
            )
        if expected is not None and turn.complete and abs(turn.samples / expected - 1) > DIFFERENT_SAMPLES:
            return Finding(
                "samples-not-sharded",
                f"yields {counted(round(turn.samples), 'sample')} an epoch, not {expected:,.0f}: "
                "its dataset does not shard them over the workers",
                values={"samples": turn.samples, "expected": expected},
            )
        return None


def hidden_gain(baseline: Candidate, candidate: Candidate) -> bool:
    """Return True if a race cannot show the gain of a setting, so that it needs final rounds.

    Persistent workers start in their first turn, as any workers do, and again after each cut turn.
    """
    slow_start = baseline.first_batch_s and baseline.first_batch_s[0] > HIDDEN_START * baseline.epoch_s[0]
    return candidate.kind == "persistent" and bool(slow_start and candidate.rates) and not candidate.failure


def finalists(
    candidates: Sequence[Candidate], ordered: Sequence[Candidate], seconds: float
) -> list[Candidate]:
    """Return the baseline, the first of `candidates`, and as many of `ordered` as have time for rounds."""
    chosen = [candidates[0], *ordered[:1]]
    for one in ordered[1:]:
        if stats.ENOUGH_ROUNDS * sum(candidate.turn_s for candidate in [*chosen, one]) <= seconds:
            chosen.append(one)
    return chosen


def _raised(error: Exception) -> Finding:
    return Finding("raised", reason(error), values={"error": type(error).__name__, "reason": reason(error)})
