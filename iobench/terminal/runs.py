"""Runs in words: notes and warnings on stderr, then what all cases share, the answer and the tables."""

from __future__ import annotations

from collections.abc import Sequence

from iobench.base.finding import Finding
from iobench.base.units import bytes_text, counted
from iobench.bench.outcome import Run
from iobench.results import stats
from iobench.results.cases import FACETS
from iobench.results.columns import blocks_of
from iobench.results.metrics import rank_layout
from iobench.results.record import Record
from iobench.results.summary import summarise
from iobench.terminal import display

COMMON = (
    "device",
    "cache",
    "order",
    "batch_size",
    "batch_tokens",
    "model",
    "step_s",
)  # facets shown once above the table if all cases share them
MAX_WARNINGS = 3  # of a run, shown with its tables


def run(outcome: Run, smallest: float, wide: bool = False, long: bool = False) -> None:
    """Print the tables of a run, its notes and the answer."""
    if not outcome.valid_records:
        for one in outcome.notes:
            display.note(str(one))
        return
    measured = {record.settings_key for record in outcome.valid_records} | {*outcome.skipped}
    if missing := [str(label) for key, label in outcome.labels.items() if key not in measured]:
        display.note(f"not measured: {'; '.join(missing)}")
    for text in _together(outcome.notes):
        display.note(text)
    records(outcome.valid_records, smallest, wide, long, name=outcome.path.stem)
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
    smallest: float = stats.MIN_DIFFERENCE,
    wide: bool = False,
    long: bool = False,
    *,
    name: str,
    warnings: bool = False,
) -> None:
    """Print the warnings about some records, then the answer and the tables."""
    described = summarise(chosen, smallest)
    display.result(*_run_lines(chosen), "")
    leaders = {str(case.label) for case in described.cases if case.leader}
    ordered = sorted(
        described.warnings,
        key=lambda one: (one.kind == "unverified-content", not leaders.isdisjoint(one.cases)),
        reverse=True,
    )
    shown = ordered if warnings else ordered[:MAX_WARNINGS]
    for one in shown:
        display.warning(one)
    if more := len(ordered) - len(shown):
        display.note(f"{counted(more, 'more warning')}: iobench runs show {name} --warnings")
    display.blocks(blocks_of(described, wide, long))


def _run_lines(records: Sequence[Record]) -> list[str]:
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
