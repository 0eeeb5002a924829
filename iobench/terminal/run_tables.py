"""Records of runs → terminal."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from iobench.base.units import MIB, bytes_text, counted, rate_text, seconds_text, three_digits
from iobench.results import columns
from iobench.results.cases import FACETS, Label
from iobench.results.columns import Columns
from iobench.results.ranks import where
from iobench.results.record import Record
from iobench.results.summary import CaseSummary, Context, Summary
from iobench.terminal.tables import plain_table

COMMON = (
    "device",
    "cache",
    "order",
    "batch_size",
    "model",
    "step_s",
)  # said once where all cases have them alike


def round_line(record: Record, label: Label, rounds: int | None) -> str:
    """One round in one line."""
    speed = f"{three_digits(record.bytes_per_s / MIB)} MiB/s, {rate_text(record.samples_per_s)} samples/s"
    number = f"{record.round}/{rounds}" if rounds else record.round
    epochs = f" × {counted(record.timing.epochs, 'epoch')}" if record.timing.epochs > 1 else ""
    return f"round {number}  {label}: {speed}, {seconds_text(record.epoch_s)}{epochs}"


def live_table(rates: Mapping[str, Sequence[float]], labels: Mapping[str, Label]) -> Table:
    """The cases of a run that goes on, the fastest first: MiB/s of the last round, and the median."""
    table = plain_table("case", "rounds", "last MiB/s", "median", left=1)
    for key in sorted(rates, key=lambda key: statistics.median(rates[key]), reverse=True):
        last, middle = rates[key][-1], statistics.median(rates[key])
        table.add_row(str(labels[key]), str(len(rates[key])), three_digits(last), three_digits(middle))
    return table


def run_lines(records: Sequence[Record]) -> list[str]:
    """What all cases of some records have in common, in two lines."""
    machine, rounds = records[0].machine, max(record.round for record in records)
    gpu, disk = f", {machine.gpu.name}" if machine.gpu else "", machine.disk
    drive = f"{disk.file_system} on {disk.model or disk.device}"
    alike = [
        FACETS[name].text(values.pop())
        for name in COMMON
        if len(values := {record.case.get(name) for record in records}) == 1 and None not in values
    ]
    return [
        ", ".join([*alike, *_ranks(records), counted(rounds, "round")]),
        f"{FACETS['processor'].text([machine.cpu, machine.usable_cores or 0])}, "
        f"{bytes_text(machine.memory_bytes)}{gpu}; "
        f"{drive}, read-ahead {disk.read_ahead_kib} KiB",
    ]


def _ranks(records: Sequence[Record]) -> list[str]:
    """How many ranks on how many hosts, where all records have as many."""
    found = {where(record) for record in records}
    said = found.pop()
    return [said] if not found and said else []


def run_tables(summary: Summary, width: int, wide: bool = False) -> list[Table]:
    """One line per case, context by context, fastest first, in as many tables as the width asks for.

    Of a context with many cases the fastest of each format and each loader, unless it is to be `wide`.
    """
    cases = summary.cases if wide else [case for context in summary.contexts for case in context.shown]
    return _within(columns.heads(cases), columns.figures(cases, wide), width)


def grid_tables(context: Context, width: int) -> list[Table]:
    """How many times as long each format takes under each loader; none where the table has all cases."""
    if context.shown is context.cases:
        return []
    formats = list(dict.fromkeys(case.label.format for case in context.cases))
    by_place = {(case.label.format, case.label.loader): case for case in context.cases}
    found: Columns = [
        (loader, [_times(by_place.get((name, loader))) for name in formats])
        for loader in dict.fromkeys(case.label.loader for case in context.cases)
    ]
    return _within([("times as long", list(formats))], found, width)


def folded_line(context: Context) -> str | None:
    """How many cases of a context its table leaves out; None where it has all."""
    more = len(context.cases) - len(context.shown)
    title = f"{context.title}: " if context.title else ""
    return f"{title}… and {counted(more, 'more case')}: --wide shows them all" if more else None


def _times(case: CaseSummary | None) -> str | None:
    return None if case is None else three_digits(case.relative.median)


def _within(heads: Columns, rest: Columns, width: int) -> list[Table]:
    """The columns in as many tables as the width asks for, each with the heads."""
    tables = []
    while rest:
        count = len(rest)
        while count > 1 and _width(_table(heads, rest[:count])) > width:
            count -= 1
        tables.append(_table(heads, rest[:count]))
        rest = rest[count:]
    return tables


def stages_tables(summary: Summary) -> list[Table]:
    """Where the time went, one line per case, stages as parts of opening and epochs together; or none."""
    cases = [case for case in summary.cases if case.stages]
    if not cases:
        return []
    used = list(dict.fromkeys(name for case in cases for name, s in (case.stages or {}).items() if s))
    table = plain_table("case", *(name.replace("_", " ") for name in used), "threads read", left=1)
    for case in cases:
        stages = case.stages or {}
        whole = sum(stages.values())
        parts = [f"{stages[name] / whole:.0%}" if stages.get(name) else "" for name in used]
        table.add_row(str(case.label), *parts, seconds_text(case.beside_s) if case.beside_s else "")
    return [table]


def _table(heads: Columns, rest: Columns) -> Table:
    shown = [*heads, *rest]
    table = plain_table(*(title for title, _ in shown), left=len(heads))
    for cells in zip(*(cells for _, cells in shown), strict=True):
        table.add_row(*(cell or "" for cell in cells))
    return table


def _width(table: Table) -> int:
    return Console(width=1000).measure(table).maximum
