"""Division of an epoch's samples into batches: by their number, or by a budget of tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from iobench.base.errors import InvalidSettings
from iobench.formats import Index
from iobench.loading.draws import Draw

PIECE_ROWS = 1 << 20  # drawn at a time


@dataclass(frozen=True)
class EvenDivision:
    """Batches of the same number of samples, but for the last.

    Attributes
    ----------
    samples, batch_size : int
        Samples of this rank's epoch, and of a batch.
    numbers : range
        Numbers of this rank's batches.
    """

    samples: int
    batch_size: int
    numbers: range

    @classmethod
    def of(cls, samples: int, batch_size: int, ranks: int, own: int, drop_last: bool) -> EvenDivision:
        """Divide an epoch of `samples` over all ranks, of which this one has `own`.

        Raises InvalidSettings if the ranks cannot have the same number of batches.
        """
        least, most = samples // ranks, -(-samples // ranks)
        if drop_last and least:
            return cls(own, batch_size, range(least // batch_size))
        count = -(-most // batch_size)
        if count > least:
            raise _uneven(samples, f"batches of {batch_size}", ranks, "drop_last" if least else "fewer ranks")
        return cls(own, batch_size, range(count))

    def edge(self, number: int) -> int:
        """Return the position in this rank's epoch at which batch `number` begins."""
        if number == len(self.numbers) - 1 and number * self.batch_size == self.samples:
            return self.samples - 1  # another rank has one more sample, and so one more batch
        return min(number * self.batch_size, self.samples)


@dataclass(frozen=True, eq=False)
class TokenDivision:
    """Batches of an epoch over all ranks, which take turns.

    Attributes
    ----------
    edges : int64 array
        Positions at which batches begin, and the end of the last.
    numbers : range
        Numbers of this rank's batches.
    """

    edges: Index
    numbers: range

    def edge(self, number: int) -> int:
        """Return the position at which batch `number` begins."""
        return int(self.edges[number])


@dataclass(frozen=True, eq=False)
class TokenBudget:
    """Most elements of a batch: it takes samples until the next one would exceed them.

    A sample that is longer than that is a batch of its own.

    Attributes
    ----------
    tokens : int
        Most elements.
    lengths : int64 array
        Length of each sample of the dataset.
    """

    tokens: int
    lengths: Index

    def edges(self, draw: Draw, samples: int, ranks: int, drop_last: bool) -> Index:
        """Return the edges of batches, as many for each rank.

        For that the largest batches are halved, or, with `drop_last`, left out with the last one. Takes 8
        bytes of memory per sample meanwhile. Raises InvalidSettings if there are too few samples for that.

        Parameters
        ----------
        draw : Draw
            The epoch's rows.
        samples : int
            Their number.
        ranks : int
            Number of ranks that take turns.
        drop_last : bool
            Leave out the last batch, which the epoch's end cut off.
        """
        edges = self._greedy(draw, samples)
        batches = len(edges) - 1
        if drop_last:
            return np.array(edges[: max(0, batches - 1) // ranks * ranks + 1])
        if (needed := -(-batches // ranks) * ranks) > samples:
            instead = "drop_last" if samples >= ranks else "fewer ranks"
            raise _uneven(samples, f"batches of {self.tokens} tokens", ranks, instead)
        for _ in range(needed - batches):
            sizes = np.diff(edges)
            largest = int(sizes.argmax())
            edges.insert(largest + 1, edges[largest] + int(sizes[largest]) // 2)
        return np.array(edges)

    def _greedy(self, draw: Draw, samples: int) -> list[int]:
        ends = np.zeros(samples + 1, np.int64)
        for low in range(0, samples, PIECE_ROWS):
            high = min(low + PIECE_ROWS, samples)
            ends[low + 1 : high + 1] = self.lengths[draw(low, high)]
        np.cumsum(ends, out=ends)
        edges = [0]
        while (begin := edges[-1]) < samples:
            within = int(np.searchsorted(ends, ends[begin] + self.tokens, "right")) - 1
            edges.append(max(begin + 1, within))
        return edges


def _uneven(samples: int, batches: str, ranks: int, instead: str) -> InvalidSettings:
    return InvalidSettings(
        f"{samples} samples cannot be split into the same number of {batches} for each of {ranks} ranks",
        kind="uneven-batches",
        hint=f"use {instead}",
    )
