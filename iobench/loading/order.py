"""Which rows make up each batch of an epoch: the same for every case, on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from iobench.base.errors import (
    InvalidSettings,
)
from iobench.formats import Rows, Schema

ORDERS = ("sequential", "random", "block")
BLOCK_BYTES, WINDOW_BYTES = 1 << 20, 64 << 20

# the least and the most of each number that a user gives
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
    """InvalidSettings, one line that names it, where this is not a whole number from `least` to `most`."""
    if type(value) is not int:
        raise InvalidSettings(f"{name} {value!r} is not a whole number")
    if value < least:
        raise InvalidSettings(f"{name} {value} is below {least}")
    if value > most:
        raise InvalidSettings(f"{name} {value} is above {most}, the most there can be")


def check_setting(name: str, value: object) -> None:
    """InvalidSettings where a number that a user gives is none, or is beyond its LIMITS."""
    check_number(name, value, *LIMITS[name])


@dataclass(frozen=True)
class Batching:
    """How a user wants samples put in order and cut into batches; InvalidSettings where that cannot be.

    `order`: one of ORDERS. `block_bytes`, `window_bytes`: sizes of the blocks and the windows of
    order "block"; the others have no use for them.
    """

    order: str = "sequential"
    batch_size: int = 256
    seed: int = 0
    block_bytes: int = BLOCK_BYTES
    window_bytes: int = WINDOW_BYTES
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise InvalidSettings(f"order {self.order!r} is not one of {', '.join(ORDERS)}")
        for name in ("batch_size", "seed", "block_bytes", "window_bytes"):
            check_setting(name, getattr(self, name))

    def row_order(self, schema: Schema, rank: int = 0, world_size: int = 1) -> Order:
        """The rows of each batch of a rank, over samples such as these; InvalidSettings for no such rank."""
        blocks = blocks_of(schema, self.batch_size, self.block_bytes, self.window_bytes)
        return Order(self.order, self.batch_size, self.seed, *blocks, rank, world_size, self.drop_last)


@dataclass(frozen=True)
class Order:
    """How the samples of an epoch are put in order, dealt out to ranks and cut into batches.

    `sequential`: as they are stored. `random`: one permutation of all samples. `block`: blocks of
    `block_rows` consecutive samples in random order, and the samples of every `window_batches`
    batches shuffled among each other, so that a disk is asked for whole blocks.

    Over all ranks every sample comes exactly once (save what `drop_last` leaves out), each rank
    has the same number of batches, and the ranks' numbers of samples differ by one at most.
    Permutations are drawn by PCG64 from (seed, epoch).
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
            raise InvalidSettings(f"rank {self.rank} is not in 0..{self.world_size - 1}")

    def length(self, samples: int) -> int:
        """Batches in an epoch of this rank; InvalidSettings where ranks cannot have equally many."""
        least, most = samples // self.world_size, -(-samples // self.world_size)
        if self.drop_last and least:
            return least // self.batch_size
        count = -(-most // self.batch_size)
        if count > least:
            advice = "use drop_last" if least else "use fewer ranks"
            raise InvalidSettings(
                f"{samples} samples cannot be dealt out to {self.world_size} ranks "
                f"in equally many batches of {self.batch_size}; {advice}"
            )
        return count

    def batches(self, samples: int, epoch: int) -> list[Rows]:
        """One epoch's batches of this rank: slices where the order is sequential, else int64 rows."""
        edges = self._edges(samples)
        if self.kind == "sequential":
            start, _ = self._share(samples)
            return [slice(start + low, start + high) for low, high in edges]
        rows = self._rows(samples, epoch)
        return [rows[low:high] for low, high in edges]

    def _share(self, samples: int) -> tuple[int, int]:
        """Where this rank's samples begin and end, as far as they are consecutive."""
        each, more = divmod(samples, self.world_size)
        start = self.rank * each + min(self.rank, more)
        return start, start + each + (self.rank < more)

    def _edges(self, samples: int) -> list[tuple[int, int]]:
        count = self.length(samples)
        start, stop = self._share(samples)
        edges = [min(number * self.batch_size, stop - start) for number in range(count + 1)]
        if count and edges[-2] == edges[-1]:  # another rank has one sample more, and a batch for it
            edges[-2] -= 1
        return [(edges[i], edges[i + 1]) for i in range(count)]

    def _rows(self, samples: int, epoch: int) -> Index:
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, epoch])))
        if self.kind == "random":
            start, stop = self._share(samples)
            # 32 bits halve the time of the shuffle, whose draws they do not change
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
    """How many samples a batch of these rows has."""
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)


def blocks_of(schema: Schema, batch_size: int, block_bytes: int, window_bytes: int) -> tuple[int, int]:
    """Samples in a block and batches in a window of these sizes, at least one of each."""
    block_rows = schema.batch_rows(block_bytes)
    return block_rows, max(1, window_bytes // (batch_size * schema.sample_bytes))


def shuffle_quality(batches: Sequence[Rows], block_rows: int, samples: int) -> float:
    """How random batches are, from 0 (a batch is one block) to about 1 (as a full shuffle).

    The mean effective size of a batch if all samples of a block were alike, n² / Σ m² for m
    samples of each block (Kish 1965), over the same for a permutation of all samples.
    """
    found = expected = 0.0
    sizes = np.bincount(np.arange(samples) // block_rows).astype(np.float64)
    alike = float((sizes * (sizes - 1)).sum()) / max(1, samples * (samples - 1))
    for rows in batches:
        index = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        members = np.unique(index // block_rows, return_counts=True)[1].astype(np.float64)
        count = len(index)
        found += count**2 / float((members**2).sum())
        expected += count**2 / (count + count * (count - 1) * alike)
    return found / expected if expected else 1.0
