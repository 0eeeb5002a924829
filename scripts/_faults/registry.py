"""What a kind of fault is, and how one is declared.

A kind is a function that injects faults and says of each what it was and what went wrong:

    @kind("pages-damaged")
    def pages_damaged(trials: Trials) -> Iterator[Outcome]:
        for number in trials.some(full=500, quick=40):
            yield f"page {number}", None  # or a sentence about what is bad

It stands in a module of its own in `kinds`, which is found by itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Outcome: TypeAlias = "tuple[str, str | None]"  # what was injected, and what is bad about what came of it


@dataclass
class Trials:
    """What a kind works with: an empty folder of its own, chance, and whether there is little time."""

    folder: Path
    chance: random.Random
    quick: bool

    def some(self, full: int, quick: int) -> range:
        """The numbers of the trials."""
        return range(quick if self.quick else full)

    def sample(self, everything: Sequence[T], quick: int) -> Sequence[T]:
        """All of it, or as many as there is time for, in an order left to chance."""
        return self.chance.sample(everything, min(quick, len(everything))) if self.quick else everything


@dataclass(frozen=True)
class Kind:
    """A kind of fault by its name."""

    name: str
    tried: Callable[[Trials], Iterator[Outcome]]


KINDS: dict[str, Kind] = {}


def kind(
    name: str,
) -> Callable[[Callable[[Trials], Iterator[Outcome]]], Callable[[Trials], Iterator[Outcome]]]:
    """Declare the decorated function to be the kind of that name."""

    def declare(tried: Callable[[Trials], Iterator[Outcome]]) -> Callable[[Trials], Iterator[Outcome]]:
        assert name not in KINDS, name
        KINDS[name] = Kind(name, tried)
        return tried

    return declare
