"""Which settings of a loader are worth a turn here."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import IterableDataset

from iobench.base.units import counted
from iobench.host.device import device_of, pick_device
from iobench.loading.foreign import handles_of
from iobench.tuning.candidate import BASELINE, Candidate
from iobench.tuning.settings_race import ResourceLimits
from iobench.tuning.tunable_loader import TunableLoader, fetches_batches
from iobench.tuning.tunable_loader import code_of as own_code

MOST_WORKERS = 16
BUSY_TIMES = 2  # as many workers as cores: one for each leaves cores without work as an epoch ends
IDLE_TIMES = 8  # as many, where they would wait most of the time
MORE_AHEAD = 4  # times the prefetch factor
BATCH_FETCH = "whole batches from the dataset"
ONE_THREAD = "one thread in each worker"
FORK = "fork"
STARTS = {  # how workers can start, by Python's word for it, the quickest first
    FORK: "workers that are forked",
    "forkserver": "workers from a fork server",
    "spawn": "workers that are spawned",
}
SIGNS = ("threads", "persistent")  # tried where a sign was seen of what they mend: so before all others
STARTING = 0.05  # of an epoch, that its first batch has to take for how workers start to matter


@dataclass(frozen=True)
class LoaderTraits:
    """What is known of a loader as it is, before anything else is tried.

    `whole`: an epoch takes no longer than there is time for. `starting`: how its workers start matters.
    `idle`: its processes wait most of the time, so that more workers than cores may bring something.
    `threads`: libraries that it uses start threads of their own. `starts`: the ways of starting workers that
    there is time for.
    """

    whole: bool = True
    starting: bool = True
    idle: bool = False
    threads: bool = True
    device: str = "auto"
    starts: tuple[str, ...] = tuple(STARTS)


def candidates_for(own: TunableLoader, like: LoaderTraits, limits: ResourceLimits | None = None) -> tuple[list[Candidate], list[str]]:
    """The loader as it is and what is worth trying, as far as it can be set; and what is not, and why."""
    limits, now = limits or ResourceLimits(), own.workers({})
    refined = refinements(own, Candidate(BASELINE), like)
    found = [Candidate(BASELINE, unfit=_too_many(own, {}, limits))]
    found += [one for one in refined if one.kind in SIGNS]
    if fetches_batches(own):
        found.append(_trial("fetch", BATCH_FETCH, batch_fetch=True, num_workers=0))
        if now:
            found.append(_trial("fetch", f"{BATCH_FETCH}, {counted(now, 'worker')}", batch_fetch=True))
    counts, why_none = _worker_counts(own, like, limits)
    left_out = [why_none] if why_none else []
    if (now or counts) and like.starting and like.whole:
        left_out += _left_starts(own, like)
    found += [_trial("workers", counted(n, "worker"), num_workers=n) for n in counts]
    if counts and max(counts) > 1:
        many = _trial("workers", counted(max(counts), "worker"), num_workers=max(counts))
        # what the most bring is hidden by their start where they do not persist, or by threads that fight
        hiding = {"persistent"} if now else {"persistent", "threads"}
        found += [one for one in refinements(own, many, like) if one.kind in hiding]
    found += [one for one in refined if one.kind not in SIGNS]
    return [one for one in found if not one.changes or not _too_many(own, one.changes, limits)], left_out


def refinements(own: TunableLoader, of: Candidate, like: LoaderTraits) -> list[Candidate]:
    """The same settings with one more changed, of those that matter less than how many workers there are."""
    found, workers = list[Candidate](), own.workers(of.changes)
    if workers and _can(own, "prefetch_factor"):
        ahead = MORE_AHEAD * (_now(own, of, "prefetch_factor") or 2)
        found.append(_more(of, "prefetch", f"prefetch factor {ahead}", prefetch_factor=ahead))
    if workers and like.starting and like.whole:
        if _can(own, "persistent_workers") and not _now(own, of, "persistent_workers"):
            found.append(_more(of, "persistent", "workers that persist", persistent_workers=True))
        others = [one for one in _other_starts(own, of, like) if _unstartable(own, one) is None]
        found += [_more(of, "start", STARTS[one], multiprocessing_context=one) for one in others]
    if workers and like.threads and _can(own, "worker_threads") and not _now(own, of, "worker_threads"):
        fighting = threads_fight(workers)
        found += [_more(of, "threads", ONE_THREAD, worker_threads=1)] if fighting else []
    pins = device_of(pick_device(like.device)).pins
    if pins and _can(own, "pin_memory") and not _now(own, of, "pin_memory"):
        found.append(_more(of, "pinned", "pinned memory", pin_memory=True))
    return found


def threads_fight(workers: int) -> bool:
    """Whether so many workers would have more threads than there are cores, in libraries that NumPy uses.

    Torch's own are limited to one in each worker.
    """
    import threadpoolctl

    pools = [one for one in threadpoolctl.threadpool_info() if one.get("user_api") == "blas"]
    threads = max((one.get("num_threads", 1) for one in pools), default=1)
    return threads > 1 and workers * threads > len(os.sched_getaffinity(0))


def code_of(own: TunableLoader, changes: Mapping[str, Any]) -> str:
    """What to write for these settings."""
    if not own.rebuilds:
        return ", ".join(f"{name}={value!r}" for name, value in changes.items())
    return own_code(own.loader, changes)


def _trial(kind: str, name: str, **changes: Any) -> Candidate:
    return Candidate(name, changes, kind)


def _more(of: Candidate, kind: str, name: str, **changes: Any) -> Candidate:
    return Candidate(f"{of.name}, {name}" if of.changes else name, {**of.changes, **changes}, kind)


def _can(own: TunableLoader, name: str) -> bool:
    return name in own.settable


def _now(own: TunableLoader, of: Candidate, name: str) -> Any:
    return of.changes.get(name, getattr(own.loader, name, None) if own.rebuilds else None)


def _other_starts(own: TunableLoader, of: Candidate, like: LoaderTraits) -> list[str]:
    """How its workers could start beside the way in which they do, where that can be set."""
    known = multiprocessing.get_all_start_methods()  # the default first, which another Python has another of
    context = _now(own, of, "multiprocessing_context")
    if context is None:
        context = multiprocessing.get_start_method(allow_none=True) or known[0]
    now = context if isinstance(context, str) else context.get_start_method()
    can = _can(own, "multiprocessing_context")
    return [method for method in like.starts if method in known and method != now] if can else []


def _unstartable(own: TunableLoader, method: str) -> str | None:
    """Why workers cannot start in a way; None where they can."""
    if method != FORK:
        return own.spawn_problem
    held = handles_of(own.dataset_for({"num_workers": 1})) if own.rebuilds else []
    return f"{', '.join(held)} is open already, and must not be forked" if held else None


def _left_starts(own: TunableLoader, like: LoaderTraits) -> list[str]:
    """The ways of starting workers that are not tried, and why."""
    why: dict[str, list[str]] = {}
    for method in _other_starts(own, Candidate(BASELINE), like):
        if (problem := _unstartable(own, method)) is not None:
            why.setdefault(problem, []).append(STARTS[method])
    return [f"{' and '.join(methods)}: {problem}" for problem, methods in why.items()]


def _repeats(own: TunableLoader) -> bool:
    """Whether each worker may give all samples: an IterableDataset has to share them out itself."""
    return own.rebuilds and isinstance(own.loader.dataset, IterableDataset)


def _too_many(own: TunableLoader, changes: Mapping[str, Any], limits: ResourceLimits) -> str | None:
    """Why so many workers are none to choose."""
    count = own.workers(changes)
    if limits.workers is None or count <= limits.workers:
        return None
    return f"has {counted(count, 'worker')}, more than --max-workers {limits.workers}"


def _worker_counts(own: TunableLoader, like: LoaderTraits, limits: ResourceLimits) -> tuple[Sequence[int], str | None]:
    """Other numbers of workers that are worth trying; where it is to have none, why."""
    now = own.workers({})
    counts = [n for n in _counts(like.idle, limits) if n != now] if _can(own, "num_workers") else []
    if now or not counts:
        return counts, None
    if _repeats(own) and not like.whole:
        return [], "workers: nobody can tell whether its dataset shares its samples out among them"
    if own.rebuilds and (held := handles_of(own.dataset_for({"num_workers": 1}))):
        fix = "open it in the first __getitem__"
        return [], f"workers: {', '.join(held)} is open already, and must not be forked: {fix}"
    return counts, None


def _counts(idle: bool, limits: ResourceLimits) -> Sequence[int]:
    """Numbers of workers worth trying: none, and powers of two up to some times the cores."""
    cores = len(os.sched_getaffinity(0))
    most = min(MOST_WORKERS, cores * (IDLE_TIMES if idle else BUSY_TIMES))
    if limits.workers is not None:
        most = min(most, limits.workers)
    counts = [0, *(2**power for power in range(1, most.bit_length()) if 2**power <= most)]
    return [*counts, 1] if most and 1 in (cores, most) else counts
