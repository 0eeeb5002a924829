"""Strategy of a run: which cases are verified, which case is next, which are eliminated, when rounds end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from iobench.base import thresholds
from iobench.base.finding import Finding
from iobench.bench.proof import Proof
from iobench.bench.rounds import Rates
from iobench.results import stats
from iobench.results.cases import Label

DEFAULT_ROUNDS = 15  # enough for a verdict over a dozen cases to survive one outlier
COMPARED = 2  # cases measured whatever the time: a comparison needs two
PROOFS = 0.3  # of the whole time, for verification; after twice that nothing more is verified
ROUNDS_SHARE = 0.8  # of the time for rounds that these themselves take: opening and the cache take the rest
SLOW = 2  # times its equal share of the time, that the rounds of a case may take


@dataclass(frozen=True)
class Strategy:
    """Decisions of a run between its verifications and rounds: so many rounds in equal shares of the time.

    Rounds and verifications are cut to parts of an epoch where whole ones would take longer. Times are in
    seconds: `elapsed_s` since the run began, less what a race does not count, `took_s` of the latest
    verification or round of each case, by key.
    """

    max_time_s: float = math.inf  # time for rounds, which verification counts for
    rounds: int = DEFAULT_ROUNDS  # most rounds
    opening: int = 0  # cases that are timed once as soon as they are verified, so that Ctrl-C has an answer
    limits_from: int = 1  # first round before which hardware limits are measured

    @property
    def planned(self) -> int | None:
        """Number of rounds; None where it depends on the figures."""
        return None

    def verifies(self, elapsed_s: float, passed_s: Sequence[float]) -> bool:
        """Return whether there is time to verify another case; two are needed for a comparison.

        `passed_s` are the seconds of those that passed.
        """
        return elapsed_s <= (2 * PROOFS if len(passed_s) >= COMPARED else 1.0) * self.max_time_s

    def verification_end_s(self, passed_s: Sequence[float]) -> float:
        """Return the elapsed seconds after which a running verification is cancelled.

        They leave time for rounds. The first case is cut, but not cancelled.
        """
        return 2 * PROOFS * self.max_time_s if passed_s else math.inf

    def verification_s(self, elapsed_s: float, left: int) -> float:
        """Return the seconds after which the next of `left` verifications ends with a part of its epoch.

        They are an equal share of what is left of the time for verification.
        """
        return max(0.0, PROOFS * self.max_time_s - elapsed_s) / left

    def excess_s(self, passed_s: Sequence[float]) -> float:
        """Return the seconds of the verifications that passed which do not count: none."""
        return 0.0

    def earlier_proof(self, key: str, limit_s: float) -> Proof | None:
        """Return the proof of a case that was verified before, in place of one of `limit_s`: none."""
        return None

    def round_s(self, elapsed_s: float, cases: int) -> float:
        """Return the seconds of a round, beyond which it becomes a part of an epoch, for so many cases.

        They are an equal share of the time that is left, for each planned round of each case.
        """
        rounds = stats.PAIRED_ROUNDS if self.planned is None else self.planned
        left_s = ROUNDS_SHARE * (self.max_time_s - elapsed_s)
        return max(thresholds.ROUND_S, left_s / (rounds * max(1, cases)))

    def is_slow(self, used_s: float, next_s: float, cases: int) -> bool:
        """Return whether a round of `next_s` seconds exceeds twice the equal share of one of the cases."""
        return cases > COMPARED and used_s + next_s > SLOW * self.max_time_s / cases

    def late_s(self, elapsed_s: float, opened_s: float) -> float:
        """Return the seconds that count as time for rounds: all of the verification, and of the opening."""
        return elapsed_s + opened_s

    def first(self, position: int, took_s: float) -> Any:
        """Return the sort key of a case in the first round: the same for all, whose order is random."""
        return 0

    def skips(self, number: int, elapsed_s: float, total_s: float, next_s: float, measured: int) -> bool:
        """Return whether a case would end after the time in round `number`, which takes about `next_s`.

        The first one is cut instead. `total_s` is the time since the run began, `measured` the number of
        valid records.
        """
        return bool(measured) and elapsed_s + next_s > self.max_time_s

    def cut_s(self, number: int, elapsed_s: float, total_s: float, measured: int) -> float:
        """Return the seconds after which a slow case is cut off in round `number`: those left to the first.

        Arguments are as for `skips`.
        """
        return math.inf if measured else max(0.0, self.max_time_s - elapsed_s)

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
        """Return notes on whether the rounds were enough: none."""
        return []
