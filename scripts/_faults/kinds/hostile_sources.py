"""Sources made to hurt: refused in one line, or read."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from _faults.children import forked
from _faults.registry import Outcome, Trials, kind

TESTS = Path(__file__).parents[3] / "tests" / "faults"
AT_ONCE = 20


@kind("sources")
def sources(trials: Trials) -> Iterator[Outcome]:
    """What the tests attack `prepare --source` with, from other seeds, some in a child at a time."""
    sys.path.append(str(TESTS))
    import hostile_sources

    every = list(hostile_sources.MAKERS)
    trials.chance.shuffle(every)
    count = len(trials.some(full=200, quick=20))
    for first in range(0, count, AT_ONCE):
        makers = [every[number % len(every)] for number in range(first, min(first + AT_ONCE, count))]
        seed = trials.chance.randrange(1 << 30)

        def attack(makers: list[object] = makers, seed: int = seed) -> None:
            _, bad = hostile_sources.attack(seed, len(makers), makers)
            assert not bad, "\n".join(bad)

        ended = forked(attack)
        problem = None if ended.code == 0 else f"it ended with {ended.code}: {ended.said}"
        yield f"sources of seed {seed}", problem
        yield from ((f"beside it: {maker.__name__}", None) for maker in makers[1:])
