"""Output of `iobench tune`."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table

from iobench.base.units import bytes_text, rate_text, seconds_text
from iobench.results.stats import Comparison
from iobench.terminal.tables import plain_table
from iobench.tuning.candidate import HEADROOM

if TYPE_CHECKING:  # they load torch
    from iobench.tuning.candidate import Candidate
    from iobench.tuning.tuning_result import TuningResult


def parts(result: TuningResult) -> Iterator[RenderableType]:
    """Yield the table of settings, the answer with its reasons, and what was not tried."""
    head = {HEADROOM: result.headroom} if result.headroom else {}
    yield candidates_table(result.candidates, {**result.against, **head}, result.use.name)
    yield ""
    yield from (one.sentence for one in result.findings)
    if result.code:
        yield ""
        yield f"  {result.code}"
    if result.skipped:
        yield ""
        yield "Skipped or failed:"
        yield from (f"- {one.sentence}" for one in result.skipped)


def candidates_table(
    candidates: Sequence[Candidate], against: Mapping[str, Comparison], chosen: str = ""
) -> Table:
    """Return the table of settings: speed in the race, and final rounds compared with the baseline."""
    table = plain_table(
        "setting",
        "samples/s",
        "× baseline (race)",
        "× baseline (final rounds)",
        "first batch",
        "memory",
        "",
        left=1,
    )
    base = statistics.median(candidates[0].rates.values()) if candidates[0].rates else 0.0
    for one in candidates:
        if not (one.rates or one.final_rates or one.failure or one.over_limit):
            continue  # no time was left for it: a finding says so
        rate = statistics.median(one.rates.values()) if one.rates else 0.0
        table.add_row(
            f"{one.name} ←" if one.name == chosen else one.name,
            rate_text(one.rate) if one.rate else "",
            f"{rate / base:.2f}" if base and rate else "",
            _times(against.get(one.name)) if one is not candidates[0] else "1",
            seconds_text(statistics.median(one.first_batch_s)) if one.first_batch_s else "",
            bytes_text(one.memory_bytes) if one.memory_bytes else "",
            problem.message if (problem := one.failure or one.over_limit) else "",
        )
    table.columns[-1].justify = "left"
    return table


def _times(comparison: Comparison | None) -> str:
    if comparison is None:
        return ""
    return comparison.ratio.text("{:.2f}".format, ends=" ({}–{})")
