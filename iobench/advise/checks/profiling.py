"""CPU profiles of a loader, in the main process and in its workers."""

from __future__ import annotations

import cProfile
import json
import pstats
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from torch.utils.data import get_worker_info

from iobench.advise.checks.call_costs import (
    Calls,
    Key,
    LibraryShare,
    busy_s,
    calls_of,
    cost_shares,
    is_idle,
    library_shares,
    name_of,
)
from iobench.advise.checks.line_sampler import Line, LineSampler, LineShare, lines_of
from iobench.advise.checks.loader_info import chunks_of
from iobench.advise.settings.rebuilt_loader import rebuilt
from iobench.advise.settings.tunable_loader import TunableLoader
from iobench.advise.settings.turn import ItemGuard
from iobench.advise.settings.watchdog import DeadlineReached
from iobench.host.collector import CollectorTime

TOP = 10
STATS, NOTES = ".stats", ".json"  # files that a worker writes when it ends


@dataclass(frozen=True)
class FunctionShare:
    """A function, its share of the time, and its number of calls."""

    name: str
    share: float
    calls: int


@dataclass(frozen=True)
class Profile:
    """Shares of the Python time of one process, or of all workers together.

    The profiler makes calls slower: the shares of many short calls are too large.
    """

    where: str  # ``main process`` or ``workers``
    total_s: float  # seconds of CPU time without waiting
    functions: list[FunctionShare]  # the functions with most time of their own, in that order
    getitem_share: float  # of the dataset's ``__getitem__``, including what it calls
    getitem_calls: int
    collate_share: float
    costs: Mapping[str, float] = field(default_factory=dict)  # by kind of work, see `call_costs.COSTS`
    file_calls: int = 0  # calls that opened or read a file
    opened_calls: int = 0  # likewise of files of many samples, such as HDF5 files
    libraries: list[LibraryShare] = field(default_factory=list)  # with all that they call, the most first
    lines: list[LineShare] = field(default_factory=list)  # of the user's own code, likewise
    gc_share: float = 0.0  # of the garbage collector
    chunks: list[str] = field(default_factory=list)  # open HDF5 datasets whose chunks hold several samples


def profiles(
    loader: TunableLoader,
    seconds: float,
    batches: int | None,
    guard: ItemGuard,
    lines: Mapping[Line | None, int],
) -> list[Profile]:
    """Profile the main process and, for a DataLoader with workers, these together, in a loop of some seconds.

    `lines` are samples of this process's lines, from a loop without a profiler, which makes calls slower.
    """
    with tempfile.TemporaryDirectory(prefix="iobench-") as folder:
        own: Any = loader.unchanged
        profiled = own
        if loader.rebuilds and own.num_workers:
            profiled = rebuilt(
                own,
                {
                    "worker_init_fn": partial(_begin, folder, own.worker_init_fn),
                    "persistent_workers": False,  # workers write their profiles when they end
                },
            )
        calls, gc_s = _main(guard(profiled), seconds, batches)
        chunks = chunks_of(getattr(own, "dataset", None))
        results = [_summary("main process", calls, own, gc_s, chunks, lines)]
        files = [str(path) for path in Path(folder).glob(f"*{STATS}")]
        if files:
            notes = [json.loads(path.read_text()) for path in Path(folder).glob(f"*{NOTES}")]
            chunks = sorted({chunks for note in notes for chunks in note["chunks"]})
            workers, gc_s = pstats.Stats(*files), sum(note["gc_s"] for note in notes)
            sampled = Counter[Line | None]()
            for line, number in (one for note in notes for one in note["lines"]):
                sampled[tuple(line) if line else None] += number
            results.append(_summary("workers", workers, own, gc_s, chunks, sampled))
    return results


def _main(loader: Iterable[Any], seconds: float, batches: int | None) -> tuple[pstats.Stats, float]:
    """Return the calls of this process, and the seconds of its garbage collector."""
    profile = cProfile.Profile()
    until = time.perf_counter() + seconds
    with profile, CollectorTime() as collector, suppress(DeadlineReached):
        for _ in islice(loader, batches):
            if time.perf_counter() > until:
                break
    return pstats.Stats(profile), collector.ns / 1e9


def _begin(folder: str, then: Callable[[int], None] | None, worker: int) -> None:
    """Profile this worker until it ends, and note the chunks of its files; runs first in the worker."""
    profile, collector, lines = cProfile.Profile(), CollectorTime(), LineSampler()
    info = get_worker_info()  # torch forgets it before the worker ends
    dataset = info.dataset if info is not None else None
    Finalize(None, _end, args=(profile, collector, lines, dataset, f"{folder}/{worker}"), exitpriority=100)
    collector.__enter__()
    lines.start()
    profile.enable()
    if then is not None:
        then(worker)


def _end(
    profile: cProfile.Profile, collector: CollectorTime, lines: LineSampler, dataset: Any, path: str
) -> None:
    profile.disable()
    lines.stop()
    profile.dump_stats(path + STATS)
    # its files are open only here
    notes = {"chunks": chunks_of(dataset), "gc_s": collector.ns / 1e9, "lines": [*lines.counts.items()]}
    Path(path + NOTES).write_text(json.dumps(notes))


def _summary(
    where: str,
    stats: pstats.Stats,
    loader: Any,
    gc_s: float,
    chunks: list[str],
    lines: Mapping[Line | None, int],
) -> Profile:
    calls: Calls = stats.stats  # type: ignore[attr-defined]
    total = busy_s(calls)
    own = sorted((item for item in calls.items() if not is_idle(item[0])), key=lambda item: -item[1][2])
    items = [figures for key, figures in calls.items() if _is_getitem(key, loader)]
    collating = [figures[3] for key, figures in calls.items() if _is_collate(key, loader)]
    return Profile(
        where=where,
        total_s=total,
        functions=[FunctionShare(name_of(key), one[2] / total, one[1]) for key, one in own[:TOP]],
        getitem_share=min(1.0, sum(one[3] for one in items) / total),
        getitem_calls=sum(one[1] for one in items),
        collate_share=min(1.0, max(collating, default=0.0) / total),
        costs=cost_shares(calls, total),
        file_calls=calls_of(calls, "files"),
        opened_calls=calls_of(calls, "openings"),
        libraries=library_shares(calls, total)[:TOP],
        lines=lines_of(lines, TOP),
        gc_share=min(1.0, gc_s / total),
        chunks=chunks,
    )


def _is_getitem(key: Key, loader: Any) -> bool:
    method = getattr(type(getattr(loader, "dataset", None)), key[2], None)
    return key[2] in ("__getitem__", "__getitems__") and _is_code_of(method, key)


def _is_collate(key: Key, loader: Any) -> bool:
    """Return True for collating; `default_convert` only converts whole batches."""
    if key[0].endswith("collate.py"):
        return key[2] != "default_convert"
    return "collate" in key[2] or _is_code_of(getattr(loader, "collate_fn", None), key)


def _is_code_of(function: Any, key: Key) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and (code.co_filename, code.co_firstlineno) == key[:2]
