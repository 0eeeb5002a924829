"""Position in an epoch in terms of its global order, from which any number of ranks can resume."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np

from iobench.base.errors import InvalidSettings
from iobench.formats import Index, Rows
from iobench.loading.number_limits import check_setting
from iobench.loading.order import Order

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class EpochPosition:
    """The part of an epoch that remains, the same on every rank.

    Attributes
    ----------
    epoch : int
        The epoch's number.
    remaining : tuple of (int, int)
        Ascending ranges of positions in the epoch's order. In random order they are one range.
    ranks, window_rows : int
        World size and samples per window with which the epoch began: they determine block order.
    """

    epoch: int
    remaining: Ranges
    ranks: int
    window_rows: int

    @classmethod
    def start(cls, order: Order, samples: int, epoch: int) -> EpochPosition:
        """Return the start of an epoch."""
        return cls(epoch, ((0, samples),), order.world_size, order.window_batches * order.batch_size)

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
                kind="invalid-state",
                expected=f"an epoch and what remains of {samples} samples",
                found=f"epoch {state.get('epoch')!r}, remaining {state.get('remaining')!r}, "
                f"ranks {state.get('ranks')!r}, window_rows {state.get('window_rows')!r}",
            )
        return cls(state["epoch"], remaining, ranks, window_rows)

    @property
    def size(self) -> int:
        """Number of samples that remain."""
        return sum(high - low for low, high in self.remaining)

    def length(self, order: Order) -> int:
        """Return the number of remaining batches of each rank; InvalidSettings if they cannot be equal."""
        if order.drop_last and self.size < order.world_size:
            return 0
        try:
            return order.length(self.size)
        except InvalidSettings as error:
            raise error.changed(hint="resume with another batch size or number of ranks") from error

    def after(self, order: Order, batches: int) -> EpochPosition:
        """Return the position after each rank consumed this number of batches."""
        if not batches:
            return self
        if batches >= self.length(order):
            return replace(self, remaining=())
        ranks = [replace(order, rank=rank) for rank in range(order.world_size)]
        if order.kind == "random":
            consumed = sum(one.edge(self.size, batches) for one in ranks)
            ((low, high),) = self.remaining
            return replace(self, remaining=((low + consumed, high),))
        shares = [(one.share(self.size), one.edge(self.size, batches)) for one in ranks]
        left = [self.ranges(low + edge, high) for (low, high), edge in shares]
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
        self._samples, self._position, self._count = samples, position, position.length(order)
        self._order = order
        self._drawn = (-1, -1), np.empty(0, np.int64)  # rank and number of a window of block order, its rows
        if order.kind == "random" and position.remaining:
            # a position belongs to the rank that it has in a whole epoch
            begin = position.remaining[0][0]
            first = (order.rank - begin) % order.world_size
            self._first = (begin + first) // order.world_size
            self._share = replace(order, rank=first)
        else:
            self._first, end = order.share(position.size)
            self._whole = len(position.ranges(self._first, end)) == 1
            self._share = order

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Rows: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Rows]: ...
    def __getitem__(self, index: int | slice) -> Rows | Sequence[Rows]:
        """Return a batch, or several."""
        if isinstance(index, slice):
            return [self[number] for number in range(self._count)[index]]
        number, size = range(self._count)[index], self._position.size
        low, high = (self._first + self._share.edge(size, edge) for edge in (number, number + 1))
        if self._order.kind == "random":
            return self._order.rows(self._samples, self._position.epoch, low, high)
        ranges = self._position.ranges(low, high)
        if self._order.kind == "sequential" and self._whole:
            return slice(*ranges[0])
        parts = [part for one in ranges for part in self._rows(*one)]
        return np.concatenate(parts)

    def _rows(self, low: int, high: int) -> Iterable[Index]:
        """Yield the rows at a range of positions."""
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


def _merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    merged: list[tuple[int, int]] = []
    for low, high in ranges:
        if merged and merged[-1][1] == low:
            low = merged.pop()[0]
        merged.append((low, high))
    return tuple(merged)
