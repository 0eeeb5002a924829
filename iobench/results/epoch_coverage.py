"""Share of an epoch that the rounds of a case have read together, where each is a part of one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from iobench.results.record import Record

Part = tuple[int, int]  # its first batch, and the one after its last


def covered_share(rounds: Sequence[Record]) -> float | None:
    """Return the share of an epoch's samples that came in at least one round.

    Of parts in stored order it is exact. Parts of other orders are drawn from the whole dataset,
    independently of each other: what several of them have in common is an expectation. None where a round
    is no part, or begins at the head of an order that the loader chooses.
    """
    parts: dict[tuple[int, int], Part] = {}  # runs with one seed read the same rows
    for record in rounds:
        partial = record.timing.partial
        if partial is None or partial.starts is None or partial.epoch_batches is None:
            return None
        length = partial.epoch_batches
        count = partial.batches // len(partial.starts)
        for number, start in enumerate(partial.starts):
            known = parts.get((record.round, number), (start, start))
            parts[record.round, number] = start, max(known[1], start + count)
    if rounds[0].case["order"] == "sequential":
        return sum(high - low for low, high in _united(parts.values())) / length
    return 1 - math.prod(1 - (high - low) / length for low, high in parts.values())


def _united(parts: Iterable[Part]) -> Iterator[Part]:
    """Yield parts that cover the same batches without overlap."""
    end = 0
    for low, high in sorted(parts):
        if high > end:
            yield max(low, end), high
            end = high
