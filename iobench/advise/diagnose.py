"""Diagnosis of a loader that runs alone: it is watched, profiled, and its settings are raced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from traceback import walk_tb
from typing import Any

from iobench.advise import diagnosis
from iobench.advise.answer import no_time
from iobench.advise.checks import profiling
from iobench.advise.checks.call_costs import visible_opens
from iobench.advise.checks.evidence import Evidence
from iobench.advise.checks.loop_stats import MOST_BYTES, LoopStats, padding_of, repeated_share
from iobench.advise.checks.profiling import sampled_lines
from iobench.advise.checks.remedies import Remedies
from iobench.advise.checks.sample_calls import SampleCalls, calls_for
from iobench.advise.checks.watched_loader import WatchedLoader
from iobench.advise.diagnosis import Diagnosis
from iobench.advise.settings import search_space
from iobench.advise.settings.candidate import BETTER, Candidate, names_of, slowdown
from iobench.advise.settings.settings_race import SettingsRace
from iobench.advise.settings.tunable_loader import TunableLoader
from iobench.advise.settings.turn import TurnSpec
from iobench.advise.settings.watchdog import DeadlineReached, Watchdog, built, loader_budget
from iobench.base.errors import TargetError
from iobench.base.units import counted
from iobench.bench.budget import Budget
from iobench.host.machine_load import BackgroundLoadMonitor
from iobench.loading.inspection import batch_tensors, shallow_copy
from iobench.loading.user_errors import USER_ERRORS, loader_error, loader_errors
from iobench.results.run_warning import LONGER

WATCH, PROFILE, PROBES = 0.2, 0.15, 0.1  # of the time
MOST_S = 10.0  # for watching, and for profiling: more time is for the comparison
RACE = 0.45  # of the time that is left then; the rest is for the final rounds
FINALISTS = 3  # in addition to the baseline, each of another kind
DID = {"pickling": "pickled its dataset for the workers", "sampler": "waited for its sampler"}
EXAMINED = 8  # batches at least, for padding and repeated samples

Status = Callable[[str], None]


def diagnose(
    loader: str | Iterable[Any] | TunableLoader,
    *,
    batches: int | None = None,
    max_time_s: float = 20.0,
    timeout_s: float = 60.0,
    variants: bool = True,
    device: str = "cpu",
    on_status: Status = lambda text: None,
    budget: Budget | None = None,
) -> Diagnosis:
    """Run a loader, or the one that a function like ``train.py:make_loader`` builds, alone and diagnose it.

    Each run has at most `batches`, or whole epochs if time allows. `max_time_s`, or the `budget`, is the time
    for everything: with less, fewer settings are tried, in fewer rounds; without `variants` none. A loader
    that yields no batch for `timeout_s` hangs. `device` is where the batches go.

    TargetError if the loader raises (``raised``, with its traceback), hangs (``timeout``), yields nothing
    (``empty``) or no batch in the time (``out-of-time``).
    """
    budget = budget or Budget(max_time_s)
    tunable = loader if isinstance(loader, TunableLoader) else built(lambda: TunableLoader(loader), timeout_s)
    watchdog = Watchdog(timeout_s, loader_budget(budget))
    race = SettingsRace(tunable, TurnSpec(batches=batches, guard=watchdog.guard), budget=watchdog.budget)
    with watchdog.active():
        found, changes = examine(tunable, watchdog, device, batches, variants, on_status)
        if variants:
            with loader_errors():
                found.candidates = _raced(race, watchdog, found, changes, device, on_status)
    found.background += race.background
    found.slowdown = slowdown(race.turns)
    target = loader if isinstance(loader, str) else ""
    return diagnosis.diagnose(found, alone=True, target=target, max_time_s=budget.seconds)


def examine(
    loader: TunableLoader,
    watchdog: Watchdog,
    device: str,
    batches: int | None = None,
    changes: bool = True,
    on_status: Status = lambda text: None,
) -> tuple[Evidence, list[Candidate]]:
    """Watch and profile a loader while its watchdog is active.

    Return the evidence, and `changes` of the user's code that it suggests, to be tried.
    """
    on_status("watching the baseline")
    with sampled_lines() as lines:
        found = Evidence(_watch(loader, watchdog, batches, device))
    if loader.single_pass or watchdog.budget.over:
        return found, []
    on_status("profiling the loader")
    monitor = BackgroundLoadMonitor(Path.cwd())
    monitor.start()
    with loader_errors(), visible_opens():
        part = watchdog.part(PROFILE, MOST_S)
        found.profiles = profiling.profiles(loader, part, batches, watchdog.guard, lines)
    found.background.append(monitor.stop())
    found.sample = _sample_calls(loader, watchdog)
    if not changes:
        return found, []
    with loader_errors():
        return found, Remedies(loader, found, watchdog).candidates()


def _raced(
    race: SettingsRace,
    watchdog: Watchdog,
    found: Evidence,
    changes: Sequence[Candidate],
    device: str,
    status: Status,
) -> list[Candidate]:
    """Race changes of the code and other settings, and run final rounds of the best of each kind.

    Return the baseline and those that took part; note why others did not.
    """
    loop, budget = found.loop, watchdog.budget
    traits = search_space.LoaderTraits(
        loop.whole_epoch,
        loop.first_wait_s > search_space.SLOW_START * loop.epoch_s,
        loop.idle,
        loop.threads,
        device,
        (search_space.FORK,),  # the other methods start more slowly: `tune` tries them
        lambda: watchdog.within(watchdog.part(PROBES).seconds),
        loop.uneven,
    )
    candidates, skipped = search_space.candidates_for(race.loader, traits)
    candidates[1:1] = changes  # before those that take long to start
    found.skipped = [*skipped, *found.skipped]
    if len(candidates) < 2:
        return []
    turn_s = race.turn_s(loop.first_wait_s, loop.elapsed_s, loop.batches)
    with race.active():
        candidates, late = race.race_in_time(
            candidates, turn_s, RACE, lambda raced: bool(best_of_each_kind(raced)), status
        )
        chosen = race.finalists(candidates, best_of_each_kind(candidates))
        if len(chosen) > 1 and budget.left():
            status(f"final rounds: {names_of(chosen)}")
            race.final_rounds(chosen, budget.left())
    found.skipped += no_time([one.name for one in late], LONGER)
    return candidates


def best_of_each_kind(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the fastest candidate of each kind that beat the baseline in the race, the fastest first."""
    baseline, *others = candidates
    best: dict[str, Candidate] = {}

    def expected(one: Candidate) -> tuple[float, int]:
        """Return its rate, or that of an epoch without start-up where the race cannot show it."""
        share = baseline.first_batch_s[0] / baseline.epoch_s[0] if one.hides_gain(baseline) else 0.0
        return max(one.rate, share and baseline.rate / max(1 - share, 0.01)), -len(one.changes)

    for one in sorted(others, key=expected, reverse=True):
        faster = one.rate > BETTER * baseline.rate or one.hides_gain(baseline)
        if one.works and faster:
            best.setdefault(one.kind, one)
    return list(best.values())[:FINALISTS]


def _sample_calls(loader: TunableLoader, watchdog: Watchdog) -> SampleCalls:
    """Return what two samples of a map-style dataset ask of libraries; nothing where they cannot be taken."""
    if loader.indexes_rows:
        own: Any = loader.loader
        with suppress(Exception), watchdog.within(watchdog.part(PROBES).seconds):  # the loop told its errors
            return calls_for(shallow_copy(own.dataset), next(iter(own.batch_sampler))[:2])
    return SampleCalls()


def _watch(tunable: TunableLoader, watchdog: Watchdog, batches: int | None, device: str) -> LoopStats:
    loader, part = tunable.unchanged, watchdog.part(WATCH, MOST_S)
    watched = WatchedLoader(loader, device, lambda stats: None)
    done, held, held_bytes = 0, list[list[Any]](), 0
    workers = getattr(loader, "num_workers", 0)
    examined, items = max(EXAMINED, workers), watchdog.guard(watched)
    try:
        for done, batch in zip(count(1), items, strict=False):
            if done == 1:
                tunable.note_batch(batch)
            if done <= examined and held_bytes < MOST_BYTES:
                held.append([one.clone() if hasattr(one, "clone") else one for one in batch_tensors(batch)])
                held_bytes += sum(one.nbytes for one in held[-1])
            # the first batches of all workers come together
            if done == batches or (done > max(1, workers) and part.over):
                break
    except DeadlineReached as error:
        if not done:
            *_, (frame, _) = walk_tb(error.__traceback__)  # what the main process did when the time ended
            activity = profiling.activity_in(frame)
            if activity is None:
                raise
            raise error.changed(problem=f"{error.problem}; it {DID[activity]}") from error
    except TargetError:
        raise
    except USER_ERRORS as error:
        raise loader_error(error, f" after {counted(done, 'batch', 'batches')}") from error
    finally:
        items.close()
    if watched.stats is None or watched.stats.batches == 0:
        raise TargetError("the loader yields no batches", kind="empty")
    info = watched.stats.loader
    repeated = repeated_share(held, info.workers or 0) if info.iterable else None
    return replace(watched.stats, padding=padding_of(held), repeated=repeated)
