"""Strategies of a run: a fixed number of rounds, precise figures, or a decision."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from iobench.base.errors import InvalidSettings
from iobench.base.finding import Finding
from iobench.base.units import counted
from iobench.bench.rounds import Rates, worst
from iobench.bench.strategy import Strategy
from iobench.results import stats
from iobench.results.cases import Label
from iobench.results.ranking import by_speed
from iobench.results.run_warning import LONGER, Values

AUTO, DECISIVE = "auto", "decisive"
MAX_TIME_S = 300.0
UNLIMITED = 10_000  # rounds: the time ends first
PRECISION = 0.02  # half-width of an interval relative to its median at which no more rounds are needed
FAR = 3.0  # speed ratio from which on a case has lost before there are rounds enough for a verdict
SCREENING = 3  # rounds of all cases before decisive rounds leave some out


@dataclass(frozen=True)
class FixedRounds(Strategy):
    """So many rounds of every case."""

    @property
    def planned(self) -> int | None:
        """Number of rounds."""
        return self.rounds

    def notes(self, done: int, elapsed_s: float, rates: Rates, labels: Mapping[str, Label]) -> list[Finding]:
        """Return a note (kind `max-time-reached`) if rounds were cut off."""
        if done >= self.rounds:
            return []
        message = f"--max-time ended the run after {done} of {self.rounds} rounds"
        values: Values = {"rounds": done, "elapsed_s": elapsed_s}
        return [Finding("max-time-reached", message, values={**values, "planned": self.rounds})]


@dataclass(frozen=True)
class AutoRounds(Strategy):
    """Rounds until each case's interval lies within ±2 % of its median, at least ten if there is time."""

    rounds: int = UNLIMITED

    def continues(self, done: int, elapsed_s: float, next_s: float, rates: Rates) -> bool:
        """Return whether another round follows, which would take `next_s` seconds."""
        precise = done >= stats.PAIRED_ROUNDS and worst(rates)[1] <= PRECISION
        return not precise and super().continues(done, elapsed_s, next_s, rates)

    def notes(self, done: int, elapsed_s: float, rates: Rates, labels: Mapping[str, Label]) -> list[Finding]:
        """Return a note on the intervals: `auto-few-rounds`, `auto-imprecise` or `auto-precise`."""
        values: Values = {"rounds": done, "elapsed_s": elapsed_s}
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
class DecisiveRounds(Strategy):
    """Three rounds of all cases, then only of those that may be the fastest of their context.

    They end when each context has a winner, or a tie: intervals within the minimum difference.
    """

    rounds: int = UNLIMITED
    contexts: Mapping[str, str] = field(default_factory=dict)  # of each case: they are compared within it

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
        return not decided and super().continues(done, elapsed_s, next_s, rates)

    def notes(self, done: int, elapsed_s: float, rates: Rates, labels: Mapping[str, Label]) -> list[Finding]:
        """Return a note (kind `max-time-reached`) if a context was not decided."""
        undecided = [keys for keys in self._contests(rates) if not self._tied(rates, keys)]
        if not undecided:
            return []
        message = f"--max-time ended the run after {counted(done, 'round')}, before every contest was decided"
        values: Values = {"rounds": done, "elapsed_s": elapsed_s}
        return [Finding("max-time-reached", message, LONGER, {**values, "undecided": len(undecided)})]

    def _contests(self, rates: Rates) -> list[list[str]]:
        """Return the measured cases of each context, the fastest first."""
        groups: dict[str, dict[str, Mapping[int, float]]] = {}
        for key, by_round in rates.items():
            if by_round:
                groups.setdefault(self.contexts.get(key, ""), {})[key] = by_round
        return [by_speed(group) for group in groups.values()]

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
