"""Profile of an epoch in its consumer's thread, by stage."""

from __future__ import annotations

import time
from collections.abc import Callable
from timeit import repeat
from typing import ParamSpec, TypeVar

from iobench.host.machine_load import CollectorTime

P = ParamSpec("P")
T = TypeVar("T")
Clock = Callable[[], int]  # nanoseconds

STAGES = ("open", "read", "decode", "collate", "wait", "host_to_device", "compute", "gc", "other")
TRIAL = 1000


class Stages:
    """Stages without timing: functions are returned unchanged."""

    def timed(self, stage: str, function: Callable[P, T]) -> Callable[P, T]:
        """Return the function, wrapped so that the time of its calls counts for a stage."""
        return function

    def timed_in_background(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return the function, wrapped so that its time in background threads is counted."""
        return function


UNTIMED = Stages()


class StageProfile(Stages):
    """Sums the time of functions by stage. `read` includes `decode` until `seconds` subtracts it.

    In a `with` block, `gc` is the time that Python's garbage collector takes in the block's thread. It
    counts for no other stage.
    """

    def __init__(self, clock: Clock = time.perf_counter_ns) -> None:
        self._clock = clock
        # append is fast and thread-safe
        self._ns: dict[str, list[int]] = {stage: [] for stage in STAGES}
        self._background_ns: list[int] = []
        self._collector = CollectorTime(clock)

    def __enter__(self) -> StageProfile:
        self._collector.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._collector.__exit__(kind, error, trace)

    def timed(self, stage: str, function: Callable[P, T]) -> Callable[P, T]:
        """Return the function, wrapped so that the time of its calls counts for a stage."""
        note, clock, collector = self._ns[stage].append, self._clock, self._collector

        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            before = clock() - collector.ns
            result = function(*args, **kwargs)
            note(clock() - collector.ns - before)
            return result

        return run

    def timed_in_background(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return the function, wrapped so that its time in background threads is counted."""
        note, clock = self._background_ns.append, self._clock

        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            before = clock()
            result = function(*args, **kwargs)
            note(clock() - before)
            return result

        return run

    def seconds(self, open_s: float, epoch_s: float, wait_s: float, ahead: bool) -> dict[str, float]:
        """Return the seconds of each stage; all except `open` add up to the epoch.

        Parameters
        ----------
        open_s, epoch_s : float
            Time to open the loader, and time of the epoch.
        wait_s : float
            Time spent in `next()`. The part that no stage accounts for is `wait` if the loader reads
            ahead of the consumer, else the loader's own work, `other`.
        ahead : bool
            True if the loader reads ahead.
        """
        times = {stage: sum(ns) / 1e9 for stage, ns in self._ns.items()}
        times["read"] -= times["decode"]
        times["gc"] = self._collector.ns / 1e9
        accounted = ("read", "decode", "collate", "host_to_device", "gc")
        unaccounted = wait_s - sum(times[stage] for stage in accounted)
        times["wait" if ahead else "other"] += max(0.0, unaccounted)
        times["other"] += max(0.0, epoch_s - sum(times.values()))
        return {**times, "open": open_s}

    @property
    def background_s(self) -> float:
        """Seconds of reading in background threads, summed over the threads."""
        return sum(self._background_ns) / 1e9

    @property
    def cost_s(self) -> float:
        """Estimated overhead of the timing itself, from a trial with an empty function."""
        spans = sum(map(len, self._ns.values())) + len(self._background_ns)
        timed, bare = (
            min(repeat(trial, number=TRIAL, repeat=3)) / TRIAL
            for trial in (StageProfile(self._clock).timed("other", nothing), nothing)
        )
        return max(0.0, timed - bare) * spans


def nothing() -> None:
    """Do nothing."""
