"""Contenders that take turns in interleaved rounds, their measurements, and work in a subprocess."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Generic, TypeVar

from iobench.base import interrupts
from iobench.base.machine import BackgroundLoad
from iobench.base.units import counted, heading_of, seconds_text, text_of
from iobench.bench.policies import interleaved
from iobench.host.child import Child, ChildEnded, ChildHung, SharedCount
from iobench.host.machine_load import BackgroundLoadMonitor
from iobench.results import stats

T = TypeVar("T")
ROUNDS = 5
LONG_ROUND_S = 5.0  # longer rounds are announced one by one


@dataclass(frozen=True)
class RoundResult:
    """Time of one contender in one round, and further metrics by names that end in their unit."""

    seconds: float
    metrics: dict[str, float] = field(default_factory=dict)


Contender = Callable[[], RoundResult]  # runs one round


@dataclass(frozen=True)
class Measurements:
    """All measurements of a study."""

    seconds: dict[str, list[float]]  # time of each round, by contender
    metrics: dict[str, dict[str, list[float]]] = field(default_factory=dict)  # by name, contender, round
    figures: dict[str, Any] = field(default_factory=dict)  # results that belong to no contender
    data: str = ""  # amount of data, in words, for the claims' results
    background: list[BackgroundLoad] = field(default_factory=list)  # during each turn

    def add(self, contender: str, result: RoundResult) -> None:
        """Add a round of a contender."""
        self.seconds.setdefault(contender, []).append(result.seconds)
        for metric, value in result.metrics.items():
            self.metrics.setdefault(metric, {}).setdefault(contender, []).append(value)

    def of(self, metric: str) -> Measurements:
        """Return the measurements with a metric, which must be in seconds, in place of the total time."""
        return Measurements(self.metrics[metric], figures=self.figures, data=self.data)

    def table(self) -> list[list[str]]:
        """Return a table as rows of text, the headings first.

        Each contender has its median time with the 95 % interval, the number of rounds and the medians of
        all metrics.
        """
        headings = ["contender", "median", "95 %", "rounds", *map(heading_of, self.metrics)]
        rows = [headings]
        for name, rounds in self.seconds.items():
            seconds = stats.estimate(rounds)
            medians = [_text(metric, self.median(metric, name)) for metric in self.metrics]
            times = seconds_text(seconds.median), seconds.interval_text(seconds_text)
            rows.append([name, *times, str(len(rounds)), *medians])
        return rows

    def median(self, metric: str, contender: str) -> float | None:
        """Return the median of a metric; None if it was not measured."""
        values = self.metrics.get(metric, {}).get(contender)
        return statistics.median(values) if values else None


def interleave(
    contenders: Mapping[str, Contender],
    rounds: int = ROUNDS,
    warmup: int = 1,
    on_status: Callable[[str], None] = lambda text: None,
) -> Measurements:
    """Run all contenders in each of several rounds, in changing order.

    Rounds of the warm-up come first and do not count. After them, or after the first round without one,
    `on_status` is called with the estimated time for the rest.
    """
    measured, began = Measurements({name: [] for name in contenders}), time.monotonic()
    background_load = BackgroundLoadMonitor(Path.cwd())

    def has_more(done: int) -> bool:
        left, each_s = warmup + rounds - done, (time.monotonic() - began) / max(1, done)
        if left and done == max(1, warmup):
            more = counted(left, "round") if warmup else f"{left} more round{'s' * (left != 1)}"
            on_status(f"{len(contenders)} contenders × {more}: about {seconds_text(left * each_s)}")
        if left and done >= warmup and each_s >= LONG_ROUND_S:
            on_status(f"round {done - warmup + 1} of {rounds}")
        return left > 0

    with interrupts.deferred() as check_interrupt:
        for number, name in interleaved(list(contenders), has_more):
            background_load.start()
            result = contenders[name]()
            load = background_load.stop()
            check_interrupt()
            if number > warmup:
                measured.add(name, result)
                measured.background.append(load)
    return measured


def merged(parts: Sequence[Measurements], data: str = "", **figures: Any) -> Measurements:
    """Merge measurements of different contenders."""
    whole = Measurements({}, figures=figures, data=data)
    for part in parts:
        whole.seconds.update(part.seconds)
        whole.background.extend(part.background)
        for metric, rounds in part.metrics.items():
            whole.metrics.setdefault(metric, {}).update(rounds)
    return whole


def timed(work: Callable[[], Any]) -> Contender:
    """Return a contender that times a function."""

    def run() -> RoundResult:
        before = time.perf_counter()
        work()
        return RoundResult(time.perf_counter() - before)

    return run


def exhaust(batches: Iterable[Any]) -> None:
    """Iterate over all batches and discard them."""
    for _ in batches:
        pass


def _text(metric: str, value: float | None) -> str:
    return "–" if value is None else text_of(metric, value) or f"{value:.0%}"


Heartbeat = Callable[[], None]  # reports that the work makes progress


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """Result of work in a subprocess."""

    value: T | None  # return value of the work; None if it failed
    failure: str | None = None  # cause of the failure
    hung: bool = False  # whether the process was killed because its heartbeat stopped


def run_in_subprocess(work: Callable[..., T], *arguments: Any, limit_s: float) -> Outcome[T]:
    """Call a picklable function in a new process.

    Its first argument is a function that sends a heartbeat. The process is killed with its children after
    `limit_s` seconds without one.
    """
    child = Child(f"{__name__}:serve")
    try:
        child.send((work, arguments))
        child.wait(limit_s)
        outcome: Outcome[T] = child.receive()
        return outcome
    except ChildEnded:
        return Outcome(None, child.exit_reason())
    except ChildHung as error:
        return Outcome(None, f"sent no heartbeat for {error.limit_s:g} s", hung=True)
    finally:
        child.end()


def serve(connection: Connection, heartbeats: SharedCount) -> None:
    """Do the work that the parent sends, and send the outcome back."""
    work, arguments = connection.recv()

    def heartbeat() -> None:
        heartbeats.count += 1

    heartbeat()
    try:
        outcome = Outcome(work(heartbeat, *arguments))
    except Exception as error:  # noqa: BLE001 - the parent reports it
        line = str(error).strip().partition("\n")[0]
        outcome = Outcome(None, f"raised {type(error).__name__}: {line}")
    connection.send(outcome)
