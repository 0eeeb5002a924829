"""Rows of a rank's epoch between any two positions, drawn without the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from iobench.formats import Index, Rows
from iobench.loading.permutation import KeyedPermutation

Draw: TypeAlias = Callable[[int, int], Rows]  # the rows from one position of an epoch to another


@dataclass(frozen=True)
class StoredRows:
    """Rows in stored order, from row `start` on."""

    start: int

    def __call__(self, low: int, high: int) -> slice:
        """Return the rows at positions `low` to `high`."""
        return slice(self.start + low, self.start + high)


class PermutedRows:
    """A rank's share of one permutation of all samples."""

    def __init__(self, samples: int, seed: int, epoch: int, rank: int, world_size: int) -> None:
        self._every, self._rank, self._world_size = KeyedPermutation(samples, seed, epoch), rank, world_size

    def __call__(self, low: int, high: int) -> Index:
        """Return the rows at positions `low` to `high`."""
        return self._every(np.arange(low, high) * self._world_size + self._rank)


class WindowedRows:
    """Blocks of consecutive rows in random order, whose rows are shuffled within windows of a rank.

    The shuffle of the last window is kept: the next rows are mostly of it, too. Several threads may draw.
    """

    def __init__(self, blocks: ShuffledBlocks, share: tuple[int, int], window: int, *key: int) -> None:
        self._blocks, self._share, self._window, self._key = blocks, share, window, key
        self._last = -1, np.empty(0, np.int64)  # number of a window, and its shuffle

    def __call__(self, low: int, high: int) -> Index:
        """Return the rows at positions `low` to `high`."""
        parts = [np.empty(0, np.int64)]
        for number in range(low // self._window, -(-high // self._window)):
            begin = number * self._window
            within = self._shuffle(number)[max(low - begin, 0) : high - begin]
            parts.append(self._blocks.rows(self._share[0] + begin + within))
        return np.concatenate(parts)

    def _shuffle(self, number: int) -> Index:
        known, shuffled = self._last  # at once: another thread may replace it
        if known != number:
            start, stop = self._share
            size = min(self._window, stop - start - number * self._window)
            shuffled = np.random.default_rng([*self._key, number]).permutation(size)
            self._last = number, shuffled
        return shuffled


class ShuffledBlocks:
    """All rows, in blocks of consecutive rows that come in random order."""

    def __init__(self, samples: int, block_rows: int, seed: int, epoch: int) -> None:
        whole, self._rest = divmod(samples, block_rows)
        self._order, self._block_rows = KeyedPermutation(whole, seed, epoch), block_rows
        # the last block, if it is smaller, comes after so many whole ones
        self._before = int(np.random.default_rng([seed, epoch]).integers(whole + 1)) * block_rows

    def rows(self, positions: Index) -> Index:
        """Return the rows at these positions."""
        if not self._order.size:
            return positions
        after = positions >= self._before + self._rest
        smaller = (positions >= self._before) & ~after
        block, within = np.divmod(np.where(smaller, 0, positions - after * self._rest), self._block_rows)
        rows: Index = self._images(block) * self._block_rows + within
        return np.where(smaller, self._order.size * self._block_rows + positions - self._before, rows)

    def _images(self, blocks: Index) -> Index:
        """Return the images of blocks, each computed once if they are close together."""
        low, high = (int(blocks.min()), int(blocks.max())) if len(blocks) else (0, 0)
        if high - low >= len(blocks):
            return self._order(blocks)
        images: Index = np.take(self._order(np.arange(low, high + 1)), blocks - low)
        return images
