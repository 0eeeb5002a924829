"""The page: what it says, in which order, and the file it becomes."""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from iobench.report import charts, figures
from iobench.report.context import Context, about, contexts
from iobench.report.figures import Row
from iobench.results.record import Record, plain
from iobench.results.summary import sentence
from iobench.terminal.tables import MIB
from iobench.units import rate_text, three_digits

MOST_CONTEXTS = 6  # with charts of their own; what runs vary beyond that is seen in lines
IN_BRIEF = ("speed", "stages")  # of the contexts after the first
PICTURE_WIDTH = 720
IN_WORDS = {
    "open": "opening",
    "read": "reading",
    "decode": "decoding",
    "collate": "collating",
    "wait": "waiting for the threads or workers that read ahead",
    "host_to_device": "the copy to the device",
    "compute": "the training step",
    "other": "the loader's own work",
}


@dataclass(frozen=True)
class Figure:
    """A chart, what it shows, and the rows behind it."""

    name: str  # of its files
    title: str
    says: str
    rows: list[Row]
    chart: Any

    @property
    def spec(self) -> dict[str, Any]:
        """The chart for a browser."""
        spec: dict[str, Any] = plain(self.chart.to_dict())
        return {**spec, "config": charts.CONFIG}

    @property
    def columns(self) -> list[str]:
        """The names of the table's columns."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    @property
    def csv(self) -> str:
        """The table as the address of a file that the page itself holds."""
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns)
        writer.writeheader()
        writer.writerows(self.rows)
        return "data:text/csv;base64," + base64.b64encode(text.getvalue().encode()).decode()

    def picture(self) -> dict[str, Any]:
        """The chart at a width of its own, on white."""
        spec = json.loads(json.dumps(self.spec).replace('"container"', str(PICTURE_WIDTH)))
        return {**spec, "background": "white", "padding": 12, "title": self.title}


@dataclass(frozen=True)
class Section:
    """Figures about one group of records, and the answer that they give."""

    title: str
    answer: str
    why: list[str]
    warnings: list[str]
    figures: list[Figure] = field(default_factory=list)


def sections(records: Sequence[Record]) -> list[Section]:
    """Everything the page shows: the widest comparison, what spans several, and the others in brief."""
    groups = contexts(records)
    first, *others = (_section(context, number) for number, context in enumerate(groups[:MOST_CONTEXTS], 1))
    across = list(_across(groups, records))
    spanning = [Section("Across runs", "", [], [], across)] if across else []
    return [first, *spanning, *others]


def machines(records: Sequence[Record]) -> list[dict[str, str]]:
    """Each machine with each dataset, in words."""
    described = {json.dumps(about(record)): about(record) for record in records}
    return list(described.values())


def _section(context: Context, number: int) -> Section:
    verdict = context.summary.verdict
    assert verdict is not None  # a context has at least one record
    warnings = [warning.sentence for warning in context.summary.warnings]
    made = [
        Figure(f"{number}-{name}", title, says, rows, chart)
        for name, title, says, rows, chart in _figures(context)
        if number == 1 or name in IN_BRIEF
    ]
    return Section(context.title, answer(context), [sentence(verdict), *_reasons(context)], warnings, made)


def answer(context: Context) -> str:
    """Which format to use, in one sentence."""
    cases, verdict = context.summary.cases, context.summary.verdict
    assert verdict is not None
    best = cases[0]
    speed = f"{three_digits(best.bytes_per_s.median / MIB)} MiB/s"
    variant, loader = best.case["variant"], best.label.partition(" · ")[2]
    rivals = [case.case["variant"] for case in cases if case.label in verdict.rivals]
    others = [other for other in dict.fromkeys(rivals) if other != variant]
    if others:
        named = ", ".join(others[:3]) + (" and others" if len(others) > 3 else "")
        return f"Use {variant} ({loader}, {speed}); these rounds do not tell it apart from {named}."
    elsewhere = next((case for case in cases if case.case["variant"] != variant), None)
    if elsewhere is None:
        return f"{variant} reached {speed} ({loader}); there is no other format to hold it against."
    return f"Use {variant} ({loader}, {speed}): faster than every other format."


def _reasons(context: Context) -> Iterator[str]:
    best, slowest = context.summary.cases[0], context.summary.cases[-1]
    if best.limit_share is not None:
        yield f"It reaches {best.limit_share:.0%} of what this machine can do there ({best.limit})."
    if best.stages:
        whole = sum(best.stages.values())
        stage, seconds = max(best.stages.items(), key=lambda item: item[1])
        yield f"Most of its time goes to {IN_WORDS.get(stage, stage)} ({seconds / whole:.0%})."
    times = best.bytes_per_s.median / slowest.bytes_per_s.median
    if slowest.label != best.label:
        yield f"Between it and the slowest, {slowest.label}, lies a factor of {three_digits(times)}."


def _figures(context: Context) -> Iterator[tuple[str, str, str, list[Row], Any]]:
    rows, rounds = figures.cases(context), figures.rounds(context)
    says = (
        "Bars: median. Thin line: 95 % interval. Circles: single rounds. "
        "Orange tick: the limit of the hardware on this case's way."
    )
    yield "speed", "How fast each case is", says, rows, charts.speeds(rows, rounds)
    if spent := figures.stages(context):
        says = (
            "Time of the thread that consumes batches. Wait: for threads or workers that read ahead. "
            "Libraries that decode within their own read (HDF5) count as read."
        )
        yield "stages", "Where the time went", says, spent, charts.stages(spent)
    waits = figures.waits(context)
    yield (
        "waits",
        "Waiting for a batch",
        "What 50 and 99 % of the waits do not exceed, and the first.",
        waits,
        (charts.waits(waits)),
    )
    costs = figures.costs(context)
    yield (
        "cpu",
        "Processor time",
        "Seconds per GiB, workers included.",
        costs,
        (charts.bars(costs, "CPU s/GiB", "processor seconds per GiB")),
    )
    if any(row["memory MiB"] for row in costs):
        says = "Peak of anonymous and shared memory, workers included; the page cache does not count."
        yield "memory", "Memory", says, costs, charts.bars(costs, "memory MiB", "MiB")
    if len(sizes := figures.sizes(context)) > 1:
        says = "Each format by its fastest case."
        yield "size", "Stored size and speed", says, sizes, charts.sizes(sizes)
    if paid := figures.break_even(context):
        says = (
            "Epochs after which writing another format has paid for its own time, fastest case to fastest "
            "case, opening included."
        )
        yield "break-even", "When a conversion pays", says, paid, charts.break_even(paid)
    says = "Each round as a part of its case's median: a drift or a bad first round shows here."
    yield "rounds", "The rounds in their order", says, rounds, charts.course(rounds)
    yield from _system(context)


_Plot = tuple[str, str, list[str], str, bool]
_PLOTS: list[_Plot] = [
    ("processors", "Processors over time", ["processors", "busiest core", "waiting for disk"], "busy", True),
    ("gpu", "GPU over time", ["GPU"], "busy", True),
    ("gpu-memory", "GPU memory over time", ["GPU memory MiB"], "MiB", False),
    ("disk", "Disk over time", ["disk MiB/s"], "MiB/s", False),
    ("queue", "Disk queue over time", ["disk queue"], "requests under way", False),
]


def _system(context: Context) -> Iterator[tuple[str, str, str, list[Row], Any]]:
    rows = figures.system(context.records)
    for name, title, columns, axis, share in _PLOTS:
        if any(row[column] is not None for row in rows for column in columns):
            says = "One look a second, whatever the run was doing then."
            yield name, title, says, rows, charts.over_time(rows, columns, axis, share)


def _across(groups: Sequence[Context], records: Sequence[Record]) -> Iterator[Figure]:
    if both := figures.cold_and_warm(groups):
        says = "Cases that were measured from the disk and from memory, all else being equal."
        yield Figure("cold-and-warm", "Cold beside warm", says, both, charts.cold_and_warm(both))
    for what in ("batch size", "workers", "sample bytes", "dataset bytes"):
        if rows := figures.against(records, what):
            name = f"by-{what.replace(' ', '-')}"
            says = "Cases that were measured at several values, all else being equal; medians."
            yield Figure(name, f"Speed by {what}", says, rows, charts.against(rows, what))


def cell(name: str, value: object) -> str:
    """A value as the tables show it."""
    if value is None:
        return "–"
    if isinstance(value, float):
        if name in ("reached", "share", "of the median"):
            return f"{value:.1%}"
        return rate_text(value) if name.startswith("samples/s") else _digits(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def _digits(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 0.1 else three_digits(value)
