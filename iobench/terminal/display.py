"""Output: results to stdout, progress and notes to stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
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
from rich.text import Text

from iobench.advise.answer import Answer
from iobench.base.finding import Finding
from iobench.base.text import printable
from iobench.base.units import bytes_text, seconds_text
from iobench.bench.outcome import Run
from iobench.dataset.verify import Progress as Report
from iobench.results import stats, summary
from iobench.results.display import Block, Displayed
from iobench.results.record import Record
from iobench.results.record_json import plain
from iobench.results.resume_result import ResumeCheck
from iobench.results.run_warning import RunWarning
from iobench.results.verdict import sentences
from iobench.terminal import run_tables
from iobench.terminal.tables import columns_table, plain_text

EVERY_S = 30.0  # between two lines about a step that takes long
WIDE = 240  # minimum columns for files and pipes, where no table is cut off


class _Speed(ProgressColumn):
    """Bytes per second in binary units, as everywhere else; rich's own column is decimal."""

    def render(self, task: Task) -> Text:
        return Text(f"{bytes_text(task.speed)}/s" if task.speed else "")


def note(text: str) -> None:
    """Print a line to stderr, with control characters escaped."""
    print(printable(text), file=sys.stderr, flush=True)


def warning(one: Finding | RunWarning) -> None:
    """Print a warning to stderr, its kind first: `warning[few-rounds]: …`."""
    note(f"warning[{one.kind}]: {one.sentence}")


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
    print(json.dumps(plain(value), indent=2))


def answer(result: Answer | ResumeCheck, json: bool) -> None:
    """Print a result's parts, or all of its data as JSON."""
    if not json:
        parts(result)
    else:
        as_json(result)


def parts(shown: Displayed, to_stderr: bool = False) -> None:
    """Print a result's parts: the answer first; warnings to stderr."""
    console = _console(to_stderr)
    for number, block in enumerate(shown.blocks()):
        if block.style == "warning":
            warning(Finding(block.title, block.lines[0]))
            continue
        rendered = list(_rendered(block))
        _print(console, *([""] if number else []), *rendered)


def _rendered(block: Block) -> Iterator[RenderableType]:
    """Yield the table of a block, its title and its lines."""
    if block.style == "table":
        yield columns_table(block.columns)
    if block.title:
        yield f"{block.title}:"
        yield from [""] if block.style == "code" else []
    yield from (f"- {line}" if block.style == "list" else line for line in block.lines)


def run(outcome: Run, smallest: float, wide: bool = False) -> None:
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
    records(outcome.valid_records, smallest, wide)
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


def records(chosen: Sequence[Record], smallest: float = stats.MIN_DIFFERENCE, wide: bool = False) -> None:
    """Print the tables of some records, their warnings and the answer for each context."""
    described = summary.summarise(chosen, smallest)
    result(*run_tables.run_lines(chosen), "")
    width = _console().width
    for table in run_tables.run_tables(described, width, wide):
        result(table, "")
    for context in () if wide else described.contexts:
        if folded := run_tables.folded_line(context):
            result(folded, "")
            for table in run_tables.grid_tables(context, width):
                result(table, "")
    for table in run_tables.stages_tables(described):
        result(table, "")
    for one in described.warnings:
        warning(one)
    result(*sentences(described.contexts))


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


def _console(to_stderr: bool = False) -> Console:
    width = None if (sys.stderr if to_stderr else sys.stdout).isatty() else WIDE
    return Console(stderr=to_stderr, highlight=False, markup=False, emoji=False, width=width)
