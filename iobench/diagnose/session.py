"""Somebody's loader run alone: watched, profiled, and its settings tried in a race."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any

from iobench.base.errors import (
    TargetError,
)
from iobench.base.units import counted
from iobench.diagnose import advice, profiling
from iobench.diagnose.advice import Diagnosis
from iobench.diagnose.cached import kept_trial
from iobench.diagnose.padding import MOST_BYTES, padding_of
from iobench.diagnose.profiling import Profiled
from iobench.diagnose.seen import Seen
from iobench.diagnose.watch import Watch
from iobench.host.others import OtherWork
from iobench.loading.foreign import tensors_of
from iobench.loading.target import raised
from iobench.results.parts import OthersPart
from iobench.tuning import settings
from iobench.tuning.contest import Contest, finalists, unseen
from iobench.tuning.own import Own, iter_is_itself
from iobench.tuning.trial import Trial, slowing
from iobench.tuning.turn import Wanted
from iobench.tuning.watchdog import Watchdog

WATCHED, PROFILED, RACED = 0.2, 0.15, 0.3  # of the time; the rest is for fresh rounds
FINALISTS = 3  # beside the loader as it is, each of another kind
FRESH = 0.25  # of all the time, that fresh rounds have, however late it is
FILLED = 0.2  # of what is left, to make the samples that are kept
BETTER = 1.03  # times as fast in the race: who is worth fresh rounds
LOOKED_AT = 8  # batches, for padding


def diagnose(
    loader: Iterable[Any] | Own,
    *,
    batches: int | None = None,
    seconds: float = 20.0,
    timeout_s: float = 60.0,
    variants: bool = True,
    device: str = "cpu",
    on_status: Callable[[str], None] = lambda text: None,
) -> Diagnosis:
    """Run a loader alone for about so many seconds, and say what would make it faster.

    `batches`: the most that it is asked for each time; by default whole epochs, as far as there is time.
    TargetError, with the traceback, where it raises, or yields no batch within `timeout_s`.
    """
    end, dog, beside = time.monotonic() + seconds, Watchdog(timeout_s), list[OthersPart]()
    own = loader if isinstance(loader, Own) else Own(loader, _again(loader))
    trials, slower = list[Trial](), None
    with dog.watching():
        on_status("watching the loader as it is")
        seen = _watched(own.made({}), dog, batches, WATCHED * seconds, device)
        profiles = list[Profiled]()
        if not _used_up(loader):
            on_status("profiling the loader")
            with _noting(beside), _theirs():
                profiles = profiling.profiles(own, PROFILED * seconds, batches, dog.over)
        if variants:
            trials, slower = _tried(
                own,
                seen,
                profiles,
                Wanted(_ignored, batches=batches, guard=dog.over),
                (seconds, end),
                beside,
                device,
                on_status,
            )
    return advice.diagnose(seen, trials, profiles, alone=True, beside=beside, slower=slower)


def _tried(
    own: Own,
    seen: Seen,
    profiles: Sequence[Profiled],
    wanted: Wanted,
    time_left: tuple[float, float],
    beside: list[OthersPart],
    device: str,
    on_status: Callable[[str], None],
) -> tuple[list[Trial], float | None]:
    """Its settings after a race and fresh rounds, and how much slower it became from turn to turn.

    `time_left`: the seconds that the whole diagnosis may take, and when it should end.
    """
    starting = seen.first_wait_s > settings.STARTING * seen.epoch_s
    starts = (settings.FORK,)  # what else there is starts more slowly, and is tune's to try
    like = settings.Like(seen.whole, starting, seen.idle, seen.threads, device, starts)
    trials, _ = settings.trials_of(own, like)
    if (kept := kept_trial(own, seen, profiles)) is not None:
        trials.insert(1, kept)  # before those that take long to start
    if len(trials) < 2:
        return [], None
    contest = Contest(own, wanted)
    with _theirs():
        _contested(contest, trials, kept, time_left, on_status)
    beside += contest.others
    return trials, slowing(contest.turns)


def _contested(
    contest: Contest,
    trials: Sequence[Trial],
    kept: Trial | None,
    time_left: tuple[float, float],
    on_status: Callable[[str], None],
) -> None:
    """The race, and fresh rounds of the best of each kind."""
    seconds, end = time_left
    left_s = max(2 * FRESH * seconds, end - time.monotonic())
    with contest.under_way():
        if kept is not None:
            contest.look(kept, left_s * FILLED)  # a first epoch fills it
        on_status(f"trying {'; '.join(trial.name for trial in trials[1:])}")
        contest.race(trials, left_s * RACED / (1 - WATCHED - PROFILED))
        left_s = max(FRESH * seconds, end - time.monotonic())
        chosen = finalists(trials, _best_of_each_kind(trials), left_s)
        if len(chosen) > 1:
            on_status(f"measuring again, in fresh rounds: {'; '.join(one.name for one in chosen)}")
            contest.fresh(chosen, left_s)


@contextmanager
def _theirs() -> Iterator[None]:
    """Make a TargetError of whatever somebody's loader raises."""
    try:
        yield
    except TargetError:
        raise
    except Exception as error:  # whatever it is, it is told
        raise raised(error) from error


def _best_of_each_kind(trials: Sequence[Trial]) -> list[Trial]:
    """The fastest of each kind that was faster in the race than the loader as it is, the fastest first."""
    base, *others = trials
    best: dict[str, Trial] = {}

    def worth(one: Trial) -> tuple[float, int]:
        """Its rate, or that of an epoch without its start where the race cannot say what it brings."""
        share = base.first_batch_s[0] / base.epoch_s[0] if unseen(base, one) else 0.0
        return max(one.rate, share and base.rate / max(1 - share, 0.01)), -len(one.changes)

    for one in sorted(others, key=worth, reverse=True):
        if one.rates and not one.failed and (one.rate > BETTER * base.rate or unseen(base, one)):
            best.setdefault(one.kind, one)
    return list(best.values())[:FINALISTS]


def _ignored(tensors: Sequence[Any]) -> None:
    """Nothing is done with batches."""


def _again(loader: Any) -> Callable[[], Iterable[Any]] | None:
    """Of an iterator, which can be gone over only once, itself."""
    return (lambda: loader) if iter_is_itself(loader) else None


def _used_up(loader: Any) -> bool:
    return not isinstance(loader, Own) and iter_is_itself(loader)


@contextmanager
def _noting(found: list[OthersPart]) -> Iterator[None]:
    """Add what other processes do during the block."""
    other_work = OtherWork(Path.cwd())
    other_work.start()
    yield
    found.append(OthersPart(**asdict(other_work.stop())))


def _watched(loader: Iterable[Any], dog: Watchdog, batches: int | None, seconds: float, device: str) -> Seen:
    watch = Watch(loader, device, lambda seen: None)
    until, done, held, held_bytes = time.perf_counter() + seconds, 0, list[list[Any]](), 0
    items = dog.over(watch)
    try:
        for done, batch in zip(count(1), items, strict=False):
            if done <= LOOKED_AT and held_bytes < MOST_BYTES:
                held.append(tensors_of(batch))
                held_bytes += sum(one.nbytes for one in held[-1])
            if done == batches or (done > 1 and time.perf_counter() > until):
                break
    except TargetError:
        raise
    except Exception as error:  # whatever it is, it is told
        raise raised(error, f" after {counted(done, 'batch', 'batches')}") from error
    finally:
        items.close()
    if watch.seen is None or watch.seen.batches == 0:
        raise TargetError("the loader yielded nothing: there is nothing to diagnose")
    return replace(watch.seen, padding=padding_of(held))
