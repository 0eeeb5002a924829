"""Hostile source files: each must be read or end with one error line."""

from __future__ import annotations

from collections.abc import Iterator

from eval.faults.children import run_forked
from eval.faults.registry import Outcome, Trials, kind, module_of_tests

PER_CHILD = 20


@kind("hostile-sources")
def sources(trials: Trials) -> Iterator[Outcome]:
    """Give `prepare --source` the files of the tests, from other seeds."""
    hostile_sources = module_of_tests("hostile_sources")
    every = list(hostile_sources.MAKERS)
    trials.rng.shuffle(every)
    count = len(trials.numbers(full=200, quick=20))
    for first in range(0, count, PER_CHILD):
        makers = [every[number % len(every)] for number in range(first, min(first + PER_CHILD, count))]
        seed = trials.rng.randrange(1 << 30)

        def attack(makers: list[object] = makers, seed: int = seed) -> None:
            _, bad = hostile_sources.attack(seed, len(makers), makers)
            assert not bad, "\n".join(bad)

        result = run_forked(attack)
        problem = None if result.code == 0 else f"exit {result.code}: {result.output}"
        yield f"sources of seed {seed}", problem
        yield from ((f"in the same child: {maker.__name__}", None) for maker in makers[1:])
