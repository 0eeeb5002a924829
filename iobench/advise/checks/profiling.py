"""CPU profiles of a loader, in the main process and in its workers."""

from __future__ import annotations

import cProfile
import json
import pstats
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from torch.utils.data import get_worker_info

from iobench.advise.checks.loader_info import chunks_of
from iobench.advise.settings.tunable_loader import TunableLoader, rebuilt
from iobench.advise.settings.turn import ItemGuard

TOP = 10
STATS, CHUNKS = ".stats", ".chunks.json"  # files that a worker writes when it ends
DECODERS = re.compile(
    r"\b(PIL|cv2|imageio|turbojpeg|torchvision[/.]io|zlib|gzip|bz2|lzma|lz4|zstd\w*|blosc|soundfile|librosa"
    r"|torchaudio|msgpack)\b|decompress|ImagingDecoder|_pickle\.loads|json[/.]decoder",
)

PACKAGES = ("site-packages", "dist-packages")  # folders that packages are installed in
# <built-in method torch.stack>, <method 'reduce' of 'numpy.ufunc' objects>, {function DatasetID.read ...}
BUILT_IN = re.compile(r"(?:built-in method |of ')([A-Za-z_]\w*)\.")
LOADING = "/torch/utils/data/"  # the DataLoader itself
TENSOR = "<built-in method torch.tensor>"

Key = tuple[str, int, str]
Figures = tuple[int, int, float, float, dict[Key, Any]]


@dataclass(frozen=True)
class FunctionShare:
    """A function, its own share of the time, and its number of calls."""

    name: str
    share: float
    calls: int


@dataclass(frozen=True)
class Profile:
    """Shares of the Python time of one process, or of all workers together.

    The profiler makes calls slower: the shares of many short calls are too large.

    Attributes
    ----------
    where : str
        ``main process`` or ``workers``.
    total_s : float
        Seconds of CPU time without waiting.
    functions : list of FunctionShare
        The functions with most time of their own, in that order.
    getitem_share, getitem_calls
        Share of the time inside the dataset's ``__getitem__``, including what it calls, and its calls.
    collate_share, decode_share, tensor_share : float
        Shares of collating, of decoders, and of ``torch.tensor``, which reads a list number by number.
    library, library_share
        The package whose own functions take most of the time, and their share.
    chunks : list of str
        HDF5 datasets, open in this process after the profile, whose chunks hold several samples each.
    """

    where: str
    total_s: float
    functions: list[FunctionShare]
    getitem_share: float
    getitem_calls: int
    collate_share: float
    decode_share: float
    tensor_share: float = 0.0
    library: str = ""
    library_share: float = 0.0
    chunks: list[str] = field(default_factory=list)


def profiles(loader: TunableLoader, seconds: float, batches: int | None, guard: ItemGuard) -> list[Profile]:
    """Profile the main process and, for a DataLoader with workers, these together.

    Parameters
    ----------
    loader : TunableLoader
        The loader to run.
    seconds : float
        Time after which the loop ends.
    batches : int or None
        Batches after which it ends.
    guard : callable
        Passes the batches through, and raises if one takes too long.
    """
    with tempfile.TemporaryDirectory(prefix="iobench-") as folder:
        own: Any = loader.with_changes({})
        profiled = own
        if loader.rebuilds and own.num_workers:
            profiled = rebuilt(
                own,
                {
                    "worker_init_fn": partial(_begin, folder, own.worker_init_fn),
                    "persistent_workers": False,  # workers write their profiles when they end
                },
            )
        main = _main(guard(profiled), seconds, batches)
        results = [_summary("main process", main, own, chunks_of(getattr(own, "dataset", None)))]
        files = [str(path) for path in Path(folder).glob(f"*{STATS}")]
        if files:
            results.append(_summary("workers", pstats.Stats(*files), own, _noted_chunks(Path(folder))))
    return results


def _noted_chunks(folder: Path) -> list[str]:
    """Return what the workers noted of their datasets."""
    notes = [json.loads(path.read_text()) for path in folder.glob(f"*{CHUNKS}")]
    return sorted({chunks for note in notes for chunks in note})


def _main(loader: Iterable[Any], seconds: float, batches: int | None) -> pstats.Stats:
    profile = cProfile.Profile()
    until = time.perf_counter() + seconds
    with profile:
        for _ in islice(loader, batches):
            if time.perf_counter() > until:
                break
    return pstats.Stats(profile)


def _begin(folder: str, then: Callable[[int], None] | None, worker: int) -> None:
    """Profile this worker until it ends, and note the chunks of its files; runs first in the worker."""
    profile = cProfile.Profile()
    Finalize(None, _end, args=(profile, f"{folder}/{worker}"), exitpriority=100)
    profile.enable()
    if then is not None:
        then(worker)


def _end(profile: cProfile.Profile, path: str) -> None:
    profile.disable()
    profile.dump_stats(path + STATS)
    if (info := get_worker_info()) is not None:  # files that its dataset opened are open only here
        Path(path + CHUNKS).write_text(json.dumps(chunks_of(info.dataset)))


def _summary(where: str, stats: pstats.Stats, loader: Any, chunks: list[str]) -> Profile:
    figures: dict[Key, Figures] = stats.stats  # type: ignore[attr-defined]
    waiting = [key for key in figures if _idle(key)]
    total = sum(own for _, _, own, _, _ in figures.values()) - sum(figures[key][2] for key in waiting)
    total = max(total, 1e-9)
    own = sorted(
        ((key, value) for key, value in figures.items() if key not in waiting), key=lambda kv: -kv[1][2]
    )
    library, library_s = _library(dict(own))
    items = [value for key, value in figures.items() if _is_getitem(key, loader)]
    return Profile(
        where=where,
        total_s=total,
        functions=[FunctionShare(_name(key), value[2] / total, value[1]) for key, value in own[:TOP]],
        getitem_share=min(1.0, sum(value[3] for value in items) / total),
        getitem_calls=sum(value[1] for value in items),
        collate_share=min(
            1.0, max((v[3] for k, v in figures.items() if _is_collate(k)), default=0.0) / total
        ),
        tensor_share=min(1.0, sum(v[2] for k, v in figures.items() if k[2] == TENSOR) / total),
        decode_share=min(1.0, sum(v[2] for k, v in figures.items() if DECODERS.search(_name(k))) / total),
        library=library,
        library_share=min(1.0, library_s / total),
        chunks=chunks,
    )


def _library(figures: dict[Key, Figures]) -> tuple[str, float]:
    """Return the package whose own functions take most time, and the seconds; of files, only packages'."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for key, value in figures.items():
        if name := _package(key):
            seconds[name] += value[2]
    return max(seconds.items(), key=lambda item: item[1], default=("", 0.0))


def _package(key: Key) -> str:
    """Return the package of an installed file, or of a built-in function by its printed name, else ''."""
    file, _, function = key
    if file == "~":
        found = BUILT_IN.search(function)
        return found[1] if found else ""
    parts = Path(file).parts
    places = [place for place, part in enumerate(parts) if part in PACKAGES]
    if places:
        return "" if LOADING in file else parts[places[-1] + 1].removesuffix(".py")
    return "" if file.startswith("/") else file.partition("/")[0]  # Cython: h5py/h5d.pyx


def _is_getitem(key: Key, loader: Any) -> bool:
    if key[2] not in ("__getitem__", "__getitems__"):
        return False
    dataset = getattr(loader, "dataset", None)
    method = getattr(type(dataset), key[2], None)
    code = getattr(method, "__code__", None)
    return code is not None and (code.co_filename, code.co_firstlineno) == key[:2]


def _is_collate(key: Key) -> bool:
    """Return True for collating; `default_convert` only converts whole batches."""
    return (key[0].endswith("collate.py") and key[2] != "default_convert") or "collate" in key[2]


def _idle(key: Key) -> bool:
    """Return True for waiting for a worker or a thread."""
    return key[2] in (
        "<method 'poll' of 'select.poll' objects>",
        "<method 'acquire' of '_thread.lock' objects>",
        "<built-in method posix.waitpid>",
        "<method '__enter__' of '_multiprocessing.SemLock' objects>",
        "<method 'acquire' of '_multiprocessing.SemLock' objects>",
    )


def _name(key: Key) -> str:
    file, line, function = key
    if file == "~":
        return function
    parts = Path(file).parts
    roots = [place for place, part in enumerate(parts) if part in PACKAGES]
    shown = parts[roots[-1] + 1 :] if roots else parts[-2:]
    return f"{'/'.join(shown)}:{line} {function}"
