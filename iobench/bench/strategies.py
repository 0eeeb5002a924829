"""Strategies: which cases a run verifies, which case is next, which are eliminated, and when rounds end."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from iobench.base import thresholds
from iobench.base.errors import InvalidSettings
from iobench.base.finding import Finding
from iobench.base.units import counted
from iobench.bench.rounds import Rates, worst
from iobench.results import stats
from iobench.results.cases import Label

AUTO, DECISIVE = "auto", "decisive"
MAX_TIME_S = 300.0
DEFAULT_ROUNDS = 15  # enough for a verdict over a dozen cases to survive one outlier
UNLIMITED = 10_000  # rounds: the time ends first
PRECISION = 0.02  # half-width of an interval relative to its median at which no more rounds are needed
# Speed ratio of the fastest case to another at which the other is eliminated, by rounds made, while there
# are too few rounds for an interval: figures of one round scatter by a factor of two on busy machines.
FACTORS = {1: 3.0, 2: 2.0, 3: 1.5, 4: 1.5}
FAR = 3.0  # speed ratio from which on a case has lost before there are rounds enough for a verdict
SCREENING = 3  # rounds of all cases before decisive rounds leave some out
COMPARED = 2  # cases measured whatever the time: a comparison needs two
PROOF_SHARE = 0.3  # of the time for rounds that a late verification may use
PROOFS = 0.3  # of the whole time, for verification; after twice that nothing more is verified
MIN_PROOF_S = 0.5  # of a race, so that small data are verified as a whole
ROUNDS_SHARE = 0.8  # of the time for rounds that these themselves take: opening and the cache take the rest
RACE_ROUNDS = 4  # of all cases, that a race has time for
SLOW = 2  # times its equal share of the time, that the rounds of a case may take
LONGER = "give a longer --max-time"


class Strategy(Protocol):
    """Decisions of a run between its verifications and rounds.

    Times are in seconds: `elapsed_s` since the run began, less what a race does not count, `took_s` of the
    latest verification or round of each case, by key.
    """

    @property
    def planned(self) -> int | None:
        """Number of rounds; None where it depends on the figures."""

    @property
    def max_time_s(self) -> float:
        """Time for rounds."""

    @property
    def opening(self) -> int:
        """Number of cases that are timed once as soon as they are verified, so that Ctrl-C has an answer."""

    def verifies(self, elapsed_s: float, passed_s: Sequence[float]) -> bool:
        """Return whether another case is verified; `passed_s` are the seconds of those that passed."""

    def verification_end_s(self, passed_s: Sequence[float]) -> float:
        """Return the elapsed seconds after which a running verification is cancelled."""

    def verification_s(self, elapsed_s: float, left: int) -> float:
        """Return the seconds after which the next of `left` verifications ends with a part of its epoch."""

    def round_s(self, elapsed_s: float, cases: int) -> float:
        """Return the seconds of a round, beyond which it becomes a part of an epoch, for so many cases."""

    def is_slow(self, used_s: float, next_s: float, cases: int) -> bool:
        """Return whether a round of `next_s` seconds is more than the share of one of so many cases."""

    def late_s(self, elapsed_s: float) -> float:
        """Return the seconds by which the whole verification was late, deducted from those for rounds."""

    def first(self, position: int, took_s: float) -> Any:
        """Return the sort key of a case in the first round; cases with equal keys come in random order."""

    def skips(self, number: int, elapsed_s: float, total_s: float, next_s: float, measured: int) -> bool:
        """Return whether there is no time for a case in round `number`, which takes about `next_s`.

        `total_s` is the time since the run began, `measured` the number of valid records.
        """

    def first_s(self, elapsed_s: float) -> float:
        """Return the seconds after which the part that is the very first round ends, however short."""

    def after_round(
        self, done: int, elapsed_s: float, rates: Rates, took_s: Mapping[str, float]
    ) -> tuple[list[str], bool]:
        """Return the cases eliminated after `done` rounds, and whether another round follows."""

    def notes(self, done: int, elapsed_s: float, rates: Rates, labels: Mapping[str, Label]) -> list[Finding]:
        """Return notes on whether the rounds were enough."""


@dataclass(frozen=True)
class FixedRounds:
    """So many rounds of every case in `max_time_s`, which verification counts for.

    Rounds and verifications are cut to parts of an epoch where whole ones would take longer.
    """

    max_time_s: float = math.inf
    rounds: int = DEFAULT_ROUNDS
    opening: int = 0

    @property
    def planned(self) -> int | None:
        """Number of rounds."""
        return self.rounds

    def verifies(self, elapsed_s: float, passed_s: Sequence[float]) -> bool:
        """Return whether there is time to verify another case; two are needed for a comparison."""
        return elapsed_s <= (2 * PROOFS if len(passed_s) >= COMPARED else 1.0) * self.max_time_s

    def verification_end_s(self, passed_s: Sequence[float]) -> float:
        """Return the elapsed seconds that leave time for rounds; the first case is cut, but not cancelled."""
        return 2 * PROOFS * self.max_time_s if passed_s else math.inf

    def verification_s(self, elapsed_s: float, left: int) -> float:
        """Return an equal share of what is left of the time for verification."""
        return max(0.0, PROOFS * self.max_time_s - elapsed_s) / left

    def round_s(self, elapsed_s: float, cases: int) -> float:
        """Return an equal share of the time that is left, for each planned round of each case."""
        rounds = stats.PAIRED_ROUNDS if self.planned is None else self.planned
        left_s = ROUNDS_SHARE * (self.max_time_s - elapsed_s)
        return max(thresholds.ROUND_S, left_s / (rounds * max(1, cases)))

    def is_slow(self, used_s: float, next_s: float, cases: int) -> bool:
        """Return whether the case would take more than twice its equal share of the time."""
        return cases > COMPARED and used_s + next_s > SLOW * self.max_time_s / cases

    def late_s(self, elapsed_s: float) -> float:
        """Return all of its seconds: they count."""
        return elapsed_s

    def first(self, position: int, took_s: float) -> Any:
        """Return the same for all cases: their order is random."""
        return 0

    def skips(self, number: int, elapsed_s: float, total_s: float, next_s: float, measured: int) -> bool:
        """Return whether the case would end after the time; the first one is cut instead."""
        return bool(measured) and elapsed_s + next_s > self.max_time_s

    def first_s(self, elapsed_s: float) -> float:
        """Return the seconds that are left, for the first round of the first case."""
        return max(0.0, self.max_time_s - elapsed_s)

    def after_round(
        self, done: int, elapsed_s: float, rates: Rates, took_s: Mapping[str, float]
    ) -> tuple[list[str], bool]:
        """Return the cases eliminated after `done` rounds, and whether another round follows."""
        lost = self.behind(rates) if done and any(rates.values()) else []
        left = {key: by_round for key, by_round in rates.items() if key not in lost}
        next_s = sum(took_s.get(key, 0.0) for key in left)
        return lost, bool(left) and self.continues(done, elapsed_s, next_s, left)

    def behind(self, rates: Rates) -> list[str]:
        """Return the cases to eliminate: none."""
        return []

    def continues(self, done: int, elapsed_s: float, next_s: float, rates: Rates) -> bool:
        """Return whether another round follows, which would take `next_s` seconds."""
        return done < self.rounds and (not done or elapsed_s + next_s <= self.max_time_s)

    def notes(self, done: int, elapsed_s: float, rates: Rates, labels: Mapping[str, Label]) -> list[Finding]:
        """Return a note (kind `max-time-reached`) if rounds were cut off."""
        if done >= self.rounds:
            return []
        message = f"--max-time ended the run after {done} of {self.rounds} rounds"
        values: dict[str, float | int | str] = {"rounds": done, "elapsed_s": elapsed_s}
        return [Finding("max-time-reached", message, values={**values, "planned": self.rounds})]


@dataclass(frozen=True)
class AutoRounds(FixedRounds):
    """Rounds until each case's interval lies within ±2 % of its median, at least ten if there is time."""

    max_time_s: float = MAX_TIME_S
    rounds: int = UNLIMITED

    @property
    def planned(self) -> int | None:
        """None: the figures decide."""
        return None

    def continues(self, done: int, elapsed_s: float, next_s: float, rates: Rates) -> bool:
        """Return whether another round follows, which would take `next_s` seconds."""
        precise = done >= stats.PAIRED_ROUNDS and worst(rates)[1] <= PRECISION
        return not precise and super().continues(done, elapsed_s, next_s, rates)

    def notes(self, done: int, elapsed_s: float, rates: Rates, labels: Mapping[str, Label]) -> list[Finding]:
        """Return a note on the intervals: `auto-few-rounds`, `auto-imprecise` or `auto-precise`."""
        values: dict[str, float | int | str] = {"rounds": done, "elapsed_s": elapsed_s}
        key, reach = worst(rates)
        line = f"{counted(done, 'round')} in {elapsed_s:.0f} s"
        if done < stats.MIN_ROUNDS:
            return [Finding("auto-few-rounds", f"{line}, too few for an interval", LONGER, values)]
        values["precision"] = reach
        if reach > PRECISION:
            line += f", ended by --max-time: the interval of {labels[key]} is ±{reach:.1%} of its median"
            return [Finding("auto-imprecise", line, LONGER, {**values, "case": key})]
        return [Finding("auto-precise", f"{line}: every interval is within ±{PRECISION:.0%}", values=values)]


@dataclass(frozen=True)
class SuccessiveHalving(AutoRounds):
    """Successive halving (Jamieson and Talwalkar 2016) that eliminates only significantly slower cases.

    After each round, cases of the slower half that are clearly behind are eliminated; from ten rounds on,
    every case that is clearly behind.

    Attributes
    ----------
    max_time_s : float
        Time for rounds. The first round, in which quickly verified cases come first, starts no more cases
        after it, except for two. No later round begins that would end after it.
    rounds : int
        Most rounds.
    proofs_s : float
        Time for verification. No case is verified later, unless fewer than two have passed so far.
    end_s : float
        Seconds from the beginning of the run after which nothing begins, however few rounds were made.
    opening : int
        Cases whose first round follows their verification at once.
    ordered : bool
        The first round keeps the given order.
    """

    rounds: int = 31
    proofs_s: float = math.inf
    end_s: float = math.inf
    opening: int = COMPARED
    ordered: bool = False

    def verifies(self, elapsed_s: float, passed_s: Sequence[float]) -> bool:
        """Return whether there is time to verify another case."""
        return elapsed_s <= (self.proofs_s if len(passed_s) >= COMPARED else self.end_s)

    def verification_end_s(self, passed_s: Sequence[float]) -> float:
        """Return the elapsed seconds that leave time for rounds."""
        late = self.proofs_s + PROOF_SHARE * self.max_time_s
        return late if len(passed_s) >= COMPARED else self.end_s

    def verification_s(self, elapsed_s: float, left: int) -> float:
        """Return an equal share of what is left of `proofs_s`."""
        return max(MIN_PROOF_S, (self.proofs_s - elapsed_s) / left)

    def round_s(self, elapsed_s: float, cases: int) -> float:
        """Return an equal share of the time for rounds, for each of the first rounds of each case."""
        return max(thresholds.ROUND_S, self.max_time_s / (RACE_ROUNDS * max(1, cases)))

    def is_slow(self, used_s: float, next_s: float, cases: int) -> bool:
        """Return False: slow cases are eliminated by their figures."""
        return False

    def late_s(self, elapsed_s: float) -> float:
        """Return the seconds after `proofs_s`."""
        return max(0.0, elapsed_s - self.proofs_s)

    def first(self, position: int, took_s: float) -> Any:
        """Return the key that puts the reference case (position 0) first, then quick cases."""
        return position if self.ordered else (position > 0, took_s)

    def skips(self, number: int, elapsed_s: float, total_s: float, next_s: float, measured: int) -> bool:
        """Return whether the time is over; the first round has two cases if it can."""
        late = number == 1 and measured >= COMPARED and elapsed_s > self.max_time_s
        return bool(measured) and (late or total_s > self.end_s)

    def continues(self, done: int, elapsed_s: float, next_s: float, rates: Rates) -> bool:
        """Return whether another round follows; a case that is left alone needs none."""
        alone = done and len(rates) < COMPARED
        return not alone and super().continues(done, elapsed_s, next_s, rates)

    def behind(self, rates: Rates) -> list[str]:
        """Return the cases that are clearly behind the fastest."""
        fastest, *others = stats.by_speed(rates)
        lost = [key for key in others if _lost(rates[fastest], rates[key], len(others))]
        if len(rates[fastest]) >= stats.PAIRED_ROUNDS:
            return lost
        slower = others[len(others) // 2 :]
        return [key for key in lost if key in slower]

    def notes(self, done: int, elapsed_s: float, rates: Rates, labels: Mapping[str, Label]) -> list[Finding]:
        """Return no note: the search that uses it concludes."""
        return []


@dataclass(frozen=True)
class FinalRounds(SuccessiveHalving):
    """Fresh rounds of the remaining cases, without elimination; verification counts as time for rounds.

    Cases come in order of importance. The first is always measured once, the second if it can begin in
    time, further ones only if enough time is left for the rounds of those before them.
    """

    rounds: int = UNLIMITED
    proofs_s: float = 0.0
    opening: int = 0
    ordered: bool = True
    at_least: int = 2  # rounds that may take all of the time: of one nothing can be concluded

    def verifies(self, elapsed_s: float, passed_s: Sequence[float]) -> bool:
        """Return whether there is time for another case, assuming that a round takes as long as a proof."""
        until_s = self.end_s if len(passed_s) < COMPARED else self.max_time_s
        return not passed_s or elapsed_s + sum(passed_s) <= until_s

    def verification_s(self, elapsed_s: float, left: int) -> float:
        """Return an equal share of what is left of the time for verification."""
        return max(MIN_PROOF_S, FixedRounds.verification_s(self, elapsed_s, left))

    def round_s(self, elapsed_s: float, cases: int) -> float:
        """Return an equal share of the time that is left, for each of ten rounds of each case."""
        return FixedRounds.round_s(self, elapsed_s, cases)

    def verification_end_s(self, passed_s: Sequence[float]) -> float:
        """Return `end_s`, but no limit for the first case, without which there is no answer."""
        return self.end_s if passed_s else math.inf

    def continues(self, done: int, elapsed_s: float, next_s: float, rates: Rates) -> bool:
        """Return whether another round follows, also of a single case."""
        if done < min(self.at_least, self.rounds):
            return not done or elapsed_s + next_s <= self.end_s
        return AutoRounds.continues(self, done, elapsed_s, next_s, rates)

    def behind(self, rates: Rates) -> list[str]:
        """Return no case."""
        return []


@dataclass(frozen=True)
class DecisiveRounds(AutoRounds):
    """Three rounds of all cases, then only of those that may be the fastest of their context.

    They end when each context has a winner, or a tie: intervals within the minimum difference.

    Attributes
    ----------
    contexts : mapping of str to str
        The context of each case, by key: only cases of one context are compared.
    """

    contexts: Mapping[str, str] = field(default_factory=dict)

    def behind(self, rates: Rates) -> list[str]:
        """Return the cases that are clearly behind the fastest of their context, once all were screened."""
        cases = Counter(self.contexts.values())
        return [
            key
            for fastest, *others in self._contests(rates)
            for key in others
            if self._lost(rates[fastest], rates[key], cases[self.contexts.get(key, "")] - 1)
        ]

    @staticmethod
    def _lost(best: Mapping[int, float], other: Mapping[int, float], comparisons: int) -> bool:
        """Return whether a case has lost; `comparisons` as in the verdict, which must agree."""
        done = min(len(best), len(other))
        if done >= stats.ENOUGH_ROUNDS:
            return _outcome(best, other, comparisons) == "faster"
        return done >= SCREENING and min(best.values()) > FAR * max(other.values())

    def continues(self, done: int, elapsed_s: float, next_s: float, rates: Rates) -> bool:
        """Return whether another round follows, which would take `next_s` seconds."""
        decided = done >= SCREENING and all(map(partial(self._tied, rates), self._contests(rates)))
        return not decided and FixedRounds.continues(self, done, elapsed_s, next_s, rates)

    def notes(self, done: int, elapsed_s: float, rates: Rates, labels: Mapping[str, Label]) -> list[Finding]:
        """Return a note (kind `max-time-reached`) if a context was not decided."""
        undecided = [keys for keys in self._contests(rates) if not self._tied(rates, keys)]
        if not undecided:
            return []
        message = f"--max-time ended the run after {counted(done, 'round')}, before every contest was decided"
        values: dict[str, float | int | str] = {"rounds": done, "elapsed_s": elapsed_s}
        return [Finding("max-time-reached", message, LONGER, {**values, "undecided": len(undecided)})]

    def _contests(self, rates: Rates) -> list[list[str]]:
        """Return the measured cases of each context, the fastest first."""
        groups: dict[str, dict[str, Mapping[int, float]]] = {}
        for key, by_round in rates.items():
            if by_round:
                groups.setdefault(self.contexts.get(key, ""), {})[key] = by_round
        return [stats.by_speed(group) for group in groups.values()]

    def _tied(self, rates: Rates, keys: Sequence[str]) -> bool:
        """Return whether a single case is left, or no other differs from the fastest enough to matter."""
        fastest, *others = keys
        cases = Counter(self.contexts.values())[self.contexts.get(fastest, "")]
        return all(_outcome(rates[fastest], rates[key], cases - 1) == "equivalent" for key in others)


def _outcome(best: Mapping[int, float], other: Mapping[int, float], comparisons: int) -> str:
    return stats.compare_paired(best, other, comparisons=max(1, comparisons)).outcome


def parse(
    rounds: int | str, max_time_s: float | None = None, contexts: Mapping[str, str] | None = None
) -> Strategy:
    """Return the strategy for a number of rounds, `auto` or `decisive`; InvalidSettings for anything else.

    `contexts` holds the context of each case, by key.
    """
    if max_time_s is not None and not 0 < max_time_s < math.inf:
        raise InvalidSettings(
            "--max-time", kind="out-of-range", expected="a number of seconds above 0", found=max_time_s
        )
    enough_s = MAX_TIME_S if max_time_s is None else max_time_s
    if rounds == AUTO:
        return AutoRounds(enough_s)
    if rounds == DECISIVE:
        return DecisiveRounds(enough_s, contexts=contexts or {})
    try:
        count = int(rounds)
    except ValueError:
        raise InvalidSettings(
            "--rounds", kind="not-a-number", expected=f"a number, {AUTO} or {DECISIVE}", found=repr(rounds)
        ) from None
    if count < 1:
        raise InvalidSettings("--rounds", kind="out-of-range", expected="at least 1", found=count)
    return FixedRounds(math.inf if max_time_s is None else max_time_s, count)


def _lost(best: Mapping[int, float], other: Mapping[int, float], comparisons: int) -> bool:
    done = min(len(best), len(other))
    if done >= stats.ENOUGH_ROUNDS:
        return stats.compare_paired(best, other, comparisons=comparisons).outcome == "faster"
    ratio = statistics.median(best.values()) / statistics.median(other.values())
    return min(best.values()) > max(other.values()) and ratio >= FACTORS[max(1, done)]
