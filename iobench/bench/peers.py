"""The other ranks of a case, as a rank sees them that proves or measures its own share."""

from __future__ import annotations

from typing import Protocol, TypeVar

T = TypeVar("T")


class Peers(Protocol):
    """Whoever proves and measures the same case at the same time, each its share of the samples.

    Every rank makes the same calls in the same order. A IobenchError where one of them has failed meanwhile.
    """

    rank: int
    count: int

    def ready(self) -> None:
        """Return when all ranks have come here, and at the same moment for all, as far as that can be had."""

    def gathered(self, value: T) -> list[T]:
        """The values of all ranks, by rank."""


class Nobody:
    """One process alone."""

    rank = 0
    count = 1

    def ready(self) -> None:
        """Nobody is waited for."""

    def gathered(self, value: T) -> list[T]:
        """The own value."""
        return [value]
