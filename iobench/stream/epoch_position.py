"""Position in an epoch in terms of its global order, from which any number of ranks can resume."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, overload

import numpy as np

from iobench.base.errors import InvalidSettings
from iobench.base.options import check_setting
from iobench.formats import Index, Rows
from iobench.loading.division import EvenDivision
from iobench.loading.order import Division, Order

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class EpochPosition:
    """The part of an epoch that remains, the same on every rank.

    `remaining` holds ascending ranges of positions in the epoch's order; in random order they are one range.
    `ranks` and `window_rows` are the world size and the samples per window with which the epoch began: they
    determine block order.
    """

    epoch: int
    remaining: Ranges
    ranks: int
    window_rows: int

    @classmethod
    def start(cls, order: Order, samples: int, epoch: int) -> EpochPosition:
        """Return the start of an epoch."""
        ranks = order.world_size if order.budget is None else 1  # those by which its order is divided
        return cls(epoch, ((0, samples),), ranks, order.window_batches * order.batch_size)

    @classmethod
    def from_state(cls, state: dict[str, Any], order: Order, samples: int) -> EpochPosition:
        """Return the position in a state; InvalidSettings unless it is one of these samples."""
        try:
            check_setting("epoch", state["epoch"])
            remaining = tuple((low, high) for low, high in state["remaining"])
            ranks, window_rows = state["ranks"], state["window_rows"]
            edges = [0, *(edge for one in remaining for edge in one), samples]
            valid = all(type(number) is int for number in (*edges, ranks, window_rows))
            valid = valid and edges == sorted(edges) and 1 <= ranks <= samples and window_rows >= 1
            if order.kind == "random":
                valid = valid and not remaining[:-1] and all(high == samples for _, high in remaining)
        except (KeyError, TypeError, ValueError, InvalidSettings):
            valid = False
        if not valid:
            raise InvalidSettings(
                "the state has an invalid position",
                "invalid-state",
                expected=f"an epoch and what remains of {samples} samples",
                found=f"epoch {state.get('epoch')!r}, remaining {state.get('remaining')!r}, "
                f"ranks {state.get('ranks')!r}, window_rows {state.get('window_rows')!r}",
            )
        return cls(state["epoch"], remaining, ranks, window_rows)

    @property
    def size(self) -> int:
        """Number of samples that remain."""
        return sum(high - low for low, high in self.remaining)

    def division(self, order: Order, samples: int) -> Division:
        """Return the division of what remains; InvalidSettings if the ranks' batches cannot be as many."""
        try:
            if order.drop_last and self.size < order.world_size:
                return EvenDivision(0, order.batch_size, range(0))
            if order.budget is None:
                return order.even_division(self.size)
            return order.by_tokens(_token_edges(replace(order, rank=0), samples, self))
        except InvalidSettings as error:
            raise error.changed(hint="resume with another batch size or number of ranks") from error

    def after(self, order: Order, samples: int, batches: int) -> EpochPosition:
        """Return the position after each rank consumed this number of batches."""
        if not batches:
            return self
        ranks = [replace(order, rank=rank) for rank in range(order.world_size)]
        divisions = [self.division(one, samples) for one in ranks]
        if batches >= len(divisions[0].numbers):
            return replace(self, remaining=())
        if order.budget is not None:
            begin = divisions[0].edge(divisions[0].numbers[batches])
            return replace(self, remaining=tuple(self.ranges(begin, self.size)))
        edges = [one.edge(batches) for one in divisions]
        if order.kind == "random":
            ((low, high),) = self.remaining
            return replace(self, remaining=((low + sum(edges), high),))
        shares = [one.share(self.size) for one in ranks]
        left = [self.ranges(low + edge, high) for (low, high), edge in zip(shares, edges, strict=True)]
        return replace(self, remaining=_merged(one for ranges in left for one in ranges))

    def ranges(self, low: int, high: int) -> list[tuple[int, int]]:
        """Return the positions of the remaining samples number `low` to `high`."""
        result, before = [], 0
        for start, stop in self.remaining:
            first, last = max(low - before, 0), min(high - before, stop - start)
            if first < last:
                result.append((start + first, start + last))
            before += stop - start
        return result


class RemainingBatches(Sequence[Rows]):
    """A rank's batches of what remains of an epoch, drawn when they are read."""

    def __init__(self, order: Order, samples: int, position: EpochPosition) -> None:
        self._rows = RemainingRows(order if order.budget is None else order.over_all_ranks, samples, position)
        own = self._rows.share if order.budget is None else order
        self._division = position.division(own, samples)

    def __len__(self) -> int:
        return len(self._division.numbers)

    @overload
    def __getitem__(self, index: int) -> Rows: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Rows]: ...
    def __getitem__(self, index: int | slice) -> Rows | Sequence[Rows]:
        """Return a batch, or several."""
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        number = self._division.numbers[index]
        return self._rows(self._division.edge(number), self._division.edge(number + 1))


class RemainingRows:
    """Rows between two positions of a rank's share of what remains of an epoch.

    `share` is the order of the rank to which this share would belong in a whole epoch of as many samples.
    """

    def __init__(self, order: Order, samples: int, position: EpochPosition) -> None:
        self._samples, self._position, self._order = samples, position, order
        self._drawn = (-1, -1), np.empty(0, np.int64)  # rank and number of a window of block order, its rows
        if order.kind == "random" and position.remaining:
            # a position belongs to the rank that it has in a whole epoch
            begin = position.remaining[0][0]
            first = (order.rank - begin) % order.world_size
            self._first = (begin + first) // order.world_size
            self.share = replace(order, rank=first)
        else:
            self._first, end = order.share(position.size)
            self._whole = len(position.ranges(self._first, end)) == 1
            self.share = order

    def __call__(self, low: int, high: int) -> Rows:
        """Return the rows at positions `low` to `high`."""
        low, high = self._first + low, self._first + high
        if self._order.kind == "random":
            return self._order.rows(self._samples, self._position.epoch, low, high)
        ranges = self._position.ranges(low, high)
        if self._order.kind == "sequential" and self._whole:
            return slice(*ranges[0])
        parts = [part for one in ranges for part in self._parts(*one)]
        return np.concatenate(parts)

    def _parts(self, low: int, high: int) -> Iterable[Index]:
        if self._order.kind == "sequential":
            yield np.arange(low, high)
            return
        position, size = self._position, self._position.window_rows
        for rank in range(position.ranks):
            one = replace(
                self._order,
                rank=rank,
                world_size=position.ranks,
                batch_size=size,
                window_batches=1,
                budget=None,
            )
            start, stop = one.share(self._samples)
            first, last = max(low, start), min(high, stop)
            for number in range((first - start) // size, -(-(last - start) // size) if first < last else 0):
                begin = start + number * size
                yield self._window(one, number)[max(first - begin, 0) : last - begin]

    def _window(self, one: Order, number: int) -> Index:
        """Return the rows of a window; the last one is kept, because the next batch is mostly of it, too."""
        key, rows = self._drawn  # at once: another thread may replace it
        if key != (one.rank, number):
            (start, stop), low = one.share(self._samples), number * one.batch_size
            high = min(low + one.batch_size, stop - start)
            rows = np.asarray(one.rows(self._samples, self._position.epoch, low, high))
            self._drawn = (one.rank, number), rows
        return rows


@lru_cache(maxsize=4)
def _token_edges(order: Order, samples: int, position: EpochPosition) -> Index:
    """Return the edges of the batches in what remains; the order has the number of ranks alone."""
    assert order.budget is not None
    rows = RemainingRows(order.over_all_ranks, samples, position)
    return order.budget.edges(rows, position.size, order.world_size, order.drop_last)


def _merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    merged: list[tuple[int, int]] = []
    for low, high in ranges:
        if merged and merged[-1][1] == low:
            low = merged.pop()[0]
        merged.append((low, high))
    return tuple(merged)
