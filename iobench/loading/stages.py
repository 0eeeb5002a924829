"""Where an epoch's time goes in the thread that consumes it, stage by stage."""

from __future__ import annotations

import time
from collections.abc import Callable
from timeit import repeat
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Clock = Callable[[], int]  # nanoseconds

STAGES = ("open", "read", "decode", "collate", "wait", "host_to_device", "compute", "other")
TRIAL = 1000


class Stages:
    """Lets functions be, untimed."""

    def timed(self, stage: str, function: Callable[P, T]) -> Callable[P, T]:
        """The function, such that each call's time counts for a stage."""
        return function

    def timed_in_background(self, function: Callable[P, T]) -> Callable[P, T]:
        """The same for what threads read beside the consumer."""
        return function


UNTIMED = Stages()


class Profile(Stages):
    """Sums the time of functions by stage; stages within `read` are part of it until `seconds` parts them."""

    def __init__(self, clock: Clock = time.perf_counter_ns) -> None:
        self._clock = clock
        # appending is quick, and safe from any thread
        self._ns: dict[str, list[int]] = {stage: [] for stage in STAGES}
        self._background_ns: list[int] = []

    def timed(self, stage: str, function: Callable[P, T]) -> Callable[P, T]:
        """The function, such that each call's time counts for a stage."""
        return self._noted(self._ns[stage].append, function)

    def timed_in_background(self, function: Callable[P, T]) -> Callable[P, T]:
        """The same for what threads read beside the consumer."""
        return self._noted(self._background_ns.append, function)

    def _noted(self, note: Callable[[int], None], function: Callable[P, T]) -> Callable[P, T]:
        clock = self._clock

        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            before = clock()
            result = function(*args, **kwargs)
            note(clock() - before)
            return result

        return run

    def seconds(self, open_s: float, epoch_s: float, wait_s: float, ahead: bool) -> dict[str, float]:
        """Seconds of each stage; all but `open` add up to the epoch.

        `wait_s` is what `next()` took. What of it no stage explains is `wait` where something reads
        `ahead` of the consumer, and else the loader's own work, `other`.
        """
        found = {stage: sum(ns) / 1e9 for stage, ns in self._ns.items()}
        found["read"] -= found["decode"]
        unexplained = wait_s - sum(found[stage] for stage in ("read", "decode", "collate", "host_to_device"))
        found["wait" if ahead else "other"] += max(0.0, unexplained)
        found["other"] += max(0.0, epoch_s - sum(found.values()))
        return {**found, "open": open_s}

    @property
    def background_s(self) -> float:
        """Seconds that threads read beside the consumer, all together."""
        return sum(self._background_ns) / 1e9

    @property
    def cost_s(self) -> float:
        """What the spans themselves took, by a trial of as many that are empty."""
        spans = sum(map(len, self._ns.values())) + len(self._background_ns)
        timed, bare = (
            min(repeat(trial, number=TRIAL, repeat=3)) / TRIAL
            for trial in (Profile(self._clock).timed("other", nothing), nothing)
        )
        return max(0.0, timed - bare) * spans


def nothing() -> None:
    """Does it."""
