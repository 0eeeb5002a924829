"""Diagnosis of a loader that runs alone: it is watched, profiled, and its settings are raced."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any

from iobench.advise import diagnosis
from iobench.advise.checks import profiling
from iobench.advise.checks.loop_stats import LoopStats
from iobench.advise.checks.padding import MOST_BYTES, padding_of
from iobench.advise.checks.profiling import Profile
from iobench.advise.checks.remedies import remedies
from iobench.advise.checks.repeats import repeated_share
from iobench.advise.checks.watched_loader import WatchedLoader
from iobench.advise.diagnosis import Diagnosis
from iobench.advise.settings import search_space
from iobench.advise.settings.candidate import Candidate, slowdown
from iobench.advise.settings.settings_race import SettingsRace, finalists, hidden_gain
from iobench.advise.settings.tunable_loader import TunableLoader, is_single_pass, resolve_target
from iobench.advise.settings.turn import TurnSpec
from iobench.advise.settings.watchdog import Watchdog
from iobench.base.errors import TargetError
from iobench.base.units import counted
from iobench.host.background_load import BackgroundLoadMonitor
from iobench.loading.inspection import batch_tensors
from iobench.loading.user_errors import loader_error
from iobench.results.parts import BackgroundPart

WATCH, PROFILE, RACE = 0.2, 0.15, 0.3  # of the time; the rest is for the final rounds
FINALISTS = 3  # in addition to the baseline, each of another kind
MIN_FINAL = 0.25  # of all the time, for the final rounds however late it is
FILL = 0.2  # of the time left, to fill the cache of samples
BETTER = 1.03  # speed-up in the race from which on a candidate gets final rounds
EXAMINED = 8  # batches at least, for padding and repeated samples


def diagnose(
    loader: str | Iterable[Any] | TunableLoader,
    *,
    batches: int | None = None,
    seconds: float = 20.0,
    timeout_s: float = 60.0,
    variants: bool = True,
    device: str = "cpu",
    on_status: Callable[[str], None] = lambda text: None,
) -> Diagnosis:
    """Run a loader alone and return what would make it faster.

    Parameters
    ----------
    loader : str, iterable or TunableLoader
        The loader, or the function that builds it, such as ``train.py:make_loader``.
    batches : int, optional
        Most batches of each run; without it whole epochs, if time allows.
    seconds : float
        Time for everything, in seconds.
    timeout_s : float
        Seconds without a batch after which the loader counts as hung.
    variants : bool
        Race other settings and measure the best again.
    device : str
        Device that the batches are for.
    on_status : callable
        Is given a line of text at each step.

    Raises
    ------
    TargetError
        The loader raises (``raised``, with its traceback), hangs (``timeout``) or yields nothing
        (``empty``).
    """
    tunable = loader if isinstance(loader, TunableLoader) else _tunable(loader)
    end, watchdog, background = time.monotonic() + seconds, Watchdog(timeout_s), list[BackgroundPart]()
    candidates, ratio = list[Candidate](), None
    with watchdog.active():
        on_status("watching the baseline")
        loop = _watch(tunable.with_changes({}), watchdog, batches, WATCH * seconds, device)
        profiles = list[Profile]()
        if not is_single_pass(loader):
            on_status("profiling the loader")
            with _recording(background), _user_errors():
                profiles = profiling.profiles(tunable, PROFILE * seconds, batches, watchdog.guard)
        if variants:
            candidates, ratio = _try_settings(
                tunable,
                loop,
                profiles,
                TurnSpec(batches=batches, guard=watchdog.guard),
                (seconds, end),
                background,
                device,
                on_status,
            )
    return diagnosis.diagnose(loop, candidates, profiles, alone=True, background=background, slowdown=ratio)


def _try_settings(
    loader: TunableLoader,
    loop: LoopStats,
    profiles: Sequence[Profile],
    spec: TurnSpec,
    time_left: tuple[float, float],
    background: list[BackgroundPart],
    device: str,
    on_status: Callable[[str], None],
) -> tuple[list[Candidate], float | None]:
    """Return the candidates after a race and final rounds, and the slowdown from turn to turn.

    `time_left` holds the seconds for the whole diagnosis and the time at which it should end.
    """
    starting = loop.first_wait_s > search_space.SLOW_START * loop.epoch_s
    starts = (search_space.FORK,)  # the other methods start more slowly: `tune` tries them
    traits = search_space.LoaderTraits(loop.whole_epoch, starting, loop.idle, loop.threads, device, starts)
    candidates, _ = search_space.candidates_for(loader, traits)
    candidates[1:1] = remedies(loader, loop, profiles)  # before those that take long to start
    if len(candidates) < 2:
        return [], None
    race = SettingsRace(loader, spec)
    with _user_errors():
        _run_rounds(race, candidates, time_left, on_status)
    background += race.background
    return candidates, slowdown(race.turns)


def _run_rounds(
    race: SettingsRace,
    candidates: Sequence[Candidate],
    time_left: tuple[float, float],
    on_status: Callable[[str], None],
) -> None:
    """Run the race, and final rounds of the best candidate of each kind."""
    seconds, end = time_left
    left_s = max(2 * MIN_FINAL * seconds, end - time.monotonic())
    with race.active():
        for cached in (one for one in candidates if one.kind == "cache"):
            race.warm_up(cached, left_s * FILL)  # the first epoch fills the cache
        on_status(f"race: {'; '.join(one.name for one in candidates[1:])}")
        race.race(candidates, left_s * RACE / (1 - WATCH - PROFILE))
        left_s = max(MIN_FINAL * seconds, end - time.monotonic())
        chosen = finalists(candidates, _best_of_each_kind(candidates), left_s)
        if len(chosen) > 1:
            on_status(f"final rounds: {'; '.join(one.name for one in chosen)}")
            race.final_rounds(chosen, left_s)


@contextmanager
def _user_errors() -> Iterator[None]:
    """Turn any error of the user's loader into a TargetError."""
    try:
        yield
    except TargetError:
        raise
    except Exception as error:  # a user's loader may raise anything
        raise loader_error(error) from error


def _best_of_each_kind(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the fastest candidate of each kind that beat the baseline in the race, the fastest first."""
    baseline, *others = candidates
    best: dict[str, Candidate] = {}

    def expected(one: Candidate) -> tuple[float, int]:
        """Return its rate, or that of an epoch without start-up where the race cannot show it."""
        share = baseline.first_batch_s[0] / baseline.epoch_s[0] if hidden_gain(baseline, one) else 0.0
        return max(one.rate, share and baseline.rate / max(1 - share, 0.01)), -len(one.changes)

    for one in sorted(others, key=expected, reverse=True):
        faster = one.rate > BETTER * baseline.rate or hidden_gain(baseline, one)
        if one.rates and not one.failure and faster:
            best.setdefault(one.kind, one)
    return list(best.values())[:FINALISTS]


def _tunable(loader: str | Iterable[Any]) -> TunableLoader:
    """Return the loader; an iterator, which can be iterated over only once, is its own maker."""
    return TunableLoader(loader, lambda: loader) if is_single_pass(loader) else resolve_target(loader)[0]


@contextmanager
def _recording(parts: list[BackgroundPart]) -> Iterator[None]:
    """Append the load of other processes during the block."""
    monitor = BackgroundLoadMonitor(Path.cwd())
    monitor.start()
    yield
    parts.append(BackgroundPart(**asdict(monitor.stop())))


def _watch(
    loader: Iterable[Any], watchdog: Watchdog, batches: int | None, seconds: float, device: str
) -> LoopStats:
    watched = WatchedLoader(loader, device, lambda stats: None)
    until, done, held, held_bytes = time.perf_counter() + seconds, 0, list[list[Any]](), 0
    examined, items = max(EXAMINED, getattr(loader, "num_workers", 0)), watchdog.guard(watched)
    try:
        for done, batch in zip(count(1), items, strict=False):
            if done <= examined and held_bytes < MOST_BYTES:
                held.append(batch_tensors(batch))
                held_bytes += sum(one.nbytes for one in held[-1])
            if done == batches or (done > 1 and time.perf_counter() > until):
                break
    except TargetError:
        raise
    except Exception as error:  # a user's loader may raise anything
        raise loader_error(error, f" after {counted(done, 'batch', 'batches')}") from error
    finally:
        items.close()
    if watched.stats is None or watched.stats.batches == 0:
        raise TargetError("the loader yields no batches", kind="empty")
    info = watched.stats.loader
    repeated = repeated_share(held, info.workers or 0) if info.iterable else None
    return replace(watched.stats, padding=padding_of(held), repeated=repeated)
