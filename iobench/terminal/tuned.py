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
    from iobench.tuning.tuning_result import TuningResult
    from iobench.tuning.candidate import Candidate


def parts(found: TuningResult) -> Iterator[RenderableType]:
    """Yield the table of settings, the answer with its reasons, and what was not tried."""
    head = {HEADROOM: found.headroom} if found.headroom else {}
    yield candidates_table(found.candidates, {**found.against, **head}, found.use.name)
    yield ""
    yield from found.sentences
    if found.code:
        yield ""
        yield f"  {found.code}"
    if found.not_tried:
        yield ""
        yield "Not tried, or none to choose:"
        yield from (f"- {sentence}" for sentence in found.not_tried)


def candidates_table(
    candidates: Sequence[Candidate], against: Mapping[str, Comparison], chosen: str = ""
) -> Table:
    """Settings, how fast they were in the race, and in fresh rounds against the loader as it is."""
    table = plain_table(
        "setting", "samples/s", "race", "× as it is, fresh rounds", "first batch", "memory", "", left=1
    )
    base = statistics.median(candidates[0].rates.values()) if candidates[0].rates else 0.0
    for one in candidates:
        if not (one.rates or one.fresh or one.failed or one.unfit):
            continue  # no time was left for it, which a sentence says
        rate = statistics.median(one.rates.values()) if one.rates else 0.0
        table.add_row(
            f"{one.name} ←" if one.name == chosen else one.name,
            rate_text(one.rate) if one.rate else "",
            f"{rate / base:.2f}" if base and rate else "",
            _times(against.get(one.name)) if one is not candidates[0] else "1",
            seconds_text(statistics.median(one.first_batch_s)) if one.first_batch_s else "",
            bytes_text(one.memory_bytes) if one.memory_bytes else "",
            one.failed or one.unfit or "",
        )
    table.columns[-1].justify = "left"
    return table


def _times(found: Comparison | None) -> str:
    if found is None:
        return ""
    ratio = found.ratio
    if ratio.low is None or ratio.high is None:
        return f"{ratio.median:.2f}"
    return f"{ratio.median:.2f} ({ratio.low:.2f}–{ratio.high:.2f})"
