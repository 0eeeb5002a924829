"""A warning about measurements: one reason not to believe a figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from iobench.results.cases import Groups
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


Rounds: TypeAlias = Sequence[Record]  # of one case
Check: TypeAlias = Callable[[Groups], "RunWarning | None"]


@dataclass(frozen=True)
class CaseCheck:
    """Decorator of a function that returns a case's figure, None or False where nothing is wrong with it.

    The warning holds the `worst` figure of all cases concerned: as a text in the message, and as the value
    of that name.
    """

    kind: str
    message: str  # with the worst figure as {}
    hints: tuple[str, ...] = ()
    value: str = ""
    text: Callable[[Any], str] = "{:.0%}".format
    worst: Callable[[Iterable[Any]], Any] = max

    def __call__(self, figure_of: Callable[[Rounds], Any]) -> Check:
        """Return the check of all cases."""

        def check(groups: Groups) -> RunWarning | None:
            figures = {key: figure_of(rounds) for key, rounds in groups.items()}
            bad = {key: figure for key, figure in figures.items() if not (figure is None or figure is False)}
            if not bad:
                return None
            worst = self.worst(bad.values())
            values = {self.value: worst} if self.value else {}
            return RunWarning(self.kind, self.message.format(self.text(worst)), list(bad), self.hints, values)

        return check


def above(threshold: float, figure: float | None) -> float | None:
    """Return a figure above a threshold, None for one that is not."""
    return figure if figure is not None and figure > threshold else None
