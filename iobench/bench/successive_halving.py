"""Strategies for rounds that eliminate clearly slower cases, or that measure the remaining ones."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from iobench.bench.round_plan import worst
from iobench.results import stats

# Speed ratio of the fastest case to another at which the other is eliminated, by rounds made, while there
# are too few rounds for an interval: figures of one round scatter by a factor of two on busy machines.
FACTORS = {1: 3.0, 2: 2.0, 3: 1.5, 4: 1.5}
COMPARED = 2  # cases measured whatever the time: a comparison needs two
PROOF_SHARE = 0.3  # of the time for rounds that a late verification may use
UNLIMITED = 10_000  # rounds: the time ends first
PRECISION = 0.02  # half-width of an interval relative to its median at which no more rounds are needed


@dataclass(frozen=True)
class SuccessiveHalving:
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
        Time for verification. No case is verified later, unless none has passed so far: then `max_time_s`
        is added.
    end_s : float
        Seconds from the first verification after which nothing begins, however few rounds were made.
    """

    max_time_s: float
    rounds: int = 31
    proofs_s: float = float("inf")
    end_s: float = float("inf")

    def proves(self, elapsed_s: float, proofs: Sequence[float]) -> bool:
        """Return whether another case is verified now; `proofs` are the seconds of those that passed."""
        return elapsed_s <= self.proofs_s + (0.0 if proofs else self.max_time_s)

    def gives_up_s(self, proofs: Sequence[float]) -> float:
        """Return the seconds after which a running verification is cancelled to leave time for rounds."""
        return self.proofs_s + PROOF_SHARE * self.max_time_s if proofs else self.end_s

    def first(self, position: int, took_s: float) -> Any:
        """Return the sort key of the first round: the reference case (position 0), then quick cases."""
        return position > 0, took_s

    def goes_on(
        self, done: int, elapsed_s: float, next_s: float, rates: Mapping[str, Sequence[float]]
    ) -> bool:
        """Return whether another round follows, which would take `next_s` seconds."""
        if done >= self.rounds or (done and elapsed_s + next_s > self.max_time_s):
            return False
        return done < stats.PAIRED_ROUNDS or (len(rates) > 1 and worst(rates)[1] > PRECISION)

    def after_round(
        self,
        done: int,
        elapsed_s: float,
        rates: Mapping[str, Mapping[int, float]],
        took_s: Mapping[str, float],
    ) -> tuple[list[str], bool]:
        """Return the cases eliminated after `done` rounds, and whether another round follows.

        Parameters
        ----------
        done : int
            Rounds made.
        elapsed_s : float
            Seconds since the first round began.
        rates : mapping
            Samples per second by case and round, of all remaining cases.
        took_s : mapping
            Seconds of one round, by case.
        """
        lost = self.behind(rates) if done and any(rates.values()) else []
        left = {key: [*by_round.values()] for key, by_round in rates.items() if key not in lost}
        next_s = sum(took_s.get(key, 0.0) for key in left)
        return lost, bool(left) and self.goes_on(done, elapsed_s, next_s, left)

    def behind(self, rates: Mapping[str, Mapping[int, float]]) -> list[str]:
        """Return the cases to eliminate, given the rates of all remaining cases by round."""
        medians = {key: statistics.median(by_round.values()) for key, by_round in rates.items() if by_round}
        fastest, *others = sorted(medians, key=lambda key: medians[key], reverse=True)
        done = len(rates[fastest])
        lost = [key for key in others if _lost(rates[fastest], rates[key], len(others))]
        if done >= stats.PAIRED_ROUNDS:
            return lost
        slower = others[len(others) // 2 :]
        return [key for key in lost if key in slower]


@dataclass(frozen=True)
class FinalRounds(SuccessiveHalving):
    """Fresh rounds of the remaining cases, without elimination; verification counts as time for rounds.

    Cases come in order of importance. The first is always measured once, the second if it can begin in
    time, further ones only if enough time is left for the rounds of those before them.
    """

    rounds: int = UNLIMITED
    proofs_s: float = 0.0

    def proves(self, elapsed_s: float, proofs: Sequence[float]) -> bool:
        """Return whether there is time for another case, assuming that a round takes as long as a proof."""
        until_s = self.end_s if len(proofs) < COMPARED else self.max_time_s
        return not proofs or elapsed_s + sum(proofs) <= until_s

    def gives_up_s(self, proofs: Sequence[float]) -> float:
        """Return `end_s`, but no limit for the first case, without which there is no answer."""
        return self.end_s if proofs else float("inf")

    def first(self, position: int, took_s: float) -> Any:
        """Return the position: the first round keeps the given order."""
        return position

    def behind(self, rates: Mapping[str, Mapping[int, float]]) -> list[str]:
        """Return no case."""
        return []


def _lost(best: Mapping[int, float], other: Mapping[int, float], comparisons: int) -> bool:
    done = min(len(best), len(other))
    if done >= stats.ENOUGH_ROUNDS:
        return stats.compare_paired(best, other, comparisons=comparisons).outcome == "faster"
    ratio = statistics.median(best.values()) / statistics.median(other.values())
    return min(best.values()) > max(other.values()) and ratio >= FACTORS[max(1, done)]
