"""Policies of a run: which turn is next, which cases are dropped, and how the rounds ended.

A policy belongs to one run, whose budget holds all moments and seconds. A rule ends the rounds of a run by
their figures: after a number of rounds, when figures are precise, or when a decision is made.
"""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeVar

import numpy as np

from iobench.base import thresholds
from iobench.base.errors import InvalidSettings
from iobench.base.finding import Finding
from iobench.base.units import counted, seconds_text
from iobench.bench.budget import Budget
from iobench.bench.case import Case
from iobench.bench.part import PROOF_ROUNDS, Proof, RoundLengths
from iobench.results import stats
from iobench.results.cases import Label
from iobench.results.record import Record
from iobench.results.run_warning import LONGER, Values
from iobench.results.stats import Verdict, median_rates, verdict_on

T = TypeVar("T")
Rates = Mapping[str, Mapping[int, float]]  # samples/s of each remaining case, by its key and by round

AUTO, DECISIVE = "auto", "decisive"
MAX_TIME_S = 300.0  # of rounds until figures are precise or decided
DEFAULT_ROUNDS = 15  # enough for a verdict over a dozen cases to survive one outlier
PRECISION = 0.02  # half-width of an interval relative to its median at which no more rounds are needed
SURELY = 2.0  # times slower, at least, from which on a case has lost before there are rounds enough
SCREENING = 3  # rounds of all cases before decisive rounds leave some out


class StoppingRule(ABC):
    """Decisions of a run that its figures make, after each round."""

    planned: int | None = None  # rounds; None where it depends on the figures

    @abstractmethod
    def enough(self, rates: Rates, done: int) -> bool:
        """Return whether the rounds done are enough."""

    def behind(self, rates: Rates) -> list[str]:
        """Return the cases to eliminate."""
        return []

    @abstractmethod
    def note(self, rates: Rates, done: int, elapsed_s: float, labels: Mapping[str, Label]) -> Finding | None:
        """Return what a user should know about how the rounds ended."""


class FixedRounds(StoppingRule):
    """A number of rounds of every case."""

    planned: int

    def __init__(self, rounds: int = DEFAULT_ROUNDS) -> None:
        self.planned = rounds

    def enough(self, rates: Rates, done: int) -> bool:
        """Return whether the rounds done are enough."""
        return done >= self.planned

    def note(self, rates: Rates, done: int, elapsed_s: float, labels: Mapping[str, Label]) -> Finding | None:
        """Return that the time ended the rounds (`max-time-reached`)."""
        if done >= self.planned:
            return None
        message = f"--max-time ended the run after {done} of {self.planned} rounds"
        values: Values = {"rounds": done, "elapsed_s": elapsed_s, "planned": self.planned}
        return Finding("max-time-reached", message, values=values)


class UntilPrecise(StoppingRule):
    """Rounds until each case's interval lies within ±2 % of its median, at least ten if there is time."""

    def enough(self, rates: Rates, done: int) -> bool:
        """Return whether the rounds done are enough."""
        return done >= stats.PAIRED_ROUNDS and worst(rates)[1] <= PRECISION

    def note(self, rates: Rates, done: int, elapsed_s: float, labels: Mapping[str, Label]) -> Finding:
        """Return how precise the figures are: `auto-few-rounds`, `auto-imprecise` or `auto-precise`."""
        values: Values = {"rounds": done, "elapsed_s": elapsed_s}
        key, reach = worst(rates)
        line = f"{counted(done, 'round')} in {elapsed_s:.0f} s"
        if done < stats.MIN_ROUNDS:
            return Finding("auto-few-rounds", f"{line}, too few for an interval", LONGER, values)
        values["precision"] = reach
        if reach > PRECISION:
            line += f", ended by --max-time: the interval of {labels[key]} is ±{reach:.1%} of its median"
            return Finding("auto-imprecise", line, LONGER, {**values, "case": key})
        return Finding("auto-precise", f"{line}: every interval is within ±{PRECISION:.0%}", values=values)


class UntilDecided(StoppingRule):
    """Three rounds of all cases, then only of those that may be the fastest of their context.

    They end when each context has a winner, or a tie: intervals within the minimum difference. `contexts`
    holds the context of each case, by key.
    """

    def __init__(self, contexts: Mapping[str, str]) -> None:
        self._contexts = contexts

    def enough(self, rates: Rates, done: int) -> bool:
        """Return whether the rounds done are enough."""
        return done >= SCREENING and not self._undecided(rates)

    def behind(self, rates: Rates) -> list[str]:
        """Return the cases that are no leaders of their context; of few rounds, those surely far behind."""
        return [
            key
            for one in self._verdicts(rates)
            for key, least in one.at_least.items()
            if least >= (1 if len(rates[key]) >= stats.ENOUGH_ROUNDS else SURELY)
            and len(rates[key]) >= SCREENING
        ]

    def note(self, rates: Rates, done: int, elapsed_s: float, labels: Mapping[str, Label]) -> Finding | None:
        """Return that the time ended the rounds before a decision (`max-time-reached`)."""
        if not (undecided := self._undecided(rates)):
            return None
        message = f"--max-time ended the run after {counted(done, 'round')}, before every contest was decided"
        values: Values = {"rounds": done, "elapsed_s": elapsed_s, "undecided": undecided}
        return Finding("max-time-reached", message, LONGER, values)

    def _verdicts(self, rates: Rates) -> list[Verdict]:
        groups: dict[str, dict[str, Mapping[int, float]]] = {}
        for key, by_round in rates.items():
            if by_round:
                groups.setdefault(self._contexts.get(key, ""), {})[key] = by_round
        return [verdict_on(group) for group in groups.values()]

    def _undecided(self, rates: Rates) -> int:
        """Return the number of contexts with several leaders that may differ."""
        return sum(one.outcome in ("level", "few-rounds") for one in self._verdicts(rates))


def rule_of(rounds: int | str, contexts: Mapping[str, str] | None = None) -> StoppingRule:
    """Return the rule for a number of rounds, `auto` or `decisive`; InvalidSettings for anything else.

    `contexts` holds the context of each case, by key.
    """
    if rounds == AUTO:
        return UntilPrecise()
    if rounds == DECISIVE:
        return UntilDecided(contexts or {})
    try:
        count = int(rounds)
    except ValueError:
        raise InvalidSettings(
            "--rounds", kind="not-a-number", expected=f"a number, {AUTO} or {DECISIVE}", found=repr(rounds)
        ) from None
    if count < 1:
        raise InvalidSettings("--rounds", kind="out-of-range", expected="at least 1", found=count)
    return FixedRounds(count)


def worst(rates: Rates) -> tuple[str, float]:
    """Return the key of the case with the widest relative interval, and its half-width; 0 without cases."""
    reaches = {key: stats.estimate([*rounds.values()]).precision for key, rounds in rates.items() if rounds}
    known = {key: reach for key, reach in reaches.items() if reach is not None}
    return max(known.items(), key=lambda item: item[1], default=("", 0.0))


UNLIMITED = 10_000  # rounds: the time ends first
COMPARED = 2  # cases measured whatever the time: a comparison needs two
PROOFS = 0.3  # of the whole time, for verification; after twice that nothing more is verified
ROUNDS_SHARE = 0.8  # of the time for rounds that these themselves take: opening and the cache take the rest
SLOW = 2  # times its equal share of the time, that the rounds of a case may take
# Speed ratio of the fastest case to another at which the other is eliminated, by rounds made, while there
# are too few rounds for an interval: figures of one round scatter by a factor of two on busy machines.
FACTORS = {1: 3.0, 2: 2.0, 3: 1.5, 4: 1.5}
PROOF_SHARE = 0.3  # of a race's time for rounds that a late verification may use
MIN_PROOF_S = 0.5  # of a race, so that small data are verified as a whole
RACE_ROUNDS = 4  # of all cases, that a race has time for
UNVERIFIED = "--max-time left no time to verify it"
BEHIND = ""  # reason to drop a case that is clearly slower


@dataclass(frozen=True)
class NextTurn:
    """The verification of a case, which is its round 0, or one of its timed rounds."""

    case: Case
    round: int
    limit_s: float = math.inf  # after which a verification ends with a part, and a round is cut
    round_s: float = math.inf  # length of a round, beyond which it is a part of an epoch
    cancel_at: float = math.inf  # moment at which a verification is cancelled
    index_end: float = math.inf  # moment at which building an index for it ends
    proof: Proof | None = None  # of an earlier run, which takes the place of the verification


def orders(items: Sequence[T], seed: int = 0) -> Iterator[list[T]]:
    """Yield the items in the order of each round.

    Each round has its own, drawn by PCG64 from the seed, because the predecessor of a case affects it
    (memory that one case has freed is quick to allocate for the next).
    """
    shuffle = np.random.Generator(np.random.PCG64(seed))
    while True:
        yield [items[index] for index in shuffle.permutation(len(items))]


def interleaved(items: Sequence[T], more: Callable[[int], bool], seed: int = 0) -> Iterator[tuple[int, T]]:
    """Yield (round number from 1, item) for all items in turn, while `more(done)` is true."""
    for done, order in enumerate(orders(items, seed)):
        if not more(done):
            return
        for item in order:
            yield done + 1, item


class RunState:
    """State of a run, by which a policy decides. All mappings are by the key of a case."""

    def __init__(
        self,
        cases: Sequence[Case],
        budget: Budget,
        lengths: RoundLengths,
        labels: Mapping[str, Label],
        seed: int = 0,
    ) -> None:
        self.cases, self.budget, self.lengths, self.labels = cases, budget, lengths, labels
        self.proofs: dict[str, Proof] = {}  # of the cases that were verified
        self.rounds_s: dict[str, list[float]] = {}  # seconds of each round
        self.turns = set[tuple[str, int]]()  # key and round of each turn that was had, also if it failed
        self.gone = set[str]()  # cases that failed or were dropped
        self.round = 0  # that began last
        self.rounds_began: float | None = None  # moment, once all cases were verified
        self._rates: dict[str, dict[int, float]] = {}
        draw = orders(cases, seed)
        self.order = cache(lambda number: next(draw))  # of a round, each asked for in turn

    def add(self, key: str, number: int, rate: float) -> None:
        """Add a round that was measured, in samples/s."""
        self.turns.add((key, number))
        self._rates.setdefault(key, {})[number] = rate

    def begin(self, turn: NextTurn) -> None:
        """Note that a turn begins."""
        if turn.round and not self.unverified and self.rounds_began is None:
            self.rounds_began = self.budget.now()
        self.turns.add((turn.case.key, turn.round))
        self.round = max(self.round, turn.round)

    def verified(self, case: Case, proof: Proof) -> None:
        """Note the result of a verification."""
        self.proofs[case.key] = proof
        self.lengths.proved(case, proof)

    def timed(self, case: Case, record: Record, seconds: float) -> None:
        """Note a round, and the seconds that it took."""
        self.add(case.key, record.round, record.samples_per_s)
        self.rounds_s.setdefault(case.key, []).append(seconds)
        self.lengths.measured(case, record)

    @property
    def remaining(self) -> list[Case]:
        """Cases that neither failed nor were dropped."""
        return [case for case in self.cases if case.key not in self.gone]

    @property
    def unverified(self) -> list[Case]:
        """Remaining cases that were not verified yet."""
        return [case for case in self.remaining if (case.key, 0) not in self.turns]

    @property
    def rates(self) -> Rates:
        """Samples/s of the remaining cases by round."""
        return {case.key: self._rates.get(case.key, {}) for case in self.remaining}

    @property
    def rounds(self) -> int:
        """Number of rounds of all cases that were measured and remain."""
        return sum(map(len, self.rates.values()))

    @property
    def timed_s(self) -> float:
        """Seconds since the rounds began."""
        return 0.0 if self.rounds_began is None else self.budget.now() - self.rounds_began

    @property
    def used_s(self) -> float:
        """Seconds of all rounds."""
        return sum(map(sum, self.rounds_s.values()))

    def took_s(self, case: Case) -> float:
        """Return the seconds of the case's latest turn; 0 before the first."""
        if rounds_s := self.rounds_s.get(case.key):
            return rounds_s[-1]
        proof = self.proofs.get(case.key)
        return proof.took_s if proof else 0.0

    def next_s(self, case: Case, number: int) -> float:
        """Return about how long the case's round of this number takes."""
        return self.lengths.round_s(case) if number == 1 else self.took_s(case)

    def waits(self, case: Case, number: int) -> bool:
        """Return whether a case has still to have its turn in a round."""
        return case.key not in self.gone and (case.key, number) not in self.turns


class Policy(ABC):
    """Decisions of a run."""

    limits_from = 1  # first round before which hardware limits are measured
    planned: int | None = None  # rounds; None where it depends on the figures

    @abstractmethod
    def next(self, state: RunState) -> NextTurn | None:
        """Return the next turn; None at the end."""

    @abstractmethod
    def drop(self, state: RunState) -> dict[str, str]:
        """Return the cases that have no further turn, and why: for want of time, or BEHIND."""

    def done(self, state: RunState) -> Finding | None:
        """Return the reason that ended the rounds; None if it is not worth a note, as of a search."""
        return None


class TimedPolicy(Policy):
    """Policy of rounds in which each case has a turn, as long as there is time."""

    @abstractmethod
    def _fits(self, state: RunState, case: Case, number: int) -> bool:
        """Return whether there is time for a round of a case."""

    @abstractmethod
    def _more(self, state: RunState, done: int) -> bool:
        """Return whether another round follows."""

    def _first(self, state: RunState, case: Case) -> Any:
        """Return the sort key of a case in the first round."""
        return 0

    def _upcoming(self, state: RunState) -> tuple[Case, int] | None:
        """Return the case whose round is next, and its number; None if no round follows."""
        number = max(1, state.round)
        while True:
            order = state.order(number)
            for case in sorted(order, key=partial(self._first, state)) if number == 1 else order:
                if state.waits(case, number) and self._fits(state, case, number):
                    return case, number
            if not self._more(state, number):
                return None
            number += 1

    def _late(self, state: RunState) -> dict[str, str]:
        """Return the cases without time for their first round, and how long one of each takes."""
        waiting = [case for case in state.remaining if state.round <= 1 and state.waits(case, 1)]
        late = {case.key: state.next_s(case, 1) for case in waiting if not self._fits(state, case, 1)}
        return {key: f"a round of it takes about {seconds_text(seconds)}" for key, seconds in late.items()}

    def _round_ended(self, state: RunState) -> bool:
        """Return whether all cases have had their turn in a round."""
        number, cases = state.round, state.remaining
        waiting = any(state.waits(case, number) and self._fits(state, case, number) for case in cases)
        return number > 0 and not waiting and any(state.rates.values())


class EqualShares(TimedPolicy):
    """Policy of a run: equal shares of the time for its cases, until a rule has enough rounds.

    Verification has 30 % of the time, and ends after twice that. Rounds and verifications are cut to parts of
    an epoch where whole ones would take longer than their share.
    """

    def __init__(self, rule: StoppingRule) -> None:
        self._rule, self.planned = rule, rule.planned
        self._round_s: float | None = None

    def next(self, state: RunState) -> NextTurn | None:
        """Return the next turn; no round begins that would end after the deadline."""
        budget = state.budget
        if state.unverified:
            share_s = max(0.0, PROOFS * budget.seconds - budget.elapsed()) / len(state.unverified)
            cancel_at = budget.began + 2 * PROOFS * budget.seconds if state.proofs else math.inf
            case = state.unverified[0]
            return NextTurn(case, 0, _proof_s(case, share_s), cancel_at=cancel_at, index_end=budget.end)
        if self._round_s is None:
            self._round_s = _equal_s(budget, self.planned or stats.PAIRED_ROUNDS, state.remaining)
        upcoming = self._upcoming(state)
        limit_s = math.inf if state.rounds else budget.left()  # without one round there is no answer
        return None if upcoming is None else NextTurn(*upcoming, limit_s, self._round_s)

    def drop(self, state: RunState) -> dict[str, str]:
        """Return the cases that there is no time to verify or to time even once, or that are behind."""
        if not state.unverified:
            ended = self._round_ended(state)
            behind = self._rule.behind(state.rates) if ended else []
            return {**dict.fromkeys(behind, BEHIND), **self._late(state)}
        most = 2 * PROOFS if len(state.proofs) >= COMPARED else 1.0
        late = state.budget.elapsed() > most * state.budget.seconds
        if not late or state.unverified[0] is state.cases[0]:
            return {}
        return {case.key: UNVERIFIED for case in state.unverified}

    def done(self, state: RunState) -> Finding | None:
        """Return how the rounds ended."""
        # no case may have had the time for its turn in the round that began last
        made = max((number for by_round in state.rates.values() for number in by_round), default=0)
        return self._rule.note(state.rates, made, state.timed_s, state.labels) if made else None

    def _more(self, state: RunState, done: int) -> bool:
        ready = [case for case in state.remaining if not self._is_slow(state, case, done + 1)]
        next_s = sum(state.next_s(case, done + 1) for case in ready)
        in_time = bool(ready) and next_s <= state.budget.left()
        return in_time and not self._rule.enough(state.rates, done)

    def _fits(self, state: RunState, case: Case, number: int) -> bool:
        """Return whether a round ends before the deadline; the first one is cut instead."""
        late = state.next_s(case, number) > state.budget.left()
        return not state.rounds or not (late or self._is_slow(state, case, number))

    def _is_slow(self, state: RunState, case: Case, number: int) -> bool:
        """Return whether a round of a case exceeds twice its equal share of the time."""
        cases, used_s = len(state.remaining), sum(state.rounds_s.get(case.key, ()))
        most_s = SLOW * state.budget.seconds / max(1, cases)
        return cases > COMPARED and used_s + state.next_s(case, number) > most_s


class SuccessiveHalving(TimedPolicy):
    """Successive halving (Jamieson and Talwalkar 2016) that eliminates only significantly slower cases.

    After each round, cases of the slower half that are clearly behind are eliminated; from ten rounds on,
    every case that is clearly behind. Verification has `proofs_s`, then only two cases are verified until the
    deadline. The first `opening` cases are timed as soon as they are verified, so that Ctrl-C has an answer.
    The rounds have `race_s`; then the first one, in which quickly verified cases come first, starts no more
    cases, except for two, and no later one begins. An `ordered` first round keeps the order of the cases.
    """

    def __init__(
        self,
        race_s: float,
        rounds: int = 31,
        proofs_s: float = math.inf,
        opening: int = COMPARED,
        ordered: bool = False,
    ) -> None:
        self._race_s, self._rounds, self._proofs_s = race_s, rounds, proofs_s
        self._opening, self._ordered = opening, ordered
        self._race: Budget | None = None  # of the rounds, once all cases were verified
        self._round_s = 0.0

    def next(self, state: RunState) -> NextTurn | None:
        """Return the next turn."""
        if self._race is None:
            if (case := self._opened(state)) is not None:
                return self._timed(state, case, 1)
            if state.unverified:
                return self._verification(state)
            self._begin(state)
        upcoming = self._upcoming(state)
        return None if upcoming is None else self._timed(state, *upcoming)

    def drop(self, state: RunState) -> dict[str, str]:
        """Return the cases that there is no time for, or that are clearly behind after a round."""
        if state.unverified and not self._verifies(state):
            return {case.key: UNVERIFIED for case in state.unverified}
        opened = {one.key for one in [self._opened(state)] if one}
        late = {
            key: reason
            for key, reason in self._late(state).items()
            if self._race is not None or key in opened
        }
        ended = not state.unverified and self._round_ended(state)
        behind = self.behind(state.rates) if ended else []
        return {**late, **dict.fromkeys(behind, BEHIND)}

    def behind(self, rates: Rates) -> list[str]:
        """Return the cases that are clearly behind the fastest."""
        fastest, *others = median_rates(rates)
        lost = [key for key in others if _lost(rates[fastest], rates[key], len(others))]
        if len(rates[fastest]) >= stats.PAIRED_ROUNDS:
            return lost
        slower = others[len(others) // 2 :]
        return [key for key in lost if key in slower]

    def _begin(self, state: RunState) -> None:
        """Begin the rounds: a late verification takes their time, a slow opening at most half of it."""
        most_s = math.inf if self._ordered else self._race_s / COMPARED
        opened_s = min(state.used_s, most_s)
        late_s = max(0.0, self._spent_s(state) - self._proofs_s)
        self._race = state.budget.sub(self._race_s - late_s - opened_s)
        self._round_s = self._share_s(state.remaining)

    def _share_s(self, cases: Sequence[Case]) -> float:
        """Return an equal share of the time for rounds, for each of the first rounds of each case."""
        return max(thresholds.ROUND_S, self._race_s / (RACE_ROUNDS * max(1, len(cases))))

    def _race_left_s(self, state: RunState) -> float:
        """Return the seconds that are left for rounds; those of the opening are also its own."""
        if self._race is not None:
            return self._race.left()
        return max(0.0, self._race_s - state.used_s)

    def _spent_s(self, state: RunState) -> float:
        """Return the seconds of the verification so far.

        Not counted are the opening, and a slow default beyond half of `proofs_s`, at most so many again.
        """
        first_s = next((proof.took_s for proof in state.proofs.values()), 0.0)
        excess_s = min(self._proofs_s, max(0.0, first_s - self._proofs_s / COMPARED))
        return state.budget.elapsed() - state.used_s - excess_s

    def _verifies(self, state: RunState) -> bool:
        if len(state.proofs) >= COMPARED:
            return self._spent_s(state) <= self._proofs_s
        return not state.budget.over or state.unverified[0] is state.cases[0]

    def _verification(self, state: RunState) -> NextTurn:
        case, spent_s, budget = state.unverified[0], self._spent_s(state), state.budget
        left_s = self._proofs_s + PROOF_SHARE * self._race_s - spent_s
        share_s = max(MIN_PROOF_S, (self._proofs_s - spent_s) / len(state.unverified))
        cancel_at = budget.now() + left_s if len(state.proofs) >= COMPARED else budget.end
        index_end = budget.began + self._race_s
        return NextTurn(case, 0, _proof_s(case, share_s), cancel_at=cancel_at, index_end=index_end)

    def _opened(self, state: RunState) -> Case | None:
        """Return the next case of the opening, once enough cases were verified."""
        if not 0 < self._opening <= len(state.proofs):
            return None
        opening = [*state.proofs][: self._opening]
        return next((case for case in state.remaining if case.key in opening and state.waits(case, 1)), None)

    def _timed(self, state: RunState, case: Case, number: int) -> NextTurn:
        """Return a round, which is cut off after the time that is left, but has a fourth of all at least.

        The very first one has half of the time that is left.
        """
        left_s = self._race_left_s(state) / (1 if state.rounds else COMPARED)
        round_s = self._round_s if self._race is not None else self._share_s(state.cases)
        return NextTurn(case, number, max(self._race_s / RACE_ROUNDS, left_s), round_s)

    def _first(self, state: RunState, case: Case) -> Any:
        """Put the reference case first, then quick cases."""
        position = state.cases.index(case)
        return position if self._ordered else (position > 0, state.took_s(case))

    def _fits(self, state: RunState, case: Case, number: int) -> bool:
        late = number == 1 and state.rounds >= COMPARED and not self._race_left_s(state)
        return not state.rounds or not (late or state.budget.over)

    def _more(self, state: RunState, done: int) -> bool:
        """Return whether another round follows; a case that is left alone needs none."""
        ended = done >= self._rounds or UntilPrecise().enough(state.rates, done)
        if len(state.remaining) < COMPARED or ended:
            return False
        return sum(state.next_s(case, done + 1) for case in state.remaining) <= self._race_left_s(state)


class FinalRounds(TimedPolicy):
    """Fresh rounds of the cases that remain of a search, without elimination, in `rounds_budget`.

    Verification counts as time for rounds. Cases come in order of importance. The first is always measured
    once, the second if it can begin before the run's deadline, further ones only if enough time is left for
    the rounds of those before them. `at_least` so many rounds may take all of the run's time: of one nothing
    can be concluded. A case is not verified again if that took longer in the race than the time for it
    (`proofs`, by key): one batch of a slow case may be most of the time.
    """

    limits_from = 2  # a comparison comes first: on a busy machine limits take seconds

    def __init__(
        self,
        rounds_budget: Budget,
        rounds: int = UNLIMITED,
        at_least: int = 2,
        proofs: Mapping[str, Proof] | None = None,
    ) -> None:
        self._budget, self._rounds, self._at_least = rounds_budget, rounds, min(at_least, rounds)
        self._proofs = proofs or {}
        self._round_s: float | None = None

    def next(self, state: RunState) -> NextTurn | None:
        """Return the next turn."""
        if state.unverified:
            return self._verification(state)
        if self._round_s is None:
            self._round_s = _equal_s(self._budget, stats.PAIRED_ROUNDS, state.remaining)
        upcoming = self._upcoming(state)
        # one long round says more than two that are mostly a start
        return None if upcoming is None else NextTurn(*upcoming, state.budget.left(), self._round_s)

    def drop(self, state: RunState) -> dict[str, str]:
        """Return the cases that there is no time for."""
        if state.unverified:
            verifies = self._verifies(state)
            return {} if verifies else {case.key: UNVERIFIED for case in state.unverified}
        return self._late(state)

    def _verifies(self, state: RunState) -> bool:
        """Return whether there is time for another case, assuming that a round takes as long as a proof."""
        passed_s = [proof.took_s for proof in state.proofs.values()]
        until = state.budget if len(passed_s) < COMPARED else self._budget
        return not passed_s or sum(passed_s) <= until.left()

    def _verification(self, state: RunState) -> NextTurn:
        case, budget = state.unverified[0], self._budget
        left_s = budget.left() - (1 - PROOFS) * budget.seconds
        limit_s = _proof_s(case, max(MIN_PROOF_S, left_s / len(state.unverified)))
        known = self._proofs.get(case.key)
        proof = known if known and known.took_s > limit_s else None
        cancel_at = state.budget.end if state.proofs else math.inf
        return NextTurn(case, 0, limit_s, cancel_at=cancel_at, index_end=budget.end, proof=proof)

    def _first(self, state: RunState, case: Case) -> int:
        return state.cases.index(case)

    def _fits(self, state: RunState, case: Case, number: int) -> bool:
        late = number == 1 and state.rounds >= COMPARED and self._budget.over
        return not state.rounds or not (late or state.budget.over)

    def _more(self, state: RunState, done: int) -> bool:
        next_s = sum(state.next_s(case, done + 1) for case in state.remaining)
        if not state.remaining or done >= self._rounds:
            return False
        if done < self._at_least:
            return next_s <= state.budget.left()
        return not UntilPrecise().enough(state.rates, done) and next_s <= self._budget.left()


def _proof_s(case: Case, share_s: float) -> float:
    """Return the seconds after which a verification ends: its share, or some rounds if these are less."""
    return min(share_s, PROOF_ROUNDS * case.round_seconds)


def _equal_s(budget: Budget, rounds: int, cases: Sequence[Case]) -> float:
    """Return an equal share of the time that is left, for each of these rounds of each case."""
    return max(thresholds.ROUND_S, ROUNDS_SHARE * budget.for_each(rounds * len(cases)))


def _lost(best: Mapping[int, float], other: Mapping[int, float], comparisons: int) -> bool:
    done = min(len(best), len(other))
    if done >= stats.ENOUGH_ROUNDS:
        return stats.compare_paired(best, other, comparisons=comparisons).outcome == "faster"
    ratio = statistics.median(best.values()) / statistics.median(other.values())
    return min(best.values()) > max(other.values()) and ratio >= FACTORS[max(1, done)]
