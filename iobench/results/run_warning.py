"""Warnings about measurements: reasons not to believe a figure, and the signs of background load."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from iobench.base import thresholds
from iobench.base.machine import BackgroundLoad
from iobench.base.units import bytes_text
from iobench.results.display import Block

MAX_NAMED = 2  # cases named in a sentence
MORE_ROUNDS = "give more --rounds"  # a hint that `warnings_of` replaces for commands without that option
LONGER = "give a longer --max-time"

Value = float | int | str
Values = dict[str, Value]


@dataclass(frozen=True)
class RunWarning:
    """One reason not to believe a figure."""

    derived: ClassVar = ("sentence",)

    kind: str  # stable identifier, such as ``few-rounds``
    message: str  # what happened, without the remedy
    cases: list[str] = field(default_factory=list)  # labels of the cases concerned; empty where all are
    hints: tuple[str, ...] = ()  # what to do about it, alternatives of each other
    values: Values = field(default_factory=dict)  # the figures behind the message, by name

    @property
    def sentence(self) -> str:
        """The warning in one line: what happened, the cases, what to do."""
        more = len(self.cases) - MAX_NAMED
        names = "; ".join(self.cases[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
        statement = f"{self.message} ({names})" if self.cases else self.message
        *first, last = self.hints or ("",)
        hints = f"{', '.join(first)} or {last}" if first else last
        return f"{statement}; {hints}" if hints else statement

    def __str__(self) -> str:
        return self.sentence


def warning_blocks(warnings: Iterable[RunWarning]) -> Iterator[Block]:
    """Yield a block for each warning."""
    return (Block("warning", [one.sentence], one.kind) for one in warnings)


class Frequency(NamedTuple):
    """Number of rounds in which a figure was above its threshold, and its highest value."""

    rounds: int
    highest: float


@dataclass(frozen=True)
class BackgroundSign:
    """A figure of background load that casts doubt on a measurement above a threshold."""

    kind: str  # of its warning
    message: str  # with the highest value as {}
    hints: tuple[str, ...]
    figure: Callable[[BackgroundLoad], float | None]
    threshold: float
    text: Callable[[float], str] = "{:.0%}".format

    def is_present(self, part: BackgroundLoad) -> bool:
        """Return whether the figure was above the threshold in a round."""
        value = self.figure(part)
        return value is not None and value > self.threshold

    def frequency(self, parts: Sequence[BackgroundLoad | None]) -> Frequency | None:
        """Return how often the figure was above the threshold; None where too seldom to matter."""
        return frequency_above([self.figure(part) if part else None for part in parts], self.threshold)

    def warning(self, seen: Frequency, rounds: int, cases: Sequence[str] = ()) -> RunWarning:
        """Return the warning for so many of the rounds."""
        during = f" during {seen.rounds} of {rounds} rounds" if rounds > 1 else ""
        return RunWarning(
            self.kind,
            self.message.format(self.text(seen.highest)) + during,
            list(cases),
            self.hints,
            {"highest": seen.highest, "affected": seen.rounds, "rounds": rounds},
        )


BACKGROUND_CPU = BackgroundSign(
    "background-cpu",
    "other processes used up to {} of the CPU time",
    ("find them with 'top', stop them, and measure again",),
    lambda part: part.processors,
    thresholds.BACKGROUND_CPU,
)
MEMORY_PRESSURE = BackgroundSign(
    "memory-pressure",
    "memory was short: tasks waited for it up to {} of the time",
    ("free memory", "prepare less data"),
    lambda part: part.memory_stalled,
    thresholds.MEMORY_STALLED,
)
CPU_STEAL = BackgroundSign(
    "cpu-steal",
    "the hypervisor gave up to {} of the CPU time to other machines",
    ("measure again at another time",),
    lambda part: part.steal,
    thresholds.STEAL,
)
BACKGROUND_DISK = BackgroundSign(
    "background-disk",
    "other processes read up to {}/s from the same disk",
    ("find them with 'pidstat -d 1', stop them, and measure again",),
    lambda part: part.disk_bytes_per_s,
    thresholds.BACKGROUND_DISK_BYTES_PER_S,
    bytes_text,
)
BACKGROUND_SIGNS = (BACKGROUND_CPU, CPU_STEAL, BACKGROUND_DISK, MEMORY_PRESSURE)


def frequency_above(values: Sequence[float | None], threshold: float) -> Frequency | None:
    """Return how often values were above a threshold.

    None where these were too few to move a median (`thresholds.BACKGROUND_ROUNDS`).
    """
    above = [value for value in values if value is not None and value > threshold]
    if not above or len(above) < thresholds.BACKGROUND_ROUNDS * len(values):
        return None
    return Frequency(len(above), max(above))


def background_warnings(parts: Sequence[BackgroundLoad]) -> list[RunWarning]:
    """Return a warning for each sign that was present in enough rounds."""
    frequencies = ((sign, sign.frequency(parts)) for sign in BACKGROUND_SIGNS)
    return [sign.warning(seen, len(parts)) for sign, seen in frequencies if seen is not None]
