"""Settings of a loader that are worth trying on this machine."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import IterableDataset

from iobench.advise.settings.candidate import BASELINE, Candidate
from iobench.advise.settings.settings_race import ResourceLimits
from iobench.advise.settings.tunable_loader import TunableLoader
from iobench.base.finding import Finding
from iobench.base.units import counted
from iobench.host.device import device_of, pick_device

MAX_WORKERS = 16
BUSY_TIMES = 2  # workers per core: with one each, cores idle at the end of an epoch
IDLE_TIMES = 8  # workers per core where they wait most of the time
MORE_AHEAD = 4  # times the prefetch factor
BATCH_FETCH = "whole batches from the dataset"
ONE_THREAD = "one thread per worker"
FORK = "fork"
STARTS = {  # start methods by Python's name, the fastest first
    FORK: "forked workers",
    "forkserver": "workers from a fork server",
    "spawn": "spawned workers",
}
SIGNALLED = ("persistent", "threads")  # kinds that a sign suggests, which are tried first, in this order
SLOW_START = 0.05  # of an epoch for its first batch, from which on the start of workers matters


@dataclass(frozen=True)
class LoaderTraits:
    """Facts about the baseline that decide what else is tried."""

    whole: bool = True  # an epoch fits in the time available
    starting: bool = True  # the start of workers takes a considerable part of an epoch
    idle: bool = False  # its processes wait most of the time, so that more workers than cores may help
    threads: bool = True  # libraries that it uses start threads of their own
    device: str = "auto"  # device that the batches go to
    starts: tuple[str, ...] = tuple(STARTS)  # start methods that there is time for
    probing: Callable[[], AbstractContextManager[None]] = nullcontext  # limits the time of asking for samples
    uneven: bool = True  # batches come unevenly, so that some wait for one before them


def candidates_for(
    loader: TunableLoader, traits: LoaderTraits, limits: ResourceLimits | None = None
) -> tuple[list[Candidate], list[Finding]]:
    """Return the baseline and the settings worth trying, and the reasons why others are skipped."""
    limits, now = limits or ResourceLimits(), loader.workers({})
    refined = refinements(loader, Candidate(BASELINE), traits)
    chosen = [Candidate(BASELINE, over_limit=limits.worker_problem(now))]
    chosen += [one for kind in SIGNALLED for one in refined if one.kind == kind]
    with traits.probing():
        whole_batches = loader.fetches_batches
    if whole_batches:
        chosen.append(Candidate(BATCH_FETCH, {"batch_fetch": True, "num_workers": 0}, "fetch"))
        if now:
            named = f"{BATCH_FETCH}, {counted(now, 'worker')}"
            chosen.append(Candidate(named, {"batch_fetch": True}, "fetch"))
    counts, why_none = _worker_counts(loader, traits, limits)
    skipped = [why_none] if why_none else []
    if (now or counts) and traits.starting and traits.whole:
        skipped += _skipped_starts(loader, traits)
    with_workers = {n: Candidate(counted(n, "worker"), {"num_workers": n}, "workers") for n in counts}
    chosen += with_workers.values()
    if counts and max(counts) > 1:
        many = with_workers[max(counts)]
        # the gain of the most workers is hidden by their start unless they persist, or by too many threads
        hiding = {"persistent"} if now else {"persistent", "threads"}
        chosen += [one for one in refinements(loader, many, traits) if one.kind in hiding]
    chosen += [one for one in refined if one.kind not in SIGNALLED]
    baseline, *others = chosen
    fitting = [one for one in others if not limits.worker_problem(loader.workers(one.changes))]
    return [baseline, *fitting], skipped


def refinements(loader: TunableLoader, base: Candidate, traits: LoaderTraits) -> list[Candidate]:
    """Return `base` with one more setting changed, of those that matter less than the number of workers."""
    chosen, workers = list[Candidate](), loader.workers(base.changes)
    if workers and "prefetch_factor" in loader.settable:
        ahead = MORE_AHEAD * (_current(loader, base, "prefetch_factor") or 2)
        chosen.append(_refined(base, "prefetch", f"prefetch factor {ahead}", prefetch_factor=ahead))
    ordered = "in_order" in loader.settable and _current(loader, base, "in_order") is not False
    if workers > 1 and traits.uneven and ordered:
        chosen.append(_refined(base, "order", "batches in any order", in_order=False))
    if workers and traits.starting and traits.whole:
        persists = _current(loader, base, "persistent_workers")
        if "persistent_workers" in loader.settable and not persists:
            chosen.append(_refined(base, "persistent", "persistent workers", persistent_workers=True))
        starts = _other_starts(loader, base, traits)
        possible = [method for method, problem in starts.items() if problem is None]
        chosen += [_refined(base, "start", STARTS[one], multiprocessing_context=one) for one in possible]
    limited = _current(loader, base, "worker_threads")
    if workers and traits.threads and "worker_threads" in loader.settable and not limited:
        too_many = threads_oversubscribed(workers)
        chosen += [_refined(base, "threads", ONE_THREAD, worker_threads=1)] if too_many else []
    pins = device_of(pick_device(traits.device)).pins
    if pins and "pin_memory" in loader.settable and not _current(loader, base, "pin_memory"):
        chosen.append(_refined(base, "pinned", "pinned memory", pin_memory=True))
    return chosen


def threads_oversubscribed(workers: int) -> bool:
    """Return True if NumPy's libraries would start more threads in these workers than there are cores.

    Torch limits its own threads to one per worker.
    """
    import threadpoolctl

    pools = [one for one in threadpoolctl.threadpool_info() if one.get("user_api") == "blas"]
    threads = max((one.get("num_threads", 1) for one in pools), default=1)
    return threads > 1 and workers * threads > len(os.sched_getaffinity(0))


def _refined(base: Candidate, kind: str, name: str, **changes: Any) -> Candidate:
    full_name = f"{base.name}, {name}" if base.changes else name
    return Candidate(full_name, {**base.changes, **changes}, kind)


def _current(loader: TunableLoader, base: Candidate, name: str) -> Any:
    return base.changes.get(name, getattr(loader.loader, name, None) if loader.rebuilds else None)


def _other_starts(loader: TunableLoader, base: Candidate, traits: LoaderTraits) -> dict[str, Finding | None]:
    """Return the start methods other than the present one, if it can be set; each with what prevents it."""
    if "multiprocessing_context" not in loader.settable:
        return {}
    known = multiprocessing.get_all_start_methods()  # the default comes first; it depends on Python's version
    context = _current(loader, base, "multiprocessing_context")
    if context is None:
        context = multiprocessing.get_start_method(allow_none=True) or known[0]
    now = context if isinstance(context, str) else context.get_start_method()
    others = [method for method in traits.starts if method in known and method != now]
    return {method: loader.fork_problem if method == FORK else loader.spawn_problem for method in others}


def _skipped_starts(loader: TunableLoader, traits: LoaderTraits) -> list[Finding]:
    """Return why workers cannot start by other methods: one finding for those with the same problem."""
    problems: dict[str, tuple[Finding, list[str]]] = {}
    for method, problem in _other_starts(loader, Candidate(BASELINE), traits).items():
        if problem is not None:
            problems.setdefault(problem.sentence, (problem, []))[1].append(method)
    return [
        _about(" and ".join(STARTS[method] for method in methods), problem, start_methods=",".join(methods))
        for problem, methods in problems.values()
    ]


def _about(subject: str, problem: Finding, **values: str) -> Finding:
    return replace(problem, message=f"{subject}: {problem.message}", values={**problem.values, **values})


def _worker_counts(
    loader: TunableLoader, traits: LoaderTraits, limits: ResourceLimits
) -> tuple[Sequence[int], Finding | None]:
    now = loader.workers({})
    every = worker_counts(traits.idle, limits) if "num_workers" in loader.settable else []
    counts = [n for n in every if n != now]
    if now or not counts:
        return counts, None
    shards_itself = loader.rebuilds and isinstance(loader.loader.dataset, IterableDataset)
    if shards_itself and not traits.whole:
        message = "workers: unknown whether its dataset shards its samples over them"
        return [], Finding("sharding-unknown", message)
    problem = loader.batch_problem or loader.fork_problem
    return ([], _about("workers", problem)) if problem is not None else (counts, None)


def worker_counts(idle: bool, limits: ResourceLimits) -> Sequence[int]:
    """Return 0 and the powers of two up to some times the number of cores."""
    cores = len(os.sched_getaffinity(0))
    most = min(MAX_WORKERS, cores * (IDLE_TIMES if idle else BUSY_TIMES))
    if limits.workers is not None:
        most = min(most, limits.workers)
    counts = [0, *(2**power for power in range(1, most.bit_length()) if 2**power <= most)]
    return [*counts, 1] if most and 1 in (cores, most) else counts
