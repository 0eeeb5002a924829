"""Strategies of a search: a race by successive halving, and final rounds of those that remain."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from iobench.base import thresholds
from iobench.base.finding import Finding
from iobench.bench.proof import Proof
from iobench.bench.rounds import Rates
from iobench.bench.run_strategies import UNLIMITED, AutoRounds
from iobench.bench.strategy import COMPARED, Strategy
from iobench.results import stats
from iobench.results.cases import Label
from iobench.results.ranking import by_speed

# Speed ratio of the fastest case to another at which the other is eliminated, by rounds made, while there
# are too few rounds for an interval: figures of one round scatter by a factor of two on busy machines.
FACTORS = {1: 3.0, 2: 2.0, 3: 1.5, 4: 1.5}
PROOF_SHARE = 0.3  # of the time for rounds that a late verification may use
MIN_PROOF_S = 0.5  # of a race, so that small data are verified as a whole
RACE_ROUNDS = 4  # of all cases, that a race has time for


@dataclass(frozen=True)
class SuccessiveHalving(AutoRounds):
    """Successive halving (Jamieson and Talwalkar 2016) that eliminates only significantly slower cases.

    After each round, cases of the slower half that are clearly behind are eliminated; from ten rounds on,
    every case that is clearly behind. After `max_time_s` the first round, in which quickly verified cases
    come first, starts no more cases, except for two. No later round begins that would end after it.
    """

    rounds: int = 31
    proofs_s: float = math.inf  # for verification; later, cases are verified only until two have passed
    end_s: float = math.inf  # of the run, after which nothing begins, however few rounds were made
    opening: int = COMPARED
    ordered: bool = False  # the first round keeps the given order, and ends if its opening took all the time

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

    def excess_s(self, passed_s: Sequence[float]) -> float:
        """Return the seconds of a slow default beyond half of `proofs_s`, at most so many again."""
        over_s = passed_s[0] - self.proofs_s / COMPARED if passed_s else 0.0
        return min(self.proofs_s, max(0.0, over_s))

    def round_s(self, elapsed_s: float, cases: int) -> float:
        """Return an equal share of the time for rounds, for each of the first rounds of each case."""
        return max(thresholds.ROUND_S, self.max_time_s / (RACE_ROUNDS * max(1, cases)))

    def is_slow(self, used_s: float, next_s: float, cases: int) -> bool:
        """Return False: slow cases are eliminated by their figures."""
        return False

    def late_s(self, elapsed_s: float, opened_s: float) -> float:
        """Return the seconds after `proofs_s`, and of the opening: a slow default leaves half to others."""
        most_s = math.inf if self.ordered else self.max_time_s / COMPARED
        return max(0.0, elapsed_s - self.proofs_s) + min(opened_s, most_s)

    def first(self, position: int, took_s: float) -> Any:
        """Return the key that puts the reference case (position 0) first, then quick cases."""
        return position if self.ordered else (position > 0, took_s)

    def skips(self, number: int, elapsed_s: float, total_s: float, next_s: float, measured: int) -> bool:
        """Return whether the time is over; the first round has two cases if it can."""
        late = number == 1 and measured >= COMPARED and elapsed_s > self.max_time_s
        return bool(measured) and (late or total_s > self.end_s)

    def cut_s(self, number: int, elapsed_s: float, total_s: float, measured: int) -> float:
        """Return the seconds that are left, of the very first case half of them; at least a fourth of all."""
        left_s = (self.max_time_s - elapsed_s) / (1 if measured else COMPARED)
        return max(self.max_time_s / RACE_ROUNDS, left_s)

    def continues(self, done: int, elapsed_s: float, next_s: float, rates: Rates) -> bool:
        """Return whether another round follows; a case that is left alone needs none."""
        alone = done and len(rates) < COMPARED
        return not alone and super().continues(done, elapsed_s, next_s, rates)

    def behind(self, rates: Rates) -> list[str]:
        """Return the cases that are clearly behind the fastest."""
        fastest, *others = by_speed(rates)
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
    time, further ones only if enough time is left for the rounds of those before them. A case is not verified
    again if that took longer than the time for it: one batch of a slow case may be most of the time.
    """

    rounds: int = UNLIMITED
    proofs_s: float = 0.0
    opening: int = 0
    ordered: bool = True
    at_least: int = 2  # rounds that may take all of the time: of one nothing can be concluded
    proofs: Mapping[str, Proof] = field(default_factory=dict)  # of the race, by key
    limits_from: int = 2  # a comparison comes first: on a busy machine limits take seconds

    def verifies(self, elapsed_s: float, passed_s: Sequence[float]) -> bool:
        """Return whether there is time for another case, assuming that a round takes as long as a proof."""
        until_s = self.end_s if len(passed_s) < COMPARED else self.max_time_s
        return not passed_s or elapsed_s + sum(passed_s) <= until_s

    def verification_s(self, elapsed_s: float, left: int) -> float:
        """Return an equal share of what is left of the time for verification."""
        return max(MIN_PROOF_S, Strategy.verification_s(self, elapsed_s, left))

    def earlier_proof(self, key: str, limit_s: float) -> Proof | None:
        """Return the proof of the race if it took longer than `limit_s`."""
        proof = self.proofs.get(key)
        return proof if proof and proof.took_s > limit_s else None

    def round_s(self, elapsed_s: float, cases: int) -> float:
        """Return an equal share of the time that is left, for each of ten rounds of each case."""
        return Strategy.round_s(self, elapsed_s, cases)

    def verification_end_s(self, passed_s: Sequence[float]) -> float:
        """Return `end_s`, but no limit for the first case, without which there is no answer."""
        return self.end_s if passed_s else math.inf

    def cut_s(self, number: int, elapsed_s: float, total_s: float, measured: int) -> float:
        """Return all seconds that are left: one long round says more than two that are mostly a start."""
        return max(0.0, self.end_s - total_s)

    def continues(self, done: int, elapsed_s: float, next_s: float, rates: Rates) -> bool:
        """Return whether another round follows, also of a single case."""
        if done < min(self.at_least, self.rounds):
            return not done or elapsed_s + next_s <= self.end_s
        return AutoRounds.continues(self, done, elapsed_s, next_s, rates)

    def behind(self, rates: Rates) -> list[str]:
        """Return no case."""
        return []


def _lost(best: Mapping[int, float], other: Mapping[int, float], comparisons: int) -> bool:
    done = min(len(best), len(other))
    if done >= stats.ENOUGH_ROUNDS:
        return stats.compare_paired(best, other, comparisons=comparisons).outcome == "faster"
    ratio = statistics.median(best.values()) / statistics.median(other.values())
    return min(best.values()) > max(other.values()) and ratio >= FACTORS[max(1, done)]
