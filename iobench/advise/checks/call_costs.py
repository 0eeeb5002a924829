"""Costs of a loader by kind and by library, from the calls in a profile."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Key = tuple[str, int, str]  # file, line, function
Figures = tuple[int, int, float, float, dict[Key, Any]]  # calls, own and total seconds, the same by caller
Calls = Mapping[Key, Figures]

PACKAGES = ("site-packages", "dist-packages")  # folders that packages are installed in
OWN = (str(Path(__file__).parents[2]), "/torch/utils/data/")  # iobench, and the DataLoader itself
NAMED = 3  # calls of a library in a sentence
# the queues of a DataLoader wait for work, not for the user's code
QUEUES = re.compile(r"multiprocessing/(queues|connection|popen\w*|process)\.py|threading\.py|/utils/data/")
LOCKS = r"\.lock' objects>|_multiprocessing\.SemLock' objects>|multiprocessing/synchronize\.py:\d+ \w*acquire"
LOCKS += r"|multiprocessing/synchronize\.py:\d+ __enter__|fcntl\.(flock|lockf)|filelock/"
IDLE = re.compile(r"'poll' of 'select\.poll'|posix\.waitpid|'(acquire|__enter__)' of '(_thread\.lock|_multi)")
FILES = r"\b_?io\.open>|of '_io\.|_pickle\.load>|_npyio_impl\.py:\d+ load|torch/serialization\.py:\d+ load"
# of files that hold many samples
OPENED = r"h5py/_hl/files\.py:\d+ __init__|zipfile\S*:\d+ __init__|tarfile\.py:\d+ \w*open|lmdb\S* open"
OPENED += r"|lmdb\.\w*Environment|pyarrow/parquet/core\.py:\d+ __init__|sqlite3\.connect"
OPENING = re.compile(OPENED)
C_LIBRARY = re.compile(r"<built-in method ([A-Za-z_]\w*)\.|of '([A-Za-z_]\w*)\.")
DECODERS = (
    r"\b(PIL|cv2|imageio|turbojpeg|torchvision[/.]io|zlib|gzip|bz2|lzma|lz4|zstd\w*|blosc|soundfile|librosa"
    r"|torchaudio|msgpack)\b|decompress|ImagingDecoder|_pickle\.loads|json[/.]decoder"
)


@dataclass(frozen=True)
class Cost:
    """A kind of work, and which calls are part of it."""

    calls: re.Pattern[str]  # names of the functions
    inclusive: bool = True  # the time of what they call counts as well
    repeats: int = 0  # only callers that call one of them so often each time count, with their own time


@dataclass(frozen=True)
class LibraryShare:
    """A library, its share of the time with all that it calls, and the most expensive calls of it."""

    name: str
    share: float
    calls: list[str]


COSTS = {
    "decoding": Cost(re.compile(DECODERS), inclusive=False),
    "lists": Cost(re.compile(r"<built-in method torch\.tensor>"), inclusive=False),
    "elements": Cost(re.compile(r"<method 'item' of '(torch|numpy)"), repeats=8),
    "files": Cost(re.compile(FILES)),
    "openings": Cost(OPENING),
    "rows": Cost(re.compile(r"^pandas/")),
    "proxies": Cost(re.compile(r"multiprocessing/managers\.py:\d+ _callmethod")),
    "locks": Cost(re.compile(LOCKS)),
}


def name_of(key: Key) -> str:
    """Return the name of a function as it is shown: the end of its path, its line and its own name."""
    file, line, function = key
    if file == "~":
        return function
    parts = Path(file).parts
    roots = [place for place, part in enumerate(parts) if part in PACKAGES]
    shown = parts[roots[-1] + 1 :] if roots else parts[-2:]
    return f"{'/'.join(shown)}:{line} {function}"


def busy_s(calls: Calls) -> float:
    """Return all seconds except those that queues wait for work."""
    busy = sum(figures[2] for key, figures in calls.items() if not is_idle(key))
    return max(1e-9, busy + _seconds(calls, COSTS["locks"]))


def is_idle(key: Key) -> bool:
    """Return True for waiting for another process or a thread."""
    return IDLE.search(name_of(key)) is not None


def cost_shares(calls: Calls, total_s: float) -> dict[str, float]:
    """Return the share of the time of each kind of work."""
    return {kind: min(1.0, _seconds(calls, cost) / total_s) for kind, cost in COSTS.items()}


def calls_of(calls: Calls, kind: str) -> int:
    """Return how often functions of a kind of work were called from outside it."""
    own = {key for key in calls if COSTS[kind].calls.search(name_of(key))}
    return sum(by[0] for key in own for caller, by in calls[key][4].items() if caller not in own)


def library_shares(calls: Calls, total_s: float) -> list[LibraryShare]:
    """Return the libraries with the time of all that they call, those that take most of it first."""
    seconds = dict[str, dict[str, float]]()
    for key, (_, _, _, _, callers) in calls.items():
        library = None if is_idle(key) else library_of(key)
        for caller, by in callers.items() if library else ():
            if library_of(caller) != library:  # else it is part of that call
                parts = seconds.setdefault(str(library), {})
                parts[name_of(key)] = parts.get(name_of(key), 0.0) + float(by[3])
    shares = [
        LibraryShare(
            library,
            min(1.0, sum(parts.values()) / total_s),
            [name for name, _ in sorted(parts.items(), key=lambda part: -part[1])[:NAMED]],
        )
        for library, parts in seconds.items()
    ]
    return sorted(shares, key=lambda one: -one.share)


def library_of(key: Key) -> str | None:
    """Return the package of a function; None for the user's own, Python's, and the DataLoader itself."""
    file, _, function = key
    if any(own in file for own in OWN):
        return None
    if file == "~":
        found = C_LIBRARY.search(function)
        name = (found[1] or found[2]).lstrip("_") if found else ""
        return name if name and name not in sys.stdlib_module_names else None
    parts = Path(file).parts
    roots = [place for place, part in enumerate(parts) if part in PACKAGES]
    return parts[roots[-1] + 1].removesuffix(".py") if roots else None


def _seconds(calls: Calls, cost: Cost) -> float:
    """Return the seconds of a kind of work."""
    own = {key for key in calls if cost.calls.search(name_of(key))}
    if cost.repeats:
        return _repeated_s(calls, own, cost.repeats)
    if not cost.inclusive:
        return sum(float(calls[key][2]) for key in own)
    # from outside only: what they call of each other is part of it already
    return sum(
        float(by[3])
        for key in own
        for caller, by in calls[key][4].items()
        if caller not in own and not QUEUES.search(name_of(caller))
    )


def _repeated_s(calls: Calls, own: set[Key], repeats: int) -> float:
    """Return the seconds of functions that call one of `own` again and again, and of these calls."""
    called = dict[Key, tuple[int, float]]()
    for key in own:
        for caller, by in calls[key][4].items():
            number, seconds = called.get(caller, (0, 0.0))
            called[caller] = (number + by[0], seconds + by[3])
    return sum(
        seconds + float(calls[caller][2])
        for caller, (number, seconds) in called.items()
        if caller in calls and number >= repeats * calls[caller][0]
    )
