"""Progress of a run on stderr: a live view on a terminal, elsewhere a line per phase or ten seconds."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from iobench.base.text import printable
from iobench.base.units import MIB, counted, rate_text, seconds_text, three_digits
from iobench.bench.outcome import BatchCount, Observer, Progress
from iobench.results.cases import Label
from iobench.results.display import table
from iobench.results.metrics import epoch_share_text, mib_text
from iobench.results.record import Record
from iobench.terminal.display import note, rich_table

PER_S = 1  # refreshes: each takes some milliseconds of a core
LINE_S = 10.0  # between two lines of one phase


class Lines(Observer):
    """Prints a line at the beginning of each phase, and every LINE_S within it.

    A phase is a round, if `each_round`, or consecutive statuses that begin with the same word.
    """

    def __init__(self, planned: int | None, each_round: bool) -> None:
        self._rounds, self._labels, self._each_round = planned, dict[str, Label](), each_round
        self._phase, self._printed = "", 0.0

    def planned(self, labels: Mapping[str, Label], batch_bytes: Mapping[str, int]) -> None:
        """Keep the labels."""
        self._labels.update(labels)

    def status(self, text: str) -> None:
        """Print the status, unless its phase was printed a moment ago."""
        self._print(text.partition(" ")[0], text)

    def recorded(self, key: str, record: Record) -> None:
        """Print the round likewise, if rounds are printed."""
        if self._each_round:
            line = round_line(record, self._labels[key], self._rounds)
            self._print(f"round {record.round}", line)

    def _print(self, phase: str, line: str) -> None:
        if phase != self._phase or time.monotonic() - self._printed >= LINE_S:
            note(line)
            self._phase, self._printed = phase, time.monotonic()


class View(Observer):
    """MiB/s of each case so far, the current round and the remaining time."""

    def __init__(self, planned: int | None, max_time_s: float) -> None:
        self._planned, self._max_time_s = planned, max_time_s
        self._labels, self._batch_bytes = dict[str, Label](), dict[str, int]()
        self._rates: dict[str, list[float]] = {}
        self._doing, self._bytes, self._number = "", 0, 0
        self._progress, self._began = BatchCount(), time.monotonic()
        self._first_began: float | None = None
        self._before = 0

    def planned(self, labels: Mapping[str, Label], batch_bytes: Mapping[str, int]) -> None:
        """Keep the labels and the bytes per batch."""
        self._labels.update(labels)
        self._batch_bytes.update(batch_bytes)

    def resumed(self, records: Sequence[Record]) -> None:
        """Show them, and do not count them as made in this while."""
        for record in records:
            self.recorded(record.settings_key, record)
        self._before = len(records)

    def status(self, text: str) -> None:
        """Show the status."""
        self._doing = text

    def begins(self, key: str, number: int) -> Progress:
        """Show the case and its current speed."""
        self._progress, self._began, self._number = BatchCount(), time.monotonic(), number
        self._bytes = self._batch_bytes[key]
        if number:
            self._doing = str(self._labels[key])
            self._first_began = self._first_began or self._began
        return self._progress

    def recorded(self, key: str, record: Record) -> None:
        """Add the round to its case's figures."""
        self._rates.setdefault(key, []).append(record.bytes_per_s / MIB)

    def render(self) -> RenderableType:
        """Return the current view."""
        line = Text(self._line(), style="bold")
        return Group(live_table(self._rates, self._labels), line) if self._rates else line

    def _line(self) -> str:
        elapsed = time.monotonic() - self._began
        rate = self._progress.count * self._bytes / MIB / elapsed if elapsed > 0 else 0.0
        parts = [self._doing, f"{three_digits(rate)} MiB/s"]
        if self._number:
            total = f" of {self._planned}" if self._planned else ""
            parts = [f"round {self._number}{total}", *parts, *self._left()]
        return printable("  ".join(parts))

    def _left(self) -> list[str]:
        done = sum(map(len, self._rates.values())) - self._before
        if self._first_began is None or not done:
            return []
        elapsed = time.monotonic() - self._first_began
        if self._planned is None:
            return [f"at most {seconds_text(max(0.0, self._max_time_s - elapsed))} left"]
        left = elapsed / done * (self._planned * len(self._labels) - self._before - done)
        return [f"about {seconds_text(max(0.0, left))} left"]


@contextmanager
def view(planned: int | None, max_time_s: float, each_round: bool = True) -> Iterator[Observer]:
    """Yield the observer that shows progress: live on a terminal, else line by line.

    `planned` is the number of rounds; None where it depends on the figures.
    """
    if not sys.stderr.isatty():
        yield Lines(planned, each_round)
        return
    live_view = View(planned, max_time_s)
    with Live(
        get_renderable=live_view.render,
        console=Console(stderr=True),
        refresh_per_second=PER_S,
        transient=True,
    ):
        yield live_view


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
    medians = {key: statistics.median(rates[key]) for key in rates}
    rows = [
        (str(labels[key]), str(len(rates[key])), three_digits(rates[key][-1]), three_digits(medians[key]))
        for key in sorted(medians, key=medians.__getitem__, reverse=True)
    ]
    return rich_table(table(("case", "rounds", "last MiB/s", "median"), rows).columns)
