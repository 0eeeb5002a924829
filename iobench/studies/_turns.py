"""Contenders that take turns, and what their turns took."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from iobench.base.units import bytes_text, seconds_text
from iobench.bench import plan
from iobench.host import interrupts
from iobench.host.others import OtherWork
from iobench.results import stats
from iobench.results.parts import OthersPart

ROUNDS = 5
LONG_ROUND_S = 5.0  # from here on each round is announced


@dataclass(frozen=True)
class Turn:
    """What a contender's turn took, and figures beside, by names that end in their unit."""

    seconds: float
    noted: dict[str, float] = field(default_factory=dict)


Contender = Callable[[], Turn]  # takes one turn


@dataclass(frozen=True)
class Measurements:
    """What a study measured: each contender's rounds, figure by figure, and what is not by contender.

    `data` says on how much data, in words that go into answers.
    """

    seconds: dict[str, list[float]]
    noted: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    data: str = ""
    others: list[OthersPart] = field(default_factory=list)  # what other processes did during each turn

    def note(self, contender: str, turn: Turn) -> None:
        """Add a turn of a contender."""
        self.seconds.setdefault(contender, []).append(turn.seconds)
        for figure, value in turn.noted.items():
            self.noted.setdefault(figure, {}).setdefault(contender, []).append(value)

    def of(self, figure: str) -> Measurements:
        """The same with a noted figure, which must be in seconds, in place of the whole time."""
        return Measurements(self.noted[figure], figures=self.figures, data=self.data)

    def table(self) -> list[list[str]]:
        """Titles, and a row for each contender: time with its 95 % interval, rounds, medians of the rest."""
        titles = ["contender", "median", "95 %", "rounds", *map(_title, self.noted)]
        return [titles, *([name, *self._row(name)] for name in self.seconds)]

    def _row(self, name: str) -> list[str]:
        seconds = stats.estimate(self.seconds[name])
        ends = [seconds_text(end) for end in (seconds.low, seconds.high) if end is not None]
        noted = [_text(figure, self.median(figure, name)) for figure in self.noted]
        rounds = str(len(self.seconds[name]))
        return [seconds_text(seconds.median), " – ".join(ends) or "–", rounds, *noted]

    def median(self, figure: str, contender: str) -> float | None:
        """The median of a noted figure; None where it was not noted."""
        values = self.noted.get(figure, {}).get(contender)
        return statistics.median(values) if values else None


def interleave(
    contenders: Mapping[str, Contender],
    rounds: int = ROUNDS,
    warmup: int = 1,
    on_status: Callable[[str], None] = lambda text: None,
) -> Measurements:
    """What each contender took in rounds in which all take turns; warm-up rounds do not count.

    After the warm-up, or else after the first round, `on_status` is told how long the rest will take.
    """
    found, began = Measurements({name: [] for name in contenders}), time.monotonic()
    other_work = OtherWork(Path.cwd())

    def go_on(done: int) -> bool:
        left, each_s = warmup + rounds - done, (time.monotonic() - began) / max(1, done)
        if left and done == max(1, warmup):
            on_status(
                f"{len(contenders)} contenders × {left} {'' if warmup else 'more '}round{'s' * (left != 1)}: "
                f"about {seconds_text(left * each_s)}"
            )
        if left and done >= warmup and each_s >= LONG_ROUND_S:
            on_status(f"round {done - warmup + 1} of {rounds}")
        return left > 0

    with interrupts.deferred() as check_interrupt:
        for number, name in plan.interleaved(list(contenders), go_on):
            other_work.start()
            turn = contenders[name]()
            beside = other_work.stop()
            check_interrupt()
            if number > warmup:
                found.note(name, turn)
                found.others.append(OthersPart(**asdict(beside)))
    return found


def together(parts: Sequence[Measurements], data: str = "", **figures: Any) -> Measurements:
    """What several takings of turns found, as one."""
    whole = Measurements({}, figures=figures, data=data)
    for part in parts:
        whole.seconds.update(part.seconds)
        whole.others.extend(part.others)
        for figure, rounds in part.noted.items():
            whole.noted.setdefault(figure, {}).update(rounds)
    return whole


def timed(work: Callable[[], Any]) -> Contender:
    """Work as a contender."""

    def run() -> Turn:
        before = time.perf_counter()
        work()
        return Turn(time.perf_counter() - before)

    return run


def _title(figure: str) -> str:
    """A figure's name without the unit at its end."""
    return figure.removesuffix("_per_s").removesuffix("_s").removesuffix("_bytes").replace("_", " ")


def _text(figure: str, value: float | None) -> str:
    if value is None:
        return "–"
    if figure.endswith("_bytes_per_s"):
        return f"{bytes_text(value)}/s"
    if figure.endswith("_bytes"):
        return bytes_text(value)
    return seconds_text(value) if figure.endswith("_s") else f"{value:.0%}"
