"""Output: blocks of results to stdout, progress, notes and warnings to stderr."""

from __future__ import annotations

import json
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from iobench.base.credentials import scrubbed
from iobench.base.finding import Finding
from iobench.base.standard_streams import results
from iobench.base.text import is_numeric, printable
from iobench.base.units import bytes_text, seconds_text
from iobench.dataset.verify import Progress as Report
from iobench.results.display import Block, Columns
from iobench.results.record_file import plain
from iobench.results.run_warning import RunWarning

if TYPE_CHECKING:  # rich takes long to import, and `--help` does without
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

EVERY_S = 30.0  # between two lines about a step that takes long
WIDE = 240  # minimum columns for files and pipes, where no table is cut off
LINE = 100  # columns of sentences, and of tables that can be split
LONG = 24  # characters of a cell: a column of longer texts may wrap


def note(text: str) -> None:
    """Print a line to stderr, with control characters escaped and without credentials."""
    line = printable(scrubbed(text)) + "\n"  # at once: Ctrl-C may come between a text and its end
    print(line, end="", file=sys.stderr, flush=True)


def warning(one: Finding | RunWarning) -> None:
    """Print a warning to stderr, its kind first: `warning[few-rounds]: …`."""
    note(f"warning[{one.kind}]: {one.sentence}")


def error(kind: str, message: str) -> None:
    """Print an error to stderr, its kind first: `iobench: error[corrupt-artifact]: …`."""
    note(f"iobench: error[{kind}]: {message}")


def result(*lines: str) -> None:
    """Print lines to stdout, with control characters escaped."""
    _print(_console(), *lines)


def _print(console: Console, *parts: str | Table) -> None:
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


class Result(Protocol):
    """A result of a command."""

    def blocks(self) -> Iterable[Block]:
        """Yield its blocks."""


def answer(result: Result, json: bool) -> None:
    """Print a result's blocks, or all of its data as JSON."""
    if json:
        as_json(result)
    else:
        blocks(result.blocks())


def blocks(shown: Iterable[Block], to_stderr: bool = False) -> None:
    """Print the blocks of a result, with an empty line between them; warnings to stderr."""
    console = _console(to_stderr)
    for number, block in enumerate(block for block in shown if block.chart is None):
        if block.style == "warning":
            warning(Finding(block.title, block.lines[0]))
            continue
        _print(console, *([""] if number else []), *_rendered(block, min(console.width, LINE)))


def _rendered(block: Block, width: int) -> Iterator[str | Table]:
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
    left = width + 1 - sum(_width(*one, most=width) + 1 for one in heads)
    while rest:
        count = len(rest)
        while count > 1 and sum(_width(*one) + 1 for one in rest[:count]) > left:
            count -= 1
        yield rich_table([*heads, *rest[:count]], len(heads))
        rest = rest[count:]


def _width(title: str, cells: Sequence[str | None], most: int = LONG) -> int:
    """Return the least width of a column: that of its longest cell, of texts that wrap at `most`."""
    from rich.cells import cell_len

    longest = max((cell_len(printable(cell)) for cell in cells if cell), default=0)
    least = longest if is_numeric(cells) else min(longest, most)
    return max(least, *map(len, title.split("\n")))


def rich_table(columns: Columns, heads: int = 1) -> Table:
    """Return a table without rules, its heads and words to the left, its figures to the right."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=True)
    table.show_header = any(title for title, _ in columns)
    for number, (title, cells) in enumerate(columns):
        figures = number >= heads and is_numeric(cells)
        table.add_column(
            Text("\n").join(map(plain_text, title.split("\n"))),
            justify="right" if figures else "left",
            no_wrap=number < heads or figures or all(len(cell or "") <= LONG for cell in cells),
        )
    for row in zip(*(cells for _, cells in columns), strict=True):
        table.add_row(*(plain_text(cell or "") for cell in row))
    return table


def plain_text(text: str) -> Text:
    """Return a text in which markup and escape codes have no effect."""
    from rich.text import Text

    return Text(printable(text))


def markdown(shown: Iterable[Block]) -> Iterator[str]:
    """Yield the lines of tables and sentences in Markdown."""
    for number, block in enumerate(shown):
        yield from [""] if number else []
        if block.style != "table":
            yield from block.lines
            continue
        titles, columns = zip(*block.columns, strict=True)
        figures = [place >= block.heads and is_numeric(cells) for place, cells in enumerate(columns)]
        rules = ["---:" if figure else "---" for figure in figures]
        for row in (titles, rules, *zip(*columns, strict=True)):
            yield "| " + " | ".join(printable(cell or "").replace("|", "\\|") for cell in row) + " |"


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
    from rich import progress as rich
    from rich.console import Console
    from rich.text import Text

    class Speed(rich.ProgressColumn):
        """Bytes per second in binary units, as everywhere else; rich's own column is decimal."""

        def render(self, task: rich.Task) -> Text:
            return Text(f"{bytes_text(task.speed)}/s" if task.speed else "")

    columns = (
        rich.TextColumn("{task.description:32}", markup=False),
        rich.BarColumn(),
        rich.DownloadColumn(binary_units=True),
        Speed(),
        rich.TimeRemainingColumn(compact=True),
    )
    with rich.Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(printable(what), total=total or None)
            bars.update(tasks[what], completed=done)

        yield report


def _console(to_stderr: bool = False) -> Console:
    from rich.console import Console

    class Unredirected(Console):
        """A console that leaves the standard streams as they are, also where their reader is gone."""

        def on_broken_pipe(self) -> None:
            """Raise the BrokenPipeError, where rich would send standard output to nowhere and exit."""
            raise

    file = sys.stderr if to_stderr else results()
    width = None if file.isatty() else WIDE
    return Unredirected(file=file, highlight=False, markup=False, emoji=False, width=width)
