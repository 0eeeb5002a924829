"""The terminal: results to stdout, progress and notes to stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

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

from iobench import summary, tables
from iobench.run import Run
from iobench.units import bytes_text
from iobench.verify import Progress as Report

WIDE = 240  # for files and pipes, which have no width


class _Speed(ProgressColumn):
    """Bytes per second in the units of every other figure; rich's own are decimal."""

    def render(self, task: Task) -> Text:
        return Text(f"{bytes_text(task.speed)}/s" if task.speed else "")


def note(text: str) -> None:
    """Print a line to stderr."""
    print(text, file=sys.stderr, flush=True)


def result(*parts: RenderableType) -> None:
    """Print lines and tables to stdout."""
    console = _console()
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))


def run(found: Run) -> None:
    """Print the table of a run, what to know about it, and the answer."""
    if not found.records:
        return
    described = summary.summarise(found.records)
    result(*tables.run_lines(found.records, found.rounds), "")
    for table in tables.run_tables(described, _console().width):
        result(table, "")
    measured = {arm.label for arm in described.arms}
    if missing := [arm.label for arm in found.arms if arm.label not in measured]:
        note(f"not measured: {'; '.join(missing)}")
    for remark in found.remarks:
        note(remark)
    for warning in summary.warnings(found.records):
        note(f"warning: {warning}")
    if described.verdict is not None:
        result(summary.sentence(described.verdict))
    note(f"records: {found.path}")


@contextmanager
def progress() -> Iterator[Report]:
    """A callback that draws bars with bytes/s and time left on a terminal, and else prints what begins."""
    if not sys.stderr.isatty():
        yield lambda what, done, total: note(what) if done == 0 else None
        return
    columns = (
        TextColumn("{task.description:32}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        _Speed(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done)

        yield report


def _console() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)
