"""Registry of the kinds of faults.

A kind is a generator that injects faults and yields the description and the failure of each:

    @kind("pages-damaged")
    def pages_damaged(trials: Trials) -> Iterator[Outcome]:
        for number in trials.numbers(full=500, quick=40):
            yield f"page {number}", None  # or a description of the failure

Every module of `kinds` is imported.
"""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

TESTS = Path(__file__).parents[3] / "tests"
T = TypeVar("T")
Outcome: TypeAlias = "tuple[str, str | None]"  # the fault, and its failure if there is one


@dataclass
class Trials:
    """Inputs of a kind: an empty folder, a random generator, and whether to be quick."""

    folder: Path
    rng: random.Random
    quick: bool

    def numbers(self, full: int, quick: int) -> range:
        """Return the numbers of the trials."""
        return range(quick if self.quick else full)

    def sample(self, everything: Sequence[T], quick: int) -> Sequence[T]:
        """Return everything, or a random sample in quick mode."""
        return self.rng.sample(everything, min(quick, len(everything))) if self.quick else everything


Inject: TypeAlias = Callable[[Trials], Iterator[Outcome]]
KINDS: dict[str, Inject] = {}


def kind(name: str) -> Callable[[Inject], Inject]:
    """Register the decorated generator as a kind."""

    def declare(inject: Inject) -> Inject:
        assert name not in KINDS, name
        KINDS[name] = inject
        return inject

    return declare


def module_of_tests(name: str) -> Any:
    """Import a module of the tests."""
    sys.path += [str(folder) for folder in (TESTS, TESTS / "faults") if str(folder) not in sys.path]
    return importlib.import_module(name)
