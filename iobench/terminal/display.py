"""Output: results to stdout, progress and notes to stderr."""

from __future__ import annotations

import json
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from iobench.advise.answer import Answer
from iobench.base.credentials import scrubbed
from iobench.base.finding import Finding
from iobench.base.standard_streams import results
from iobench.base.text import printable
from iobench.base.units import bytes_text, counted, seconds_text
from iobench.bench.outcome import Run
from iobench.dataset.manifest import Manifest
from iobench.dataset.prepare import Prepared
from iobench.dataset.verify import Progress as Report
from iobench.formats.folders import NOT_READ
from iobench.results import stats, summary
from iobench.results.cases import FACETS
from iobench.results.columns import blocks_of
from iobench.results.display import Block, Displayed
from iobench.results.metrics import rank_layout
from iobench.results.record import Record
from iobench.results.record_file import plain
from iobench.results.resume_result import ResumeCheck
from iobench.results.run_warning import RunWarning
from iobench.terminal.tables import (
    columns_table,
    complete,
    dataset_line,
    dataset_values,
    files_read,
    plain_text,
    prepared_table,
)

EVERY_S = 30.0  # between two lines about a step that takes long
WIDE = 240  # minimum columns for files and pipes, where no table is cut off
LINE = 100  # columns of sentences, and of tables that can be split
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


class _Speed(ProgressColumn):
    """Bytes per second in binary units, as everywhere else; rich's own column is decimal."""

    def render(self, task: Task) -> Text:
        return Text(f"{bytes_text(task.speed)}/s" if task.speed else "")


def note(text: str) -> None:
    """Print a line to stderr, with control characters escaped and without credentials."""
    print(printable(scrubbed(text)), file=sys.stderr, flush=True)


def warning(one: Finding | RunWarning) -> None:
    """Print a warning to stderr, its kind first: `warning[few-rounds]: …`."""
    note(f"warning[{one.kind}]: {one.sentence}")


def warn_or_keep(notes: list[Finding], one: Finding) -> None:
    """Print a warning about data, unless it belongs at the end; keep it."""
    notes.append(one)
    if one.kind != NOT_READ:
        warning(one)


def dataset(
    manifest: Manifest, rows: Sequence[Prepared], notes: Sequence[Finding], to_json: bool, *lines: str
) -> None:
    """Print a dataset that was written or added, and what of its source was not read."""
    if to_json:
        as_json(dataset_values(manifest, rows, notes))
        return
    result(dataset_line(manifest), prepared_table(rows), *lines)
    if files := files_read(manifest, notes):
        rest = "all that they hold" if complete(notes) else "and something was left out"
        note(f"read: {counted(files, 'file')}, {rest}")
    for one in notes:
        if one.kind == NOT_READ:
            note(one.sentence)


def result(*parts: RenderableType) -> None:
    """Print lines and tables to stdout, with control characters escaped."""
    _print(_console(), *parts)


def _print(console: Console, *parts: RenderableType) -> None:
    for part in parts:
        if isinstance(part, str):
            console.print(plain_text(part), soft_wrap=True)
            continue
        if not console.file.isatty():
            unlimited = console.options.update(width=sys.maxsize)
            console.width = max(WIDE, console.measure(part, options=unlimited).maximum)
        console.print(part)


def as_json(value: Any) -> None:
    """Print a value as JSON to stdout, NaN and infinity as null."""
    print(json.dumps(plain(value), indent=2), file=results(), flush=True)


def answer(result: Answer | ResumeCheck, json: bool) -> None:
    """Print a result's parts, or all of its data as JSON."""
    if not json:
        parts(result)
    else:
        as_json(result)


def parts(shown: Displayed, to_stderr: bool = False) -> None:
    """Print a result's parts: the answer first; warnings to stderr."""
    blocks(shown.blocks(), to_stderr)


def blocks(shown: Iterable[Block], to_stderr: bool = False) -> None:
    """Print parts of a result, with an empty line between them; warnings to stderr."""
    console = _console(to_stderr)
    for number, block in enumerate(shown):
        if block.style == "warning":
            warning(Finding(block.title, block.lines[0]))
            continue
        _print(console, *([""] if number else []), *_rendered(block, min(console.width, LINE)))


def _rendered(block: Block, width: int) -> Iterator[RenderableType]:
    """Yield the tables of a block, its title and its lines."""
    if block.style == "table":
        yield from _tables(block, width)
    if block.title:
        yield f"{block.title}:"
        yield from [""] if block.style == "code" else []
    for line in block.lines:
        if block.style in ("answer", "text"):
            yield from textwrap.wrap(line, width, subsequent_indent="  ", break_on_hyphens=False)
        else:
            yield f"- {line}" if block.style == "list" else line


def _tables(block: Block, width: int) -> Iterator[Table]:
    """Yield the columns in as many tables as the width requires, each with the heads."""
    heads, rest = block.columns[: block.heads], block.columns[block.heads :]
    while rest:
        count = len(rest)
        while count > 1 and _width(columns_table([*heads, *rest[:count]], len(heads))) > width:
            count -= 1
        yield columns_table([*heads, *rest[:count]], len(heads))
        rest = rest[count:]


def _width(table: Table) -> int:
    """Return the columns that a table takes where it is not cut off."""
    return Console(width=1000).measure(table).maximum


def run(outcome: Run, smallest: float, wide: bool = False, long: bool = False) -> None:
    """Print the tables of a run, its notes and the answer."""
    if not outcome.valid_records:
        for one in outcome.notes:
            note(str(one))
        return
    measured = {record.settings_key for record in outcome.valid_records} | {*outcome.skipped}
    if missing := [str(label) for key, label in outcome.labels.items() if key not in measured]:
        note(f"not measured: {'; '.join(missing)}")
    for text in _together(outcome.notes):
        note(text)
    records(outcome.valid_records, smallest, wide, long, name=outcome.path.stem)
    for path in outcome.traces:
        note(f"trace: {path}")
    note(f"records: {outcome.path}")


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
    described = summary.summarise(chosen, smallest)
    result(*_run_lines(chosen), "")
    leaders = {str(case.label) for case in described.cases if case.leader}
    ordered = sorted(
        described.warnings,
        key=lambda one: (one.kind == "unverified-content", not leaders.isdisjoint(one.cases)),
        reverse=True,
    )
    shown = ordered if warnings else ordered[:MAX_WARNINGS]
    for one in shown:
        warning(one)
    if more := len(ordered) - len(shown):
        note(f"{counted(more, 'more warning')}: iobench runs show {name} --warnings")
    blocks(blocks_of(described, wide, long))


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


def _line_by_line() -> Report:
    """Return a callback that prints when a step begins, and every EVERY_S how far it is."""
    began: dict[str, tuple[float, float]] = {}  # of each step: the start, and the time of its last line

    def report(what: str, done: int, total: int) -> None:
        now = time.monotonic()
        start, last = began.setdefault(what, (now, now))
        if total and done == 0:
            note(what)
        elif done and now - last >= EVERY_S:
            began[what] = start, now
            note(f"{what}: {_how_far(done, total, now - start)}")

    return report


def _how_far(done: int, total: int, passed_s: float) -> str:
    """Return the share of a step that is done and the time left; of a step of unknown size, the bytes."""
    if not total:
        return f"{bytes_text(done)} so far"
    left = seconds_text(passed_s * (total - done) / done)
    return f"{done / total:.0%} of {bytes_text(total)}, about {left} left"


@contextmanager
def progress() -> Iterator[Report]:
    """Yield a progress callback: bars with bytes/s and time left on a terminal.

    Elsewhere it prints a line per step whose size is known, and regularly how far a step is.
    """
    if not sys.stderr.isatty():
        yield _line_by_line()
        return
    columns = (
        TextColumn("{task.description:32}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        _Speed(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(printable(what), total=total or None)
            bars.update(tasks[what], completed=done)

        yield report


class _Console(Console):
    """A console that leaves the standard streams as they are, also where their reader is gone."""

    def on_broken_pipe(self) -> None:
        """Raise the BrokenPipeError, where rich would send standard output to nowhere and exit."""
        raise


def _console(to_stderr: bool = False) -> Console:
    file = sys.stderr if to_stderr else results()
    width = None if file.isatty() else WIDE
    return _Console(file=file, highlight=False, markup=False, emoji=False, width=width)
