"""Rounds in which the field shrinks: who is clearly behind takes no further turn."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from iobench.bench.plan import worst
from iobench.results import stats

# How many times as fast the fastest has to be, by the number of rounds made, for another to be dropped
# while no interval can be had: figures of one round scatter by a factor of two on busy machines.
FACTORS = {1: 3.0, 2: 2.0, 3: 1.5, 4: 1.5}
COMPARED = 2  # cases that are measured in any case: of fewer there is nothing to say
PATIENCE = 0.3  # of the time for rounds, that a proof may take of it
MANY = 10_000  # rounds: there is no time for them
PRECISION = 0.02  # of every median: sure enough


@dataclass(frozen=True)
class Race:
    """Successive halving (Jamieson and Talwalkar 2016) that drops only who is surely behind.

    No case is proved after `proofs_s` seconds, unless none was found right so far: then until the time of
    the rounds is over, too. The first round, in which those that were quickly proved come early, takes no
    more turns after `max_time_s`, but for two; no other round begins that would end after that, or after
    `rounds` of them. Of those clearly behind, the slower half goes after each round, and all from ten
    rounds on. After `end_s` seconds, counted from the first proof, no turn begins, however few there were.
    """

    max_time_s: float
    rounds: int = 31
    proofs_s: float = float("inf")
    end_s: float = float("inf")

    def proves(self, elapsed_s: float, proofs: Sequence[float]) -> bool:
        """Whether another case is proved after so many seconds, where those found right took `proofs`."""
        return elapsed_s <= self.proofs_s + (0.0 if proofs else self.max_time_s)

    def gives_up_s(self, proofs: Sequence[float]) -> float:
        """The seconds after which a proof that goes on still is given up: others need the time for rounds."""
        return self.proofs_s + PATIENCE * self.max_time_s if proofs else self.end_s

    def first(self, place: int, took_s: float) -> Any:
        """What the first round is sorted by: what others are held against, then who is quick."""
        return place > 0, took_s

    def goes_on(
        self, done: int, elapsed_s: float, next_s: float, rates: Mapping[str, Sequence[float]]
    ) -> bool:
        """Whether another round is wanted, which would take `next_s`."""
        if done >= self.rounds or (done and elapsed_s + next_s > self.max_time_s):
            return False
        return done < stats.PAIRED or (len(rates) > 1 and worst(rates)[1] > PRECISION)

    def after_round(
        self,
        done: int,
        elapsed_s: float,
        rates: Mapping[str, Mapping[int, float]],
        took_s: Mapping[str, float],
    ) -> tuple[list[str], bool]:
        """Who drops out after `done` rounds, and whether there is another one for those who are left.

        `rates` are those of all that are in it, by round, and `took_s` what a round of each takes.
        """
        lost = self.behind(rates) if done and any(rates.values()) else []
        left = {key: [*by_round.values()] for key, by_round in rates.items() if key not in lost}
        next_s = sum(took_s.get(key, 0.0) for key in left)
        return lost, bool(left) and self.goes_on(done, elapsed_s, next_s, left)

    def behind(self, rates: Mapping[str, Mapping[int, float]]) -> list[str]:
        """Who drops out, given the rates of all that are in it by round."""
        medians = {key: statistics.median(by_round.values()) for key, by_round in rates.items() if by_round}
        fastest, *others = sorted(medians, key=lambda key: medians[key], reverse=True)
        done = len(rates[fastest])
        lost = [key for key in others if _lost(rates[fastest], rates[key], len(others))]
        if done >= stats.PAIRED:
            return lost
        slower = others[len(others) // 2 :]
        return [key for key in lost if key in slower]


@dataclass(frozen=True)
class Again(Race):
    """Fresh rounds of those that a race left: nobody drops out, and proofs take their time from the rounds.

    Who comes first matters most. The first is measured once in any case, the second if it can begin in
    time at all; others are proved only if there is time left for the rounds of those before them.
    """

    rounds: int = MANY
    proofs_s: float = 0.0

    def proves(self, elapsed_s: float, proofs: Sequence[float]) -> bool:
        """Whether there is time for another one; a round is taken to last as long as a proof."""
        until_s = self.end_s if len(proofs) < COMPARED else self.max_time_s
        return not proofs or elapsed_s + sum(proofs) <= until_s

    def gives_up_s(self, proofs: Sequence[float]) -> float:
        """The end for all but the first, without which there is no answer."""
        return self.end_s if proofs else float("inf")

    def first(self, place: int, took_s: float) -> Any:
        """The order in which they are given."""
        return place

    def behind(self, rates: Mapping[str, Mapping[int, float]]) -> list[str]:
        """Nobody."""
        return []


def _lost(best: Mapping[int, float], other: Mapping[int, float], comparisons: int) -> bool:
    done = min(len(best), len(other))
    if done >= stats.ENOUGH:
        return stats.compare_paired(best, other, comparisons=comparisons).outcome == "faster"
    ratio = statistics.median(best.values()) / statistics.median(other.values())
    return min(best.values()) > max(other.values()) and ratio >= FACTORS[max(1, done)]
