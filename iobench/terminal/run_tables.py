"""Tables of the records of a run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from iobench.base.units import bytes_text, counted, rate_text, seconds_text, three_digits
from iobench.results import columns
from iobench.results.cases import FACETS, Label
from iobench.results.columns import Columns
from iobench.results.metrics import epoch_share_text, mib_text
from iobench.results.rank_stats import rank_layout
from iobench.results.record import Record
from iobench.results.summary import CaseSummary, Context, Summary
from iobench.terminal.tables import columns_table, plain_table

COMMON = (
    "device",
    "cache",
    "order",
    "batch_size",
    "batch_tokens",
    "model",
    "step_s",
)  # facets shown once above the table if all cases share them


def round_line(record: Record, label: Label, rounds: int | None) -> str:
    """Describe one round in one line."""
    speed = f"{mib_text(record.bytes_per_s)} MiB/s, {rate_text(record.samples_per_s)} samples/s"
    number = f"{record.round}/{rounds}" if rounds else record.round
    if record.timing.partial is not None:
        share = epoch_share_text(record.epochs)
        length = f"{seconds_text(record.epoch_s)} an epoch from {share} of one"
    else:
        epochs = f" × {counted(record.timing.epochs, 'epoch')}" if record.timing.epochs > 1 else ""
        length = f"{seconds_text(record.epoch_s)}{epochs}"
    return f"round {number}  {label}: {speed}, {length}"


def live_table(rates: Mapping[str, Sequence[float]], labels: Mapping[str, Label]) -> Table:
    """Return the cases of a run in progress, fastest first: MiB/s of the last round, and the median."""
    table = plain_table("case", "rounds", "last MiB/s", "median", left=1)
    for key in sorted(rates, key=lambda key: statistics.median(rates[key]), reverse=True):
        last, median = rates[key][-1], statistics.median(rates[key])
        table.add_row(str(labels[key]), str(len(rates[key])), three_digits(last), three_digits(median))
    return table


def run_lines(records: Sequence[Record]) -> list[str]:
    """Describe in two lines what all cases share: settings, then machine and disk."""
    machine, rounds = records[0].machine, max(record.round for record in records)
    gpu = f", {machine.gpu.name}" if machine.gpu else ""
    shared = [
        FACETS[name].text(values.pop())
        for name in COMMON
        if len(values := {record.case.get(name) for record in records}) == 1 and None not in values
    ]
    return [
        ", ".join([*shared, *_ranks(records), counted(rounds, "round")]),
        f"{FACETS['processor'].text([machine.cpu, machine.usable_cores or 0])}, "
        f"{bytes_text(machine.memory_bytes)}{gpu}; {machine.disk}",
    ]


def _ranks(records: Sequence[Record]) -> list[str]:
    """Return the numbers of ranks and hosts, if all records have the same."""
    first, *others = {rank_layout(record) for record in records}
    return [first] if first and not others else []


def run_tables(summary: Summary, width: int, wide: bool = False) -> list[Table]:
    """Return one row per case, by context, fastest first, in as many tables as the width requires.

    A context with many cases shows the fastest of each format and of each loader, unless `wide`.
    """
    cases = summary.cases if wide else [case for context in summary.contexts for case in context.shown]
    return _within(columns.identity_columns(cases), columns.metric_columns(cases, wide), width)


def grid_tables(context: Context, width: int) -> list[Table]:
    """Return the relative time of each format under each loader; empty if the main table has all cases."""
    if context.shown is context.cases:
        return []
    formats, by_loader = context.grid
    relative: Columns = [(loader, [_times(case) for case in cases]) for loader, cases in by_loader.items()]
    return _within([("relative time", list(formats))], relative, width)


def folded_line(context: Context) -> str | None:
    """Say how many cases of a context its table omits; None if it has all."""
    more = len(context.cases) - len(context.shown)
    title = f"{context.title}: " if context.title else ""
    return f"{title}{counted(more, 'more case')}: show all with --wide" if more else None


def _times(case: CaseSummary | None) -> str | None:
    return None if case is None else three_digits(case.relative.median)


def _within(heads: Columns, rest: Columns, width: int) -> list[Table]:
    """Split columns into as many tables as the width requires, each with the heads."""
    tables = []
    while rest:
        count = len(rest)
        while count > 1 and width_of(columns_table([*heads, *rest[:count]], len(heads))) > width:
            count -= 1
        tables.append(columns_table([*heads, *rest[:count]], len(heads)))
        rest = rest[count:]
    return tables


def stages_tables(summary: Summary) -> list[Table]:
    """Return the stages of each profiled case as fractions of opening and epochs together; or none."""
    cases = [case for case in summary.cases if case.stages]
    if not cases:
        return []
    stage_names = list(dict.fromkeys(name for case in cases for name, s in (case.stages or {}).items() if s))
    table = plain_table("case", *(name.replace("_", " ") for name in stage_names), "reader threads", left=1)
    for case in cases:
        stages = case.stages or {}
        whole = sum(stages.values())
        parts = [f"{stages[name] / whole:.0%}" if stages.get(name) else "" for name in stage_names]
        table.add_row(
            str(case.label), *parts, seconds_text(case.reader_threads_s) if case.reader_threads_s else ""
        )
    return [table]


def width_of(table: Table) -> int:
    """Return the columns that a table takes where it is not cut off."""
    return Console(width=1000).measure(table).maximum
