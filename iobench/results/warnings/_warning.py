"""What a warning is, and what is asked of the records of a case by several checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from iobench.results.record import Record

MOST_NAMED = 3
MORE_ROUNDS = "give more --rounds"  # `warnings_of` says it otherwise for commands that have no such option

Cases: TypeAlias = Mapping[str, Sequence[Record]]  # by key


@dataclass(frozen=True)
class RunWarning:
    """One reason not to believe a figure; `cases` are the labels of those concerned, none where all are."""

    kind: str
    said: str
    cases: list[str] = field(default_factory=list)

    @property
    def sentence(self) -> str:
        """The warning in one line."""
        if not self.cases:
            return self.said
        more = len(self.cases) - MOST_NAMED
        named = "; ".join(self.cases[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        return f"{named}: {self.said}"


Check: TypeAlias = Callable[[Cases], "RunWarning | None"]


def warm(groups: Cases) -> Cases:
    """Those that were read out of memory."""
    return {key: rounds for key, rounds in groups.items() if rounds[0].cache.mode == "warm"}
