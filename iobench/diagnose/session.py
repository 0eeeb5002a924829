"""Somebody's loader run alone: watched, profiled, and its variants tried."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from iobench.diagnose import advice, profiling, trials
from iobench.diagnose.advice import Diagnosis
from iobench.diagnose.seen import Seen
from iobench.diagnose.watch import Watch
from iobench.diagnose.watchdog import Watchdog
from iobench.errors import TargetError
from iobench.host.others import OtherWork
from iobench.loading.target import traceback_of
from iobench.results.parts import OthersPart
from iobench.units import counted

WATCHED, PROFILED = 0.3, 0.2  # of the time; the rest is for the variants


def diagnose(
    loader: Iterable[Any],
    *,
    batches: int = 200,
    seconds: float = 20.0,
    timeout_s: float = 60.0,
    variants: bool = True,
    device: str = "cpu",
    on_status: Callable[[str], None] = lambda text: None,
) -> Diagnosis:
    """Run a loader alone for at most so many batches and seconds, and say what would make it faster.

    TargetError, with the traceback, where it raises, or yields no batch within `timeout_s`.
    """
    dog = Watchdog(timeout_s)
    with dog.watching():
        on_status("watching it as it is")
        seen = _watched(loader, dog, batches, WATCHED * seconds, device)
        on_status("profiling it")
        beside = list[OthersPart]()
        with _noting(beside):
            profiles = profiling.profiles(loader, PROFILED * seconds, batches, dog.over)
        tried = trials.trials_of(loader, seen.idle) if variants else []
        if len(tried) > 1:
            on_status(f"trying {', '.join(trial.name for trial in tried[1:])}")
            with _noting(beside):
                trials.run(loader, tried, (1 - WATCHED - PROFILED) * seconds, batches, dog.over)
    return advice.diagnose(seen, tried, profiles, alone=True, beside=beside)


@contextmanager
def _noting(found: list[OthersPart]) -> Iterator[None]:
    """Add what other processes do during the block."""
    other_work = OtherWork(Path.cwd())
    other_work.start()
    yield
    found.append(OthersPart(**asdict(other_work.stop())))


def _watched(loader: Iterable[Any], dog: Watchdog, batches: int, seconds: float, device: str) -> Seen:
    watch = Watch(loader, device, lambda seen: None)
    until, done = time.perf_counter() + seconds, 0
    items = dog.over(watch)
    try:
        for _ in items:
            done += 1
            if done >= batches or (done > 1 and time.perf_counter() > until):
                break
    except TargetError:
        raise
    except Exception as error:
        *_, said = str(error).strip().splitlines() or [
            ""
        ]  # the last line, where a worker's traceback is in it
        failed = TargetError(
            f"the loader raised {type(error).__name__} after {counted(done, 'batch', 'batches')}: {said}"
        )
        failed.traceback = traceback_of(error)
        raise failed from error
    finally:
        items.close()
    if watch.seen is None or watch.seen.batches == 0:
        raise TargetError("the loader yielded nothing: there is nothing to diagnose")
    return watch.seen
