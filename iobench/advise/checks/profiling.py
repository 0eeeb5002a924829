"""Profiles of a loader: the calls of the main process and of its workers, and the lines of its own code."""

from __future__ import annotations

import gc
import hashlib
import json
import linecache
import pickle
import random
import re
import sys
import sysconfig
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import islice
from multiprocessing.util import Finalize
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from iobench.advise.checks.call_costs import (
    PACKAGES,
    QUEUES,
    Calls,
    FunctionShare,
    Key,
    LineShare,
    Profile,
    busy_s,
    cost_shares,
    is_idle,
    library_shares,
    name_of,
    outer_calls,
)
from iobench.advise.checks.loop_stats import chunks_of
from iobench.advise.settings.tunable_loader import TunableLoader, rebuilt
from iobench.advise.settings.turn import ItemGuard
from iobench.advise.settings.watchdog import DeadlineReached
from iobench.base.text import shortened
from iobench.bench.budget import Budget
from iobench.host.call_profile import CallProfile, calls_in
from iobench.host.machine_load import CollectorTime, Sampler
from iobench.loading.inspection import attributes_of

EVERY_S = 5e-3  # between two samples
# Python's is 5 ms, and most samples would be of lines that give the interpreter's lock away by themselves
SWITCH_S = 1e-5
MOST_TEXT = 70  # characters of a line
WAITS = re.compile(rf"{QUEUES.pattern}|selectors\.py")  # innermost frames of a process that waits for another
PACKAGE = Path(__file__).parents[2]
OTHERS = (str(PACKAGE), sysconfig.get_path("stdlib"), "<")  # where files are not the user's
DIAGNOSIS = str(PACKAGE / "advise")  # whose callers, such as the command's own script, are not looked at

SENDING = ("multiprocessing/popen_spawn_posix.py", "multiprocessing/popen_forkserver.py")
DATALOADER, STARTING = "torch/utils/data/dataloader.py", ("__init__", "_reset")

Line = tuple[str, int]


@contextmanager
def sampled_lines() -> Iterator[Counter[Line | None]]:
    """Sample the stack of this thread in the block.

    Give the counts of the innermost lines of the user's own code, and of samples without one.
    """
    counts, thread, switch_s = Counter[Line | None](), threading.get_ident(), sys.getswitchinterval()

    def sample() -> float:
        with _no_collection():
            frame = sys._current_frames().get(thread)
            if frame is not None and not WAITS.search(f"{frame.f_code.co_filename}:"):
                counts[_own_line(frame)] += 1
        return EVERY_S

    sys.setswitchinterval(SWITCH_S)
    try:
        with Sampler(sample, first_s=EVERY_S).active():
            yield counts
    finally:
        sys.setswitchinterval(switch_s)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector from running in the block.

    Up to Python 3.11 `f_back` makes an object, which may start a collection. Its callbacks let the sampled
    thread run on, and leave the frame that is being looked at.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def activity_of(thread: int) -> str | None:
    """Return what a DataLoader does in a thread: ``sampler`` or ``pickling``; None for anything else.

    Pickling includes writing into the pipe of a worker, which reads once it has imported what it needs.
    """
    with _no_collection():
        return activity_in(sys._current_frames().get(thread))


def activity_in(frame: FrameType | None) -> str | None:
    """Return the same for the code that a frame and its callers are in."""
    while frame is not None:
        file, name, caller = frame.f_code.co_filename, frame.f_code.co_name, frame.f_back
        if file.endswith(SENDING) and name == "_launch":
            return "pickling"
        if file.endswith(DATALOADER) and name == "_next_index":
            return "sampler"
        starter = caller.f_code if caller is not None and name == "__iter__" else None
        if starter and starter.co_name in STARTING and starter.co_filename.endswith(DATALOADER):
            return "sampler"  # one that makes its whole order at once, when an epoch starts
        frame = caller
    return None


def lines_of(counts: Mapping[Line | None, int], most: int) -> list[LineShare]:
    """Return the lines that take most of the time, with their shares."""
    total = sum(counts.values())
    lines = sorted(((number, line) for line, number in counts.items() if line is not None), reverse=True)
    return [
        LineShare(
            f"{'/'.join(Path(file).parts[-2:])}:{line}",
            shortened(linecache.getline(file, line).strip(), MOST_TEXT),
            number / total,
        )
        for number, (file, line) in lines[:most]
    ]


def _own_line(frame: FrameType | None) -> Line | None:
    """Return the innermost line of the user's own code that the diagnosis calls."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(DIAGNOSIS):
            return None
        if not file.startswith(OTHERS) and not any(f"/{one}/" in file for one in PACKAGES):
            return file, frame.f_lineno
        frame = frame.f_back
    return None


TOP = 10
STATS, NOTES = ".stats", ".json"  # files that a worker writes when it ends


def profiles(
    loader: TunableLoader,
    budget: Budget,
    batches: int | None,
    guard: ItemGuard,
    lines: Mapping[Line | None, int],
) -> list[Profile]:
    """Profile the main process and, for a DataLoader with workers, these together, in a loop.

    `lines` are samples of this process's lines, from a loop without a profiler, which makes calls slower.
    """
    with tempfile.TemporaryDirectory(prefix="iobench-") as folder:
        own: Any = loader.unchanged
        profiled = own
        if loader.rebuilds and own.num_workers:
            begin = partial(_begin, folder, own.worker_init_fn)
            # workers write their profiles when they end
            profiled = rebuilt(own, {"worker_init_fn": begin, "persistent_workers": False})
        with CollectorTime() as collector, CallProfile() as main, suppress(DeadlineReached):
            for _ in islice(guard(profiled), batches):
                if budget.over:
                    break
        notes = _notes(main, collector, getattr(own, "dataset", None), lines)
        results = [_summary("main process", main.calls, own, [notes])]
        if workers := [json.loads(path.read_text()) for path in Path(folder).glob(f"*{NOTES}")]:
            files = [str(path) for path in Path(folder).glob(f"*{STATS}")]
            results.append(_summary("workers", calls_in(files), own, workers))
    return results


def _notes(
    profile: CallProfile, collector: CollectorTime, dataset: Any, lines: Mapping[Line | None, int]
) -> dict[str, Any]:
    times = {"cpu_s": profile.cpu_s, "gc_s": collector.ns / 1e9}
    return {"obstacle": profile.obstacle, **times, "chunks": chunks_of(dataset), "lines": [*lines.items()]}


def _digest(state: Any) -> str:
    return hashlib.sha256(pickle.dumps(state)).hexdigest()


def _begin(folder: str, then: Callable[[int], None] | None, worker: int) -> None:
    """Profile this worker until it ends, and note the chunks of its files; runs first in the worker."""
    measured, info, path = ExitStack(), get_worker_info(), f"{folder}/{worker}"
    dataset = info.dataset if info is not None else None  # torch forgets it before the worker ends
    collector = measured.enter_context(CollectorTime())
    lines, profile = measured.enter_context(sampled_lines()), measured.enter_context(CallProfile())
    generators: dict[str, Callable[[], Any]] = {  # their states
        "random": random.getstate,
        "np.random": np.random.get_state,
        "torch": lambda: torch.get_rng_state().numpy().tobytes(),
    }
    generators |= {  # of the dataset's those that must be made again to seed them
        name: partial(getattr, value.bit_generator, "state")
        for name, value in attributes_of(dataset)
        if isinstance(value, np.random.Generator)
    }
    begun = dict[str, str]()

    def end() -> None:
        measured.close()  # first: all that follows is work of our own
        used = {name: state for name, state in begun.items() if _digest(generators[name]()) != state}
        profile.dump(path + STATS)
        # the dataset's files are open only here
        notes = {**_notes(profile, collector, dataset, lines), "random": used}
        Path(path + NOTES).write_text(json.dumps(notes))

    Finalize(None, end, exitpriority=100)
    if then is not None:
        then(worker)
    begun |= {name: _digest(state()) for name, state in generators.items()}


def _summary(where: str, calls: Calls, loader: Any, notes: Sequence[Mapping[str, Any]]) -> Profile:
    obstacle = next((note["obstacle"] for note in notes if note["obstacle"]), None)
    total = busy_s(calls) if obstacle is None else max(1e-9, sum(note["cpu_s"] for note in notes))
    own = sorted((item for item in calls.items() if not is_idle(item[0])), key=lambda item: -item[1][2])
    dataset, getting = type(getattr(loader, "dataset", None)), ("__getitem__", "__getitems__")
    items = [
        figures
        for key, figures in calls.items()
        if key[2] in getting and _is_code_of(getattr(dataset, key[2], None), key)
    ]
    collating = [figures[3] for key, figures in calls.items() if _is_collate(key, loader)]
    collate_fn = getattr(loader, "collate_fn", None)
    in_collate = sum(figures[2] for key, figures in calls.items() if _is_code_of(collate_fn, key))
    begun = Counter(one for note in notes for one in note.get("random", {}).items())
    sampled = Counter[Line | None]()
    for line, number in (one for note in notes for one in note["lines"]):
        sampled[tuple(line) if line else None] += number
    return Profile(
        where=where,
        total_s=total,
        functions=[FunctionShare(name_of(key), one[2] / total, one[1]) for key, one in own[:TOP]],
        getitem_share=min(1.0, sum(one[3] for one in items) / total),
        getitem_calls=sum(one[1] for one in items),
        collate_share=min(1.0, max(collating, default=0.0) / total),
        collate_own_share=min(1.0, in_collate / total),
        costs=cost_shares(calls, total),
        outer=outer_calls(calls),
        libraries=library_shares(calls, total)[:TOP],
        lines=lines_of(sampled, TOP),
        gc_share=min(1.0, sum(note["gc_s"] for note in notes) / total),
        chunks=sorted({chunks for note in notes for chunks in note["chunks"]}),
        same_random=sorted({name for (name, _), workers in begun.items() if workers > 1}),
        obstacle=obstacle,
    )


def _is_collate(key: Key, loader: Any) -> bool:
    """Return True for collating; `default_convert` only converts whole batches."""
    if key[0].endswith("collate.py"):
        return key[2] != "default_convert"
    return "collate" in key[2] or _is_code_of(getattr(loader, "collate_fn", None), key)


def _is_code_of(function: Any, key: Key) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and (code.co_filename, code.co_firstlineno) == key[:2]
