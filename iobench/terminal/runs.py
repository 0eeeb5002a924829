"""Runs in words: notes and warnings on stderr, then what all cases share, the answer and the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from iobench.base.finding import Finding
from iobench.base.units import bytes_text, counted
from iobench.bench.outcome import Run
from iobench.results import stats
from iobench.results.cases import FACETS
from iobench.results.columns import blocks_of
from iobench.results.metrics import rank_layout
from iobench.results.record import Record
from iobench.results.summary import summarise
from iobench.results.verdict import as_json
from iobench.terminal import display

# facets shown once above the table if all cases share them
COMMON = ("device", "cache", "order", "batch_size", "batch_tokens", "model", "step_s")
MAX_WARNINGS = 3  # of a run, shown with its tables


@dataclass(frozen=True)
class TableOptions:
    """Options of a command that shows records; differences below `smallest` do not count."""

    smallest: float = stats.MIN_DIFFERENCE
    as_json: bool = False
    wide: bool = False
    long: bool = False
    warnings: bool = False  # all of them


def run(outcome: Run, options: TableOptions) -> None:
    """Print the tables of a run, its notes and the answer."""
    if options.as_json:
        records(outcome.valid_records, options, outcome.path.stem, outcome.as_dict())
        return
    if not outcome.valid_records:
        for one in outcome.notes:
            display.note(str(one))
        return
    measured = {record.settings_key for record in outcome.valid_records} | {*outcome.skipped}
    if missing := [str(label) for key, label in outcome.labels.items() if key not in measured]:
        display.note(f"not measured: {'; '.join(missing)}")
    for text in _together(outcome.notes):
        display.note(text)
    records(outcome.valid_records, options, outcome.path.stem)
    for path in outcome.traces:
        display.note(f"trace: {path}")
    display.note(f"records: {outcome.path}")


def _together(notes: Sequence[Finding]) -> list[str]:
    """Return a line for each note, and one for all cases that were skipped for the same cause."""
    lines: dict[str, list[str]] = {}
    for one in notes:
        cause, case = one.values.get("cause"), one.values.get("case")
        if one.kind == "skipped" and cause and case:
            lines.setdefault(f"{cause}; {one.hint}", []).append(str(case))
        else:
            lines[str(one)] = []
    return [f"skipped: {'; '.join(cases)}: {text}" if cases else text for text, cases in lines.items()]


def records(
    chosen: Sequence[Record],
    options: TableOptions,
    name: str,
    values: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Print the warnings about some records, then the answer and the tables; as JSON with these `values`."""
    described = summarise(chosen, options.smallest)
    if options.as_json:
        display.as_json({**values, **as_json(described)})
        return
    display.result(*_run_lines(chosen), "")
    leaders = {str(case.label) for case in described.cases if case.leader}
    ordered = sorted(
        described.warnings,
        key=lambda one: (one.kind == "unverified-content", not leaders.isdisjoint(one.cases)),
        reverse=True,
    )
    shown = ordered if options.warnings else ordered[:MAX_WARNINGS]
    for one in shown:
        display.warning(one)
    if more := len(ordered) - len(shown):
        display.note(f"{counted(more, 'more warning')}: iobench runs show {name} --warnings")
    display.blocks(blocks_of(described, options.wide, options.long))


def _run_lines(records: Sequence[Record]) -> list[str]:
    """Describe in two lines what all cases share: settings, then machine and disk."""
    machine, rounds = records[0].machine, max(record.round for record in records)
    gpu = f", {machine.gpu.name}" if machine.gpu else ""
    shared = [
        FACETS[name].text(values.pop())
        for name in COMMON
        if len(values := {record.case.get(name) for record in records}) == 1 and None not in values
    ]
    ranks = {rank_layout(record) for record in records}
    shared += [layout for layout in ranks if layout and len(ranks) == 1]
    return [
        ", ".join([*shared, counted(rounds, "round")]),
        f"{FACETS['processor'].text([machine.cpu, machine.usable_cores or 0])}, "
        f"{bytes_text(machine.memory_bytes)}{gpu}; {machine.disk}",
    ]
