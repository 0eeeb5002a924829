"""Matching of the cases of two sides: equal ones, or else those that are the only ones of their kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from iobench.results import cases
from iobench.results.case_key import Facets
from iobench.results.cases import FACETS
from iobench.results.record import Record

_LOCATION = ("host", "dataset")  # on another machine or dataset a case is still the same choice


@dataclass(frozen=True)
class Side:
    """A case of one side: its facets, its label among the cases of that side, its rounds."""

    facets: Facets
    label: str
    rounds: list[Record]

    @property
    def choices(self) -> dict[str, Any]:
        """The facets that were chosen, without those of the place of measurement."""
        fixed = [name for name, facet in FACETS.items() if facet.fixed]
        return {name: value for name, value in self.facets.items() if name not in (*_LOCATION, *fixed)}


def sides_of(records: Sequence[Record]) -> list[Side]:
    """Return the cases of one side."""
    groups = cases.by_case(records)
    labels = cases.labels_of(groups)
    return [Side(rounds[0].facets, str(labels[key]), rounds) for key, rounds in groups.items()]


def matched(base: list[Side], new: list[Side]) -> tuple[list[tuple[Side, Side]], list[tuple[int, str]]]:
    """Return the pairs of equal cases; for each other case its side (0 is the base) and its label."""
    pairs = []
    base_left, new_left = list(base), list(new)
    for identity in _IDENTITIES:
        for before in list(base_left):
            mine = [other for other in base if identity(other) == identity(before)]
            theirs = [other for other in new if identity(other) == identity(before)]
            if len(mine) == len(theirs) == 1 and theirs[0] in new_left:
                pairs.append((before, theirs[0]))
                base_left.remove(before)
                new_left.remove(theirs[0])
    alone = [(number, side.label) for number, rest in enumerate((base_left, new_left)) for side in rest]
    return pairs, alone


# from the strictest to the loosest: cases match by the first that identifies one case on each side
_IDENTITIES: tuple[Callable[[Side], object], ...] = (
    lambda side: side.facets,
    lambda side: (
        side.choices,
        side.facets.get("cache"),
        side.facets.get("device"),
        side.facets.get("model"),
    ),
    lambda side: side.choices,
    lambda side: (side.facets["format"], side.facets["loader"], side.facets.get("options")),
    lambda side: (side.facets["format"], side.facets["loader"]),
)
