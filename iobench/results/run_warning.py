"""A warning about measurements: one reason not to believe a figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from iobench.results.record import Record

MAX_NAMED = 2  # cases named in a sentence
MORE_ROUNDS = "give more --rounds"  # a hint that `warnings_of` replaces for commands without that option
LONGER = "give a longer --max-time"

Value = float | int | str
Values = dict[str, Value]


@dataclass(frozen=True)
class RunWarning:
    """One reason not to believe a figure."""

    derived: ClassVar = ("sentence",)

    kind: str  # stable identifier, such as ``few-rounds``
    message: str  # what happened, without the remedy
    cases: list[str] = field(default_factory=list)  # labels of the cases concerned; empty where all are
    hints: tuple[str, ...] = ()  # what to do about it, alternatives of each other
    values: Values = field(default_factory=dict)  # the figures behind the message, by name

    @property
    def sentence(self) -> str:
        """The warning in one line: what happened, the cases, what to do."""
        more = len(self.cases) - MAX_NAMED
        names = "; ".join(self.cases[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
        statement = f"{self.message} ({names})" if self.cases else self.message
        return f"{statement}; {_alternatives(self.hints)}" if self.hints else statement

    def __str__(self) -> str:
        return self.sentence


def _alternatives(hints: Sequence[str]) -> str:
    """Join hints as ``a, b or c``."""
    *first, last = hints
    return f"{', '.join(first)} or {last}" if first else last


Cases: TypeAlias = Mapping[str, Sequence[Record]]  # by key

Check: TypeAlias = Callable[[Cases], "RunWarning | None"]


def warm_cases(groups: Cases) -> Cases:
    """Return the cases that were read with a warm cache."""
    return {key: rounds for key, rounds in groups.items() if rounds[0].cache.mode == "warm"}
