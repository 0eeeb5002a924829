"""Stopping rules of a run: a number of rounds, precise figures, or a decision."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from iobench.base.errors import InvalidSettings
from iobench.base.finding import Finding
from iobench.base.units import counted
from iobench.results import stats
from iobench.results.cases import Label
from iobench.results.ranking import Verdict, verdict_on
from iobench.results.run_warning import LONGER, Values

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
