"""Signs that other processes were at work beside what was measured, and how they are said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from iobench.base import thresholds
from iobench.base.units import bytes_text
from iobench.results.parts import OthersPart


def _percent(share: float) -> str:
    return f"{share:.0%}"


@dataclass(frozen=True)
class Sign:
    """A figure of others that speaks against a measurement where it is above a threshold."""

    kind: str
    figure: Callable[[OthersPart], float | None]
    threshold: float
    happened: str  # with the highest value as {}
    advice: str
    text: Callable[[float], str] = _percent

    def is_seen(self, part: OthersPart) -> bool:
        """Whether it was above the threshold in a turn."""
        value = self.figure(part)
        return value is not None and value > self.threshold

    def often(self, parts: Sequence[OthersPart | None]) -> tuple[int, float] | None:
        """In how many turns it was above the threshold, and its highest value; None where in too few."""
        return often([self.figure(part) if part else None for part in parts], self.threshold)

    def said(self, seen: tuple[int, float], turns: int, what: str = "rounds") -> str:
        """What happened in so many of the turns, which are called `what`, and what helps."""
        count, most = seen
        during = f" during {count} of {turns} {what}" if turns > 1 else ""
        return f"{self.happened.format(self.text(most))}{during}; {self.advice}"


PROCESSORS = Sign(
    "other work",
    lambda part: part.processors,
    thresholds.OTHERS_PROCESSORS,
    "other processes used up to {} of the processors",
    "see which with 'top', stop them, and measure again",
)
MEMORY = Sign(
    "memory",
    lambda part: part.memory_stalled,
    thresholds.MEMORY_STALLED,
    "memory was short, and tasks waited for it up to {} of the time",
    "free memory, or prepare less data",
)
STEAL = Sign(
    "steal",
    lambda part: part.steal,
    thresholds.STEAL,
    "the hypervisor gave up to {} of the processors' time to others",
    "measure again at another hour",
)
DISK = Sign(
    "neighbours",
    lambda part: part.disk_bytes_per_s,
    thresholds.OTHERS_DISK_BYTES_PER_S,
    "other processes read up to {}/s from the same disk",
    "see which with 'pidstat -d 1', stop them, and measure again",
    bytes_text,
)
SIGNS = (PROCESSORS, STEAL, DISK, MEMORY)


def often(values: Sequence[float | None], threshold: float) -> tuple[int, float] | None:
    """In how many turns a figure was above a threshold, and its highest value.

    None where that were too few of them to matter to a median.
    """
    above = [value for value in values if value is not None and value > threshold]
    if not above or len(above) < thresholds.OTHERS_TURNS * len(values):
        return None
    return len(above), max(above)


def said(parts: Sequence[OthersPart], what: str = "rounds") -> list[str]:
    """A sentence for each sign that was there in enough turns, which are called `what`."""
    found = ((sign, sign.often(parts)) for sign in SIGNS)
    return [sign.said(seen, len(parts), what) for sign, seen in found if seen is not None]
