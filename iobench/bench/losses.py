"""The same rows in the same order must train to the same loss, whatever read them."""

from __future__ import annotations

from collections import Counter

from iobench import formats
from iobench.bench.case import Case
from iobench.bench.outcome import Run
from iobench.results.cases import key_of
from iobench.results.record import Record

ALIKE = ("order", "batch_size", "block_bytes", "window_bytes", "seed", "model", "device", "world_size")


def odd_losses(run: Run, case: Case, made: Record) -> dict[str, str]:
    """What is wrong, by case key, with those whose loss is not that of most others in this round.

    Where no loss has a majority nobody can tell who is right, and all of them are wrong.
    """
    told = {one.key for one in run.cases if not one.loader.own_order}
    losses = {
        key_of(other.case): repr(other.loss)
        for other in run.records
        if other.round == made.round and other.loss is not None and _alike(other, made)
    }
    losses = {key: loss for key, loss in losses.items() if key in told}
    if made.loss is None or len(set(losses.values())) < 2:
        return {}
    (usual, votes), *_ = Counter(losses.values()).most_common(1)
    decided = 2 * votes > len(losses)
    return {
        key: f"its loss in round {made.round} is {loss}, and on the same samples others had "
        f"{_others(losses, loss)}"
        for key, loss in losses.items()
        if not decided or loss != usual
    }


def _alike(one: Record, other: Record) -> bool:
    return _kept(one) == _kept(other) and all(one.case.get(n) == other.case.get(n) for n in ALIKE)


def _kept(record: Record) -> str | None:
    """The variant that a lossy format is: nothing else has the same data."""
    form = formats.parse(str(record.case["format"]))
    return None if form.keeps else form.variant


def _others(losses: dict[str, str], own: str) -> str:
    return " and ".join(sorted(set(losses.values()) - {own}))
