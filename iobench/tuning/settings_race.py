"""A race over settings of one loader in this process, and fresh rounds of those that it leaves."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from iobench.base.text import reason
from iobench.base.units import bytes_text, counted
from iobench.bench import round_plan
from iobench.bench.epoch import heap_restored
from iobench.bench.successive_halving import SuccessiveHalving
from iobench.host.process_tree import descendants
from iobench.loading.loaders.dataloader import unwarned
from iobench.results import stats
from iobench.results.parts import OthersPart
from iobench.tuning.candidate import Candidate
from iobench.tuning.tunable_loader import TunableLoader
from iobench.tuning.turn import TurnResult, TurnSpec, take

ROUNDS = 15  # of the finalists, where there is time
CUTS = 3  # rounds that an epoch must leave time for; a longer one is cut off
LEAST_S = 0.05  # of a turn
LATE = 2  # times as long as planned, that the fewest rounds there can be may take
UNSEEN = 0.3  # of an epoch, for its first batch
ODD = 0.02  # of an epoch's samples, from which on another number of them is another job


@dataclass(frozen=True)
class ResourceLimits:
    """What settings may cost: worker processes, and the memory of all processes together."""

    workers: int | None = None
    memory_bytes: int | None = None


Told = Callable[[Candidate, int, TurnResult, bool], None]


class SettingsRace:
    """Trials of one loader, which take turns.

    `wanted` says what is done with each batch and how many of them there are at most. `told` hears of each
    turn: the candidate, the number of its round, what it showed, whether that was after the race.
    """

    def __init__(
        self,
        own: TunableLoader,
        wanted: TurnSpec,
        limits: ResourceLimits | None = None,
        told: Told = lambda candidate, number, turn, fresh: None,
    ) -> None:
        self.own, self._wanted, self._limits, self._told = own, wanted, limits or ResourceLimits(), told
        self._living: dict[str, set[int]] = {}  # workers that persist, by candidate: no other candidate's memory
        self._samples: float | None = None  # of an epoch as it is, once one was whole
        self.others: list[OthersPart] = []
        self.turns: list[tuple[Candidate, float]] = []  # with the rate of each, one after the other

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """For as long as turns are taken; workers that persist end with it."""
        with heap_restored(), unwarned():
            try:
                yield
            finally:
                self.own.close()

    def look(self, candidate: Candidate, limit_s: float) -> TurnResult:
        """One turn before all rounds, which warms up; what its code raises passes through."""
        return self._take(candidate, limit_s)

    def race(self, candidates: Sequence[Candidate], seconds: float, seed: int = 0) -> None:
        """Rounds in which who is clearly behind drops out; each first turn in the order given.

        Who had no turn by then is left without rates, but for the first two: one turn of a loader may take
        all the time there is, and what is most likely to mend that comes second.
        """
        race, began = SuccessiveHalving(seconds), time.monotonic()
        limit_s = max(LEAST_S, seconds / CUTS / len(candidates))

        def goes_on(before: int) -> bool:
            live = {one.name: one for one in candidates if one.rates and not one.failed and one.dropped is None}
            lost, more = race.after_round(
                before + 1,
                time.monotonic() - began,
                {name: one.rates for name, one in live.items()},
                {name: one.took_s for name, one in live.items()},
            )
            for name in lost:
                live[name].dropped = before + 1
            return more and len(live) - len(lost) > 1

        first = ((1, candidate) for candidate in candidates)
        later = ((number + 1, candidate) for number, candidate in round_plan.interleaved(candidates, goes_on, seed))
        for number, candidate in itertools.chain(first, later):
            late = time.monotonic() - began > seconds
            most_likely = number == 1 and any(candidate is one for one in candidates[:2])
            if candidate.failed or candidate.dropped is not None or (late and not most_likely):
                continue
            self._turn(candidate, number, limit_s, fresh=False)

    def fresh(self, candidates: Sequence[Candidate], seconds: float, rounds: int = ROUNDS, seed: int = 1) -> None:
        """Interleaved rounds of whole epochs, all candidates in each; of parts of them, where time is short."""
        began = time.monotonic()
        whole_s = sum(max(statistics.median(one.epoch_s), one.took_s) for one in candidates if one.epoch_s)
        whole = CUTS * whole_s <= seconds and not any(one.unending for one in candidates)
        limit_s = None if whole else max(LEAST_S, seconds / stats.ENOUGH / len(candidates))

        def goes_on(done: int) -> bool:
            elapsed_s = time.monotonic() - began
            if done < stats.FEWEST:
                return elapsed_s <= LATE * seconds  # fewer would say nothing
            return done < rounds and elapsed_s * (done + 1) / done <= seconds

        for candidate in candidates if whole else ():
            if candidate.changes.get("persistent_workers"):
                self._start_workers(candidate)
        for number, candidate in round_plan.interleaved(candidates, goes_on, seed):
            if not candidate.failed:
                self._turn(candidate, number, limit_s, fresh=True)

    def _start_workers(self, candidate: Candidate) -> None:
        """Have workers that persist started: that is part of their first epoch, and of no later one."""
        try:
            self._take(candidate, None)
        except Exception as error:  # noqa: BLE001 - whatever somebody's loader does with these settings
            candidate.failed = reason(error)

    def _turn(self, candidate: Candidate, number: int, limit_s: float | None, fresh: bool) -> None:
        before = time.monotonic()
        try:
            turn = self._take(candidate, limit_s)
        except Exception as error:  # whatever somebody's loader does with these settings
            if not candidate.changes:
                raise
            candidate.failed = reason(error)
            return
        finally:
            candidate.took_s = time.monotonic() - before
        if (problem := self._unfit(candidate, turn)) is not None:
            if candidate.changes:
                candidate.failed = problem
                return
            candidate.unfit = problem
        (candidate.fresh if fresh else candidate.rates)[number] = turn.rate
        candidate.whole = turn.complete and (candidate.whole or len(candidate.fresh) < 2)  # of the race says nothing
        candidate.batches = turn.batches
        candidate.unending = candidate.unending or (not turn.complete and turn.of is None)
        candidate.epoch_s.append(turn.epoch_s)
        timing = turn.measured.timing
        candidate.first_batch_s.append(timing.first_batch_s)
        if fresh:
            candidate.waited.append(timing.wait_s / timing.epochs_s)
        self.turns.append((candidate, turn.rate))
        if turn.measured.others is not None:
            self.others.append(turn.measured.others)
        self._told(candidate, number, turn, fresh)

    def _take(self, candidate: Candidate, limit_s: float | None) -> TurnResult:
        make = candidate.make or (lambda: self.own.made(candidate.changes))
        others = set[int]().union(*(pids for name, pids in self._living.items() if name != candidate.name))
        before = set(descendants())
        turn = take(make, self.own.workers(candidate.changes), replace(self._wanted, limit_s=limit_s), others)
        self._living.setdefault(candidate.name, set()).update(set(descendants()) - before)
        if not turn.complete:
            self.own.close()  # or workers that persist would begin their next epoch in the middle of this
        candidate.memory_bytes = max(candidate.memory_bytes or 0, turn.measured.memory.peak_bytes or 0) or None
        if not candidate.changes and candidate.make is None:
            self._samples = turn.samples if turn.complete else None
        return turn

    def _unfit(self, candidate: Candidate, turn: TurnResult) -> str | None:
        """Why settings that work are none to be chosen."""
        most, expected = self._limits.memory_bytes, self._samples
        if candidate.make is not None:
            return None
        if most is not None and candidate.memory_bytes is not None and candidate.memory_bytes > most:
            return f"took {bytes_text(candidate.memory_bytes)} of memory, more than {bytes_text(most)}"
        if most is not None and candidate.memory_bytes is None:
            return "nobody can tell how much memory it takes"
        differs = expected is not None and turn.complete and abs(turn.samples / expected - 1) > ODD
        if differs:
            return (
                f"gives {counted(round(turn.samples), 'sample')} an epoch, not {expected:,.0f}: "
                "its workers do not share them out"
            )
        return None


def hidden_gain(base: Candidate, candidate: Candidate) -> bool:
    """Whether a race cannot have shown what a setting brings, which needs fresh rounds to be seen.

    Workers that persist start in their first turn like any, and again after each that was cut off.
    """
    started = base.first_batch_s and base.first_batch_s[0] > UNSEEN * base.epoch_s[0]
    return candidate.kind == "persistent" and bool(started and candidate.rates) and candidate.failed is None


def finalists(candidates: Sequence[Candidate], ordered: Sequence[Candidate], seconds: float) -> list[Candidate]:
    """The loader as it is, the first of `candidates`, and as many others as there is time for rounds of."""
    chosen = [candidates[0], *ordered[:1]]
    for one in ordered[1:]:
        if stats.ENOUGH * sum(candidate.took_s for candidate in [*chosen, one]) <= seconds:
            chosen.append(one)
    return chosen
