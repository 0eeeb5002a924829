"""Comparison of training losses: the same rows in the same order must give the same loss."""

from __future__ import annotations

from collections import Counter

from iobench import formats
from iobench.base.errors import WrongContent
from iobench.bench.case import Case
from iobench.bench.outcome import Run
from iobench.results.record import Record

COMPARED = ("order", "batch_size", "block_bytes", "window_bytes", "seed", "model", "device", "world_size")


def loss_mismatches(run: Run, case: Case, made: Record) -> dict[str, WrongContent]:
    """Return an error, by case key, for each case whose loss differs from the majority's in this round.

    Without a majority all compared cases are wrong.
    """
    comparable = {one.key for one in run.cases if not one.loader.iterable_style}
    losses = {
        other.settings_key: repr(other.loss)
        for other in run.records
        if other.round == made.round and other.loss is not None and _same_samples(other, made)
    }
    losses = {key: loss for key, loss in losses.items() if key in comparable}
    if made.loss is None or len(set(losses.values())) < 2:
        return {}
    (usual, votes), *_ = Counter(losses.values()).most_common(1)
    decided = 2 * votes > len(losses)
    return {
        key: WrongContent(
            f"loss in round {made.round} differs from other cases' on the same samples",
            kind="loss-mismatch",
            expected=_others(losses, loss),
            found=loss,
        )
        for key, loss in losses.items()
        if not decided or loss != usual
    }


def _same_samples(one: Record, other: Record) -> bool:
    same = all(one.case.get(name) == other.case.get(name) for name in COMPARED)
    return same and _lossy_variant(one) == _lossy_variant(other)


def _lossy_variant(record: Record) -> str | None:
    """Return the variant of a lossy format, whose decoded data no other variant has; else None."""
    form = formats.parse(str(record.case["format"]))
    return None if form.lossless else form.variant


def _others(losses: dict[str, str], own: str) -> str:
    return " and ".join(sorted(set(losses.values()) - {own}))
