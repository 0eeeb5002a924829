"""Order of the rows in an epoch's batches: the same for every case, on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from iobench.base.errors import InvalidSettings
from iobench.formats import Rows, Schema

ORDERS = ("sequential", "random", "block")
BLOCK_BYTES, WINDOW_BYTES = 1 << 20, 64 << 20

# minimum and maximum of each number that a user gives
LIMITS = {
    "batch_size": (1, 1 << 40),
    "block_bytes": (1, 1 << 40),
    "window_bytes": (1, 1 << 40),
    "seed": (0, (1 << 63) - 1),  # torch takes no more
    "epoch": (0, (1 << 63) - 1),
    "threads": (1, 1024),
}

Index = npt.NDArray[np.int64]


def check_number(name: str, value: object, least: int, most: int) -> None:
    """Raise InvalidSettings, naming the setting, unless `value` is an int from `least` to `most`."""
    if type(value) is not int:
        raise InvalidSettings(name, kind="not-a-number", expected="an integer", found=repr(value))
    if not least <= value <= most:
        limit = f"at least {least}" if value < least else f"at most {most}"
        raise InvalidSettings(name, kind="out-of-range", expected=limit, found=value)


def check_setting(name: str, value: object) -> None:
    """Raise InvalidSettings unless a number that a user gives is an int within its LIMITS."""
    check_number(name, value, *LIMITS[name])


@dataclass(frozen=True)
class Batching:
    """The user's settings for the order of samples and the size of batches.

    Parameters
    ----------
    order : str
        One of ORDERS.
    batch_size : int
        Samples per batch.
    seed : int
        Seed of the order.
    block_bytes, window_bytes : int
        Sizes of the blocks and windows of order "block"; the other orders ignore them.
    drop_last : bool
        Drop a last batch that would be smaller.

    Raises
    ------
    InvalidSettings
        If the order is unknown, or a number is out of range.
    """

    order: str = "sequential"
    batch_size: int = 256
    seed: int = 0
    block_bytes: int = BLOCK_BYTES
    window_bytes: int = WINDOW_BYTES
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise InvalidSettings(
                "unknown order", kind="unknown-choice", expected=" or ".join(ORDERS), found=repr(self.order)
            )
        for name in ("batch_size", "seed", "block_bytes", "window_bytes"):
            check_setting(name, getattr(self, name))

    def row_order(self, schema: Schema, rank: int = 0, world_size: int = 1) -> Order:
        """Return the order of a rank's rows for samples of this schema; InvalidSettings for a wrong rank."""
        blocks = blocks_of(schema, self.batch_size, self.block_bytes, self.window_bytes)
        return Order(self.order, self.batch_size, self.seed, *blocks, rank, world_size, self.drop_last)


@dataclass(frozen=True)
class Order:
    """Order of an epoch's samples, their distribution to ranks, and their division into batches.

    `sequential` is the stored order. `random` is one permutation of all samples. `block` puts blocks of
    `block_rows` consecutive samples into random order and shuffles the samples within every
    `window_batches` batches, so that whole blocks are read from disk.

    Over all ranks each sample comes exactly once, except those dropped by `drop_last`. All ranks have the
    same number of batches, and their numbers of samples differ by at most one. Permutations are drawn with
    PCG64 from (seed, epoch).
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

    def batches(self, samples: int, epoch: int) -> list[Rows]:
        """Return this rank's batches of an epoch: slices if the order is sequential, else int64 arrays."""
        edges = self._edges(samples)
        if self.kind == "sequential":
            start, _ = self._share(samples)
            return [slice(start + low, start + high) for low, high in edges]
        rows = self._rows(samples, epoch)
        return [rows[low:high] for low, high in edges]

    def _share(self, samples: int) -> tuple[int, int]:
        """Return start and end of this rank's samples, for an order in which they are consecutive."""
        each, more = divmod(samples, self.world_size)
        start = self.rank * each + min(self.rank, more)
        return start, start + each + (self.rank < more)

    def _edges(self, samples: int) -> list[tuple[int, int]]:
        count = self.length(samples)
        start, stop = self._share(samples)
        edges = [min(number * self.batch_size, stop - start) for number in range(count + 1)]
        if count and edges[-2] == edges[-1]:  # another rank has one more sample, and so one more batch
            edges[-2] -= 1
        return [(edges[i], edges[i + 1]) for i in range(count)]

    def _rows(self, samples: int, epoch: int) -> Index:
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, epoch])))
        if self.kind == "random":
            start, stop = self._share(samples)
            # 32 bits halve the time of the shuffle without changing its result
            every = np.arange(samples, dtype=np.int32 if samples < 2**31 else np.int64)
            generator.shuffle(every)
            return every[self.rank :: self.world_size][: stop - start].astype(np.int64)
        blocks = generator.permutation(-(-samples // self.block_rows)) * self.block_rows
        rows: Index = (blocks[:, None] + np.arange(self.block_rows)).reshape(-1)
        start, stop = self._share(samples)
        rows = rows[rows < samples][start:stop]
        window = self.window_batches * self.batch_size
        own = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, epoch, self.rank])))
        for low in range(0, len(rows), window):
            own.shuffle(rows[low : low + window])
        return rows


def row_count(rows: Rows) -> int:
    """Return the number of samples in a batch."""
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)


def blocks_of(schema: Schema, batch_size: int, block_bytes: int, window_bytes: int) -> tuple[int, int]:
    """Return samples per block and batches per window for these sizes in bytes, at least one of each."""
    block_rows = schema.batch_rows(block_bytes)
    return block_rows, max(1, window_bytes // (batch_size * schema.sample_bytes))


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
    sizes = np.bincount(np.arange(samples) // block_rows).astype(np.float64)
    alike = float((sizes * (sizes - 1)).sum()) / max(1, samples * (samples - 1))
    for rows in batches:
        index = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        members = np.unique(index // block_rows, return_counts=True)[1].astype(np.float64)
        count = len(index)
        actual += count**2 / float((members**2).sum())
        expected += count**2 / (count + count * (count - 1) * alike)
    return actual / expected if expected else 1.0
