"""Order of the rows in an epoch's batches: the same for every case, on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from iobench.base.errors import InvalidSettings
from iobench.formats import Index, Rows, Schema
from iobench.loading.draws import Draw, PermutedRows, ShuffledBlocks, StoredRows, WindowedRows
from iobench.loading.shuffle_quality import shuffle_quality

ORDERS = ("sequential", "random", "block")
FIRST_ROWS, PIECE_ROWS = 1 << 10, 1 << 16  # drawn in 0.1 ms, so that an epoch begins at once, and in 1 ms
DRAWN_ROWS = 8 << 20  # at most drawn before an epoch is read
QUALITY_BATCHES = 100  # spread over an epoch


@dataclass(frozen=True)
class Order:
    """Order of an epoch's samples, their distribution to ranks, and their division into batches.

    `sequential` is the stored order. `random` is one permutation of all samples. `block` puts blocks of
    `block_rows` consecutive samples into random order and shuffles the samples within every
    `window_batches` batches, so that whole blocks are read from disk.

    Over all ranks each sample comes exactly once, except those dropped by `drop_last`. All ranks have the
    same number of batches, and their numbers of samples differ by at most one. Permutations are keyed by
    (seed, epoch), and take no memory.
    """

    kind: str = "sequential"
    batch_size: int = 256
    seed: int = 0
    block_rows: int = 1
    window_batches: int = 1
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise InvalidSettings(
                "rank", kind="invalid-rank", expected=f"0 to {self.world_size - 1}", found=self.rank
            )

    def length(self, samples: int) -> int:
        """Return the number of batches in an epoch of this rank.

        Raises InvalidSettings if the ranks cannot have the same number of batches.
        """
        least, most = samples // self.world_size, -(-samples // self.world_size)
        if self.drop_last and least:
            return least // self.batch_size
        count = -(-most // self.batch_size)
        if count > least:
            raise InvalidSettings(
                f"{samples} samples cannot be split into the same number of batches of {self.batch_size} "
                f"for each of {self.world_size} ranks",
                kind="uneven-batches",
                hint="use drop_last" if least else "use fewer ranks",
            )
        return count

    def batches(self, samples: int, epoch: int) -> Batches:
        """Return this rank's batches of an epoch: slices if the order is sequential, else int64 arrays."""
        return Batches(self, samples, epoch, range(self.length(samples)))

    def part(self, length: int, epoch: int, count: int) -> slice:
        """Return which `count` of an epoch's batches, `length` in all, represent the epoch.

        Sequential order begins at a place of its own in each epoch. The first batches of the other orders
        are drawn from the whole dataset.
        """
        start = 0
        if self.kind == "sequential":
            start = int(np.random.default_rng([self.seed, epoch]).integers(length - count + 1))
        return slice(start, start + count)

    def whole_windows(self, batches: int) -> int:
        """Return this number of batches, in block order rounded up to whole windows."""
        window = self.window_batches if self.kind == "block" else 1
        return -(-batches // window) * window

    def rows(self, samples: int, epoch: int, low: int, high: int) -> Rows:
        """Return the rows at positions `low` to `high` of this rank's epoch, without drawing the others."""
        return self.draw(samples, epoch)(low, high)

    def draw(self, samples: int, epoch: int) -> Draw:
        """Return a function from two positions of this rank's epoch to the rows between them."""
        share = self.share(samples)
        if self.kind == "sequential":
            return StoredRows(share[0])
        if self.kind == "random":
            return PermutedRows(samples, self.seed, epoch, self.rank, self.world_size)
        blocks = ShuffledBlocks(samples, self.block_rows, self.seed, epoch)
        return WindowedRows(blocks, share, self._window, self.seed, epoch, self.rank)

    def shuffle_quality(self, samples: int) -> float:
        """Return the shuffle quality of this rank's epochs, estimated from some batches."""
        batches = self.batches(samples, 0)
        return shuffle_quality(batches[:: max(1, len(batches) // QUALITY_BATCHES)], self.block_rows, samples)

    @property
    def _window(self) -> int:
        return self.window_batches * self.batch_size

    def share(self, samples: int) -> tuple[int, int]:
        """Return start and end of this rank's samples, for an order in which they are consecutive."""
        each, more = divmod(samples, self.world_size)
        start = self.rank * each + min(self.rank, more)
        return start, start + each + (self.rank < more)

    def edge(self, samples: int, number: int) -> int:
        """Return the position at which batch `number` of this rank begins."""
        start, stop = self.share(samples)
        last = number == self.length(samples) - 1
        if last and number * self.batch_size == stop - start:
            return stop - start - 1  # another rank has one more sample, and so one more batch
        return min(number * self.batch_size, stop - start)


class Batches(Sequence[Rows]):
    """Batches of an epoch, drawn when they are read, in pieces of FIRST_ROWS to PIECE_ROWS rows.

    Each piece is four times as long as the one before. Adjacent batches of a piece are views of one array.
    Several threads may read the batches, each at its own place.

    Parameters
    ----------
    order : Order
        Order of the epoch.
    samples, epoch : int
        Number of samples in the dataset, and the epoch's number.
    numbers : range
        Numbers of the batches in the epoch.
    """

    def __init__(self, order: Order, samples: int, epoch: int, numbers: range) -> None:
        self._order, self._samples, self._epoch, self._numbers = order, samples, epoch, numbers
        self._rows = order.draw(samples, epoch)
        self._piece = 0, np.empty(0, np.int64)  # position of its first row, and its rows

    @property
    def samples(self) -> int:
        """Number of samples in all batches."""
        numbers = self._numbers
        if not self.are_adjacent:
            return sum(self._edge(one + 1) - self._edge(one) for one in numbers)
        return self._edge(numbers.stop) - self._edge(numbers.start)

    def draw(self) -> None:
        """Draw the first piece now, as long as a piece can be."""
        if self._numbers and self._order.kind != "sequential":
            self._piece = self._drawn(self._numbers[0], DRAWN_ROWS)

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> Rows: ...
    @overload
    def __getitem__(self, index: slice) -> Batches: ...
    def __getitem__(self, index: int | slice) -> Rows | Batches:
        """Return a batch, or several of them that are not drawn yet."""
        if isinstance(index, slice):
            numbers = self._numbers[index]
            return (
                self
                if numbers == self._numbers
                else Batches(self._order, self._samples, self._epoch, numbers)
            )
        number = self._numbers[index]
        return self._between(number, number + 1)

    def joined(self, first: int, last: int) -> tuple[Rows, list[int]]:
        """Return the rows of batches `first` to `last` - 1 in one piece, and the samples of each batch.

        The batches must be adjacent in the epoch.
        """
        numbers = self._numbers[first:last]
        sizes = [self._order.batch_size] * len(numbers)
        sizes[-1] = self._edge(numbers.stop) - self._edge(numbers.stop - 1)  # the epoch's last may be smaller
        return self._between(numbers.start, numbers.stop), sizes

    def _between(self, first: int, last: int) -> Rows:
        """Return the rows of the epoch's batches `first` to `last` - 1, from a piece that is kept."""
        low, high = self._edge(first), self._edge(last)
        if self._order.kind == "sequential":
            return self._rows(low, high)
        start, piece = self._piece  # at once: another thread may replace it
        if not start <= low <= high <= start + len(piece):
            rows = max(high - low, min(PIECE_ROWS, max(FIRST_ROWS, 4 * len(piece))))
            self._piece = start, piece = self._drawn(first, rows)
        return piece[low - start : high - start]

    def _drawn(self, number: int, rows: int) -> tuple[int, Index]:
        """Return the piece of so many rows, in whole batches, that begins with a batch."""
        count = max(1, -(-rows // self._order.batch_size)) if self.are_adjacent else 1
        low, high = self._edge(number), self._edge(min(number + count, self._numbers[-1] + 1))
        piece = self._rows(low, high)
        assert not isinstance(piece, slice)
        return low, piece

    @property
    def are_adjacent(self) -> bool:
        """True if each batch follows the one before in the epoch."""
        return self._numbers.step == 1

    def _edge(self, number: int) -> int:
        return self._order.edge(self._samples, number)


def refuse_ragged(schema: Schema, what: str, hint: str = "use loader stream, native or dataloader") -> None:
    """Raise InvalidSettings for samples that differ in length, which `what` does not support."""
    for field in schema.ragged:
        raise InvalidSettings(
            f"{what} does not support samples that differ in length",
            kind="ragged",
            expected="fields of fixed shape",
            found=field.typed,
            hint=hint,
        )


def row_count(rows: Rows) -> int:
    """Return the number of samples in a batch."""
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)


def sample_count(batches: Sequence[Rows]) -> int:
    """Return the number of samples in batches, without drawing them."""
    return batches.samples if isinstance(batches, Batches) else sum(map(row_count, batches))
