"""A recommendation → terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table

from iobench.recommendation.answer import Candidate, Recommendation
from iobench.terminal.tables import plain_table
from iobench.units import MIB, rate_text, three_digits


def parts(found: Recommendation) -> Iterator[RenderableType]:
    """The finalists' table, what to use and why, what else there is, and the code to paste."""
    yield _table(found)
    yield ""
    yield from found.sentences
    for sentence in found.else_:
        yield f"- {sentence}"
    if found.not_tried:
        yield ""
        yield "Not tried:"
        yield from (f"- {sentence}" for sentence in found.not_tried)
    yield ""
    if found.prepare:
        yield f"  {found.prepare}"
        yield ""
    for line in found.code.splitlines():
        yield f"  {line}" if line else ""


def _table(found: Recommendation) -> Table:
    waits = ["waiting"] if any(one.waits is not None for one in found.candidates) else []
    table = plain_table("case", "what it is", "MiB/s", "samples/s", "times the default", *waits, left=2)
    for one in found.candidates:
        table.add_row(
            f"{one.label} ←" if one.key == found.use.key else one.label,
            ", ".join(one.roles),
            three_digits(one.bytes_per_s / MIB),
            rate_text(one.samples_per_s.median),
            _times(one),
            *(["" if one.waits is None else f"{one.waits:.1%}"] * len(waits)),
        )
    return table


def _times(one: Candidate) -> str:
    if one.against_default is None:
        return "1" if "default" in one.roles else ""
    ratio = one.against_default.ratio
    if ratio.low is None or ratio.high is None:
        return f"{ratio.median:.2f}"
    return f"{ratio.median:.2f} ({ratio.low:.2f}–{ratio.high:.2f})"
