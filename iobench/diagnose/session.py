"""Somebody's loader run alone: watched, profile, and its settings tried in a race."""

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
from iobench.diagnose import diagnosis, profiling
from iobench.diagnose.caching_dataset import cache_candidate
from iobench.diagnose.diagnosis import Diagnosis
from iobench.diagnose.loop_stats import LoopStats
from iobench.diagnose.padding import MOST_BYTES, padding_of
from iobench.diagnose.profiling import Profile
from iobench.diagnose.watched_loader import WatchedLoader
from iobench.host.background_load import BackgroundLoadMonitor
from iobench.loading.foreign import tensors_of
from iobench.loading.target import raised
from iobench.results.parts import OthersPart
from iobench.tuning import search_space
from iobench.tuning.candidate import Candidate, slowing
from iobench.tuning.settings_race import SettingsRace, finalists, hidden_gain
from iobench.tuning.tunable_loader import TunableLoader, iter_is_itself
from iobench.tuning.turn import TurnSpec
from iobench.tuning.watchdog import Watchdog

WATCHED, PROFILED, RACED = 0.2, 0.15, 0.3  # of the time; the rest is for fresh rounds
FINALISTS = 3  # beside the loader as it is, each of another kind
FRESH = 0.25  # of all the time, that fresh rounds have, however late it is
FILLED = 0.2  # of what is left, to make the samples that are kept
BETTER = 1.03  # times as fast in the race: who is worth fresh rounds
LOOKED_AT = 8  # batches, for padding


def diagnose(
    loader: Iterable[Any] | TunableLoader,
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
    own = loader if isinstance(loader, TunableLoader) else TunableLoader(loader, _again(loader))
    candidates, slower = list[Candidate](), None
    with dog.watching():
        on_status("watching the loader as it is")
        seen = _watched(own.made({}), dog, batches, WATCHED * seconds, device)
        profiles = list[Profile]()
        if not _used_up(loader):
            on_status("profiling the loader")
            with _noting(beside), _theirs():
                profiles = profiling.profiles(own, PROFILED * seconds, batches, dog.over)
        if variants:
            candidates, slower = _tried(
                own,
                seen,
                profiles,
                TurnSpec(_ignored, batches=batches, guard=dog.over),
                (seconds, end),
                beside,
                device,
                on_status,
            )
    return diagnosis.diagnose(seen, candidates, profiles, alone=True, beside=beside, slower=slower)


def _tried(
    own: TunableLoader,
    seen: LoopStats,
    profiles: Sequence[Profile],
    wanted: TurnSpec,
    time_left: tuple[float, float],
    beside: list[OthersPart],
    device: str,
    on_status: Callable[[str], None],
) -> tuple[list[Candidate], float | None]:
    """Its settings after a race and fresh rounds, and how much slower it became from turn to turn.

    `time_left`: the seconds that the whole diagnosis may take, and when it should end.
    """
    starting = seen.first_wait_s > search_space.STARTING * seen.epoch_s
    starts = (search_space.FORK,)  # what else there is starts more slowly, and is tune's to try
    like = search_space.LoaderTraits(seen.whole, starting, seen.idle, seen.threads, device, starts)
    candidates, _ = search_space.candidates_for(own, like)
    if (kept := cache_candidate(own, seen, profiles)) is not None:
        candidates.insert(1, kept)  # before those that take long to start
    if len(candidates) < 2:
        return [], None
    contest = SettingsRace(own, wanted)
    with _theirs():
        _contested(contest, candidates, kept, time_left, on_status)
    beside += contest.others
    return candidates, slowing(contest.turns)


def _contested(
    contest: SettingsRace,
    candidates: Sequence[Candidate],
    kept: Candidate | None,
    time_left: tuple[float, float],
    on_status: Callable[[str], None],
) -> None:
    """The race, and fresh rounds of the best of each kind."""
    seconds, end = time_left
    left_s = max(2 * FRESH * seconds, end - time.monotonic())
    with contest.under_way():
        if kept is not None:
            contest.look(kept, left_s * FILLED)  # a first epoch fills it
        on_status(f"trying {'; '.join(candidate.name for candidate in candidates[1:])}")
        contest.race(candidates, left_s * RACED / (1 - WATCHED - PROFILED))
        left_s = max(FRESH * seconds, end - time.monotonic())
        chosen = finalists(candidates, _best_of_each_kind(candidates), left_s)
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


def _best_of_each_kind(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The fastest of each kind that was faster in the race than the loader as it is, the fastest first."""
    base, *others = candidates
    best: dict[str, Candidate] = {}

    def worth(one: Candidate) -> tuple[float, int]:
        """Its rate, or that of an epoch without its start where the race cannot say what it brings."""
        share = base.first_batch_s[0] / base.epoch_s[0] if hidden_gain(base, one) else 0.0
        return max(one.rate, share and base.rate / max(1 - share, 0.01)), -len(one.changes)

    for one in sorted(others, key=worth, reverse=True):
        if one.rates and not one.failed and (one.rate > BETTER * base.rate or hidden_gain(base, one)):
            best.setdefault(one.kind, one)
    return list(best.values())[:FINALISTS]


def _ignored(tensors: Sequence[Any]) -> None:
    """Nothing is done with batches."""


def _again(loader: Any) -> Callable[[], Iterable[Any]] | None:
    """Of an iterator, which can be gone over only once, itself."""
    return (lambda: loader) if iter_is_itself(loader) else None


def _used_up(loader: Any) -> bool:
    return not isinstance(loader, TunableLoader) and iter_is_itself(loader)


@contextmanager
def _noting(found: list[OthersPart]) -> Iterator[None]:
    """Add what other processes do during the block."""
    background_load = BackgroundLoadMonitor(Path.cwd())
    background_load.start()
    yield
    found.append(OthersPart(**asdict(background_load.stop())))


def _watched(loader: Iterable[Any], dog: Watchdog, batches: int | None, seconds: float, device: str) -> LoopStats:
    watch = WatchedLoader(loader, device, lambda seen: None)
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
