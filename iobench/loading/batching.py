"""The user's settings for the order of samples and the size of batches."""

from __future__ import annotations

from dataclasses import dataclass

from iobench.base.errors import InvalidSettings
from iobench.formats import Schema
from iobench.loading.number_limits import check_setting
from iobench.loading.order import ORDERS, Order

BLOCK_BYTES, WINDOW_BYTES = 1 << 20, 64 << 20


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
        """Return the order of a rank's rows for samples of this schema.

        Raises InvalidSettings for a wrong rank.
        """
        blocks = blocks_of(schema, self.batch_size, self.block_bytes, self.window_bytes)
        return Order(self.order, self.batch_size, self.seed, *blocks, rank, world_size, self.drop_last)


def blocks_of(schema: Schema, batch_size: int, block_bytes: int, window_bytes: int) -> tuple[int, int]:
    """Return samples per block and batches per window for these sizes in bytes, at least one of each."""
    block_rows = schema.batch_rows(block_bytes)
    return block_rows, max(1, window_bytes // (batch_size * schema.sample_bytes))
