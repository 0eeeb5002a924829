"""Order of the rows in an epoch's batches, the same on every machine, and how well it shuffles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise
from typing import TypeAlias, overload

import numpy as np

from iobench.base.errors import InvalidSettings
from iobench.formats import Index, Rows, Schema, index_of
from iobench.loading.division import EvenDivision, TokenBudget, TokenDivision
from iobench.loading.draws import (
    Draw,
    KeyedPermutation,
    ShuffledBlocks,
    WindowedRows,
    permuted_rows,
    stored_rows,
)

ORDERS = ("sequential", "random", "block")
FIRST_ROWS, PIECE_ROWS = 1 << 10, 1 << 16  # drawn in 0.1 ms, so that an epoch begins at once, and in 1 ms
QUALITY_BATCHES = 100  # spread over an epoch

Division: TypeAlias = EvenDivision | TokenDivision


@dataclass(frozen=True)
class Order:
    """Order of an epoch's samples, their distribution to ranks, and their division into batches.

    `sequential` is the stored order. `random` is one permutation of all samples. `block` puts blocks of
    `block_rows` consecutive samples into random order and shuffles the samples within every
    `window_batches` batches, so that whole blocks are read from disk.

    Over all ranks each sample comes exactly once, except those dropped by `drop_last`. All ranks have the
    same number of batches, and their numbers of samples differ by at most one. With a `budget` they take
    turns at the batches of one order instead, and `batch_size` is about the mean. Permutations are keyed by
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
    budget: TokenBudget | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise InvalidSettings(
                "rank", kind="invalid-rank", expected=f"0 to {self.world_size - 1}", found=self.rank
            )

    def length(self, samples: int, epoch: int) -> int:
        """Return the number of batches in an epoch of this rank; only with a budget epochs differ in it.

        Raises InvalidSettings if the ranks cannot have the same number of batches.
        """
        return len(self.division(samples, epoch).numbers)

    def division(self, samples: int, epoch: int) -> Division:
        """Return the division of an epoch into batches; raises InvalidSettings as `length`."""
        if self.budget is not None:
            return self.by_tokens(_token_edges(replace(self, rank=0), samples, epoch))
        return self.even_division(samples)

    def even_division(self, samples: int) -> EvenDivision:
        """Return the division of so many samples, over all ranks, into batches of the same size."""
        start, stop = self.share(samples)
        return EvenDivision.of(samples, self.batch_size, self.world_size, stop - start, self.drop_last)

    def by_tokens(self, edges: Index) -> TokenDivision:
        """Return the division at these edges, of which this rank has every `world_size`-th batch."""
        return TokenDivision(edges, range(self.rank, len(edges) - 1, self.world_size))

    @property
    def over_all_ranks(self) -> Order:
        """The order that a single rank would have."""
        return replace(self, rank=0, world_size=1)

    def batches(self, samples: int, epoch: int) -> Batches:
        """Return this rank's batches of an epoch: slices if the order is sequential, else int64 arrays."""
        division = self.division(samples, epoch)
        return Batches(self, division, self.draw(samples, epoch), division.numbers)

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
        """Return a function from two positions of this rank's epoch to the rows between them.

        With a budget they are positions of the epoch over all ranks.
        """
        if self.budget is not None and self.world_size > 1:
            return self.over_all_ranks.draw(samples, epoch)
        share = self.share(samples)
        if self.kind == "sequential":
            return partial(stored_rows, share[0])
        if self.kind == "random":
            every = KeyedPermutation(samples, self.seed, epoch)
            return partial(permuted_rows, every, self.rank, self.world_size)
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


@lru_cache(maxsize=4)
def _token_edges(order: Order, samples: int, epoch: int) -> Index:
    assert order.budget is not None
    draw = order.draw(samples, epoch)
    return order.budget.edges(draw, samples, order.world_size, order.drop_last)


class Batches(Sequence[Rows]):
    """Batches of an epoch, drawn when they are read, in pieces of FIRST_ROWS to PIECE_ROWS rows.

    Each piece is four times as long as the one before. Adjacent batches of a piece are views of one array.
    Several threads may read the batches, each at its own place.

    Parameters
    ----------
    order : Order
        Order of the epoch.
    division : Division
        Where the epoch's batches begin.
    draw : Draw
        The epoch's rows.
    numbers : range
        Numbers of the batches in the division.
    """

    def __init__(self, order: Order, division: Division, draw: Draw, numbers: range) -> None:
        self._order, self._edge, self._numbers = order, division.edge, numbers
        self._division, self._rows = division, draw
        self._piece = 0, np.empty(0, np.int64)  # position of its first row, and its rows

    @property
    def samples(self) -> int:
        """Number of samples in all batches."""
        numbers = self._numbers
        if not self.are_adjacent:
            return sum(self._edge(one + 1) - self._edge(one) for one in numbers)
        return self._edge(numbers.stop) - self._edge(numbers.start)

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[Rows]:
        for number in self._numbers:
            yield self._between(number, number + 1)

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
                else Batches(self._order, self._division, self._rows, numbers)
            )
        number = self._numbers[index]
        return self._between(number, number + 1)

    def joined(self, first: int, last: int) -> tuple[Rows, list[int]]:
        """Return the rows of batches `first` to `last` - 1 in one piece, and the samples of each batch.

        The batches must be adjacent in the epoch.
        """
        numbers = self._numbers[first:last]
        edges = [self._edge(number) for number in range(numbers.start, numbers.stop + 1)]
        sizes = [end - begin for begin, end in pairwise(edges)]
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


def shuffle_quality(batches: Sequence[Rows], block_rows: int, samples: int) -> float:
    """Return the randomness of batches, from 0 (a batch is one block) to about 1 (a full shuffle).

    It is the mean effective sample size of a batch if all samples of a block were equal, n² / Σ m² for m
    samples from each block (Kish 1965), divided by its expectation for a permutation of all samples.

    Parameters
    ----------
    batches : sequence of slices or int64 arrays
        Rows of each batch.
    block_rows : int
        Samples per block.
    samples : int
        Samples in the dataset.
    """
    actual = expected = 0.0
    whole, rest = divmod(samples, block_rows)
    pairs = whole * block_rows * (block_rows - 1) + rest * (rest - 1)  # of samples of one block
    alike = pairs / max(1, samples * (samples - 1))
    for rows in batches:
        index = index_of(rows)
        members = np.unique(index // block_rows, return_counts=True)[1].astype(np.float64)
        count = len(index)
        actual += count**2 / float((members**2).sum())
        expected += count**2 / (count + count * (count - 1) * alike)
    return actual / expected if expected else 1.0
