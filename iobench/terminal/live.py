"""How a run is going, on stderr: a view that renews itself on a terminal, a line per round elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from iobench.bench.observer import Observer, Progress
from iobench.bench.plan import Rounds
from iobench.results.record import Record
from iobench.terminal import tables
from iobench.terminal.display import note
from iobench.text import printable
from iobench.units import seconds_text, three_digits

MIB = 2**20
PER_S = 1  # renewing the view takes some milliseconds of a core


class Lines(Observer):
    """Prints a line for whatever happens."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds.count

    def status(self, text: str) -> None:
        """Print it."""
        note(text)

    def recorded(self, record: Record) -> None:
        """Print the round."""
        note(tables.round_line(record, self._rounds))


class View(Observer):
    """Each case's MiB/s so far, the epoch under way and the time that is left."""

    def __init__(self, rounds: Rounds, batch_bytes: int) -> None:
        self._rounds, self._batch_bytes = rounds, batch_bytes
        self._checked: set[str] = set()
        self._rates: dict[str, list[float]] = {}
        self._doing, self._number = "", 0
        self._progress, self._began = Progress(), time.monotonic()
        self._first_began: float | None = None

    def status(self, text: str) -> None:
        """Show it."""
        self._doing = text

    def begins(self, label: str, number: int) -> Progress:
        """Show the case, and its speed as it goes."""
        self._progress, self._began, self._number = Progress(), time.monotonic(), number
        self._checked.add(label)
        if number:
            self._doing = label
            self._first_began = self._first_began or self._began
        return self._progress

    def recorded(self, record: Record) -> None:
        """Add the round to its case."""
        self._rates.setdefault(record.case["label"], []).append(record.bytes_per_s / MIB)

    def render(self) -> RenderableType:
        """The view as it is now."""
        table = tables.live_table(self._rates)
        return Group(table, Text(self._line(), style="bold")) if self._rates else Text(self._line())

    def _line(self) -> str:
        elapsed = time.monotonic() - self._began
        rate = self._progress.batches * self._batch_bytes / MIB / elapsed if elapsed > 0 else 0.0
        parts = [self._doing, f"{three_digits(rate)} MiB/s"]
        if self._number:
            total = f" of {self._rounds.count}" if self._rounds.count else ""
            parts = [f"round {self._number}{total}", *parts, *self._left()]
        return printable("  ".join(parts))

    def _left(self) -> list[str]:
        done = sum(map(len, self._rates.values()))
        if self._first_began is None or not done:
            return []
        elapsed = time.monotonic() - self._first_began
        if self._rounds.count is None:
            return [f"at most {seconds_text(max(0.0, self._rounds.max_time_s - elapsed))} left"]
        left = elapsed / done * (self._rounds.count * len(self._checked) - done)
        return [f"about {seconds_text(max(0.0, left))} left"]


@contextmanager
def view(rounds: Rounds, batch_bytes: int) -> Iterator[Observer]:
    """Whoever shows how a run goes: live on a terminal, else line by line."""
    if not sys.stderr.isatty():
        yield Lines(rounds)
        return
    seen = View(rounds, batch_bytes)
    with Live(
        get_renderable=seen.render, console=Console(stderr=True), refresh_per_second=PER_S, transient=True
    ):
        yield seen
