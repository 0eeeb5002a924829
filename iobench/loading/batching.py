"""The user's settings for the order of samples and the size of batches."""

from __future__ import annotations

from dataclasses import dataclass, replace

from iobench.base.errors import InvalidSettings
from iobench.base.options import check_setting
from iobench.dataset.opener import Opener
from iobench.formats import Schema
from iobench.loading.division import TokenBudget
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
    batch_tokens : int, optional
        Most elements of a batch of samples that differ in length, in place of `batch_size`.

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
    batch_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise InvalidSettings(
                "unknown order", kind="unknown-choice", expected=" or ".join(ORDERS), found=repr(self.order)
            )
        for name in ("batch_size", "seed", "block_bytes", "window_bytes"):
            check_setting(name, getattr(self, name))
        if self.batch_tokens is not None:
            check_setting("batch_tokens", self.batch_tokens)

    def mean_batch_size(self, schema: Schema) -> int:
        """Return the samples per batch; with `batch_tokens` about the mean.

        Raises InvalidSettings for `batch_tokens` with samples of one shape.
        """
        if self.batch_tokens is None:
            return self.batch_size
        if not schema.ragged:
            raise InvalidSettings(
                "batch_tokens is for samples that differ in length",
                kind="conflicting-options",
                expected="a field like tokens=uint16[*]",
                found="fields of fixed shape",
                hint="use batch_size",
            )
        most = max(1, *(schema.rows(field) for field in schema.ragged))
        return max(1, min(schema.samples, self.batch_tokens * schema.samples // most))

    def row_order(self, schema: Schema, rank: int = 0, world_size: int = 1) -> Order:
        """Return the order of a rank's rows for samples of this schema, in batches of one size.

        Raises InvalidSettings for a wrong rank.
        """
        size = self.mean_batch_size(schema)
        blocks = blocks_of(schema, size, self.block_bytes, self.window_bytes)
        return Order(self.order, size, self.seed, *blocks, rank, world_size, self.drop_last)

    def order_over(self, opener: Opener, rank: int = 0, world_size: int = 1) -> Order:
        """Return the order of a rank's rows of an artifact, whose lengths are read for `batch_tokens`."""
        order = self.row_order(opener.schema, rank, world_size)
        if self.batch_tokens is None:
            return order
        from iobench.dataset.verify import sample_lengths

        return replace(order, budget=TokenBudget(self.batch_tokens, sample_lengths(opener)))


def blocks_of(schema: Schema, batch_size: int, block_bytes: int, window_bytes: int) -> tuple[int, int]:
    """Return samples per block and batches per window for these sizes in bytes, at least one of each."""
    block_rows = schema.batch_rows(block_bytes)
    return block_rows, max(1, window_bytes // (batch_size * schema.sample_bytes))
