"""Index of past runs: a hidden file beside the records, so that only new and changed files are read.

It is only a cache. An entry counts while its file has the size and times it was made from, and the whole
index while it is intact and the code that computed it is unchanged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import msgspec

from iobench.base.files import replace_file
from iobench.results import past_run
from iobench.results.past_run import PastRun
from iobench.results.record import regular

NAME = ".runs.index"
MANY = 20  # files to read, from which on it takes long enough for a progress report

Stamp = tuple[int, int, int]  # size, and nanoseconds of the last change of content and of any change
Progress = Callable[[str, int, int], None]  # (activity, bytes done, bytes in total)


@dataclass(frozen=True)
class IndexEntry:
    """A past run, and the stamp that its file had before it was read."""

    stamp: Stamp
    run: PastRun


Entries = dict[str, IndexEntry]  # by the name of the file


def runs_in(folder: Path, paths: Sequence[Path], progress: Progress | None = None) -> list[PastRun]:
    """Return the runs in these files of a folder, of which only those are read that its index lacks."""
    stamps = {path: _stamp(path) for path in paths}  # before anything is read: a later append makes it stale
    index = _load(folder)
    current = {path: index[path.name].run for path in paths if _is_current(index, path, stamps[path])}
    new = [path for path in paths if path not in current]
    sizes = [stamps[path][0] for path in new]
    for number, path in enumerate(new):
        if progress and len(new) >= MANY:
            progress(f"reading {len(new)} runs", sum(sizes[:number]), sum(sizes))
        current[path] = past_run.read(path)
    if new or len(index) > len(paths):
        _save(folder, {path.name: IndexEntry(stamps[path], current[path]) for path in paths})
    return [replace(current[path], path=path) for path in paths]


def _is_current(index: Entries, path: Path, stamp: Stamp) -> bool:
    return path.name in index and index[path.name].stamp == stamp


def _stamp(path: Path) -> Stamp:
    try:
        stat = path.stat()
    except OSError:  # a link to nothing, or no permission: reading it says so
        return 0, 0, 0
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _load(folder: Path) -> Entries:
    """Return the entries of the index in a folder; none where it is missing, damaged or of other code."""
    try:
        checksum, _, body = regular(folder / NAME).read_bytes().partition(b"\n")
        if checksum != _checksum(body):
            return {}
        return msgspec.json.decode(body, type=Entries, dec_hook=lambda cls, value: cls(value))
    except (OSError, ValueError, TypeError, RecursionError):
        return {}


def _save(folder: Path, entries: Entries) -> None:
    """Replace the index, where the folder is writable; files that cannot be read are not in it."""
    readable = {
        name: replace(entry, run=replace(entry.run, path=Path(name)))
        for name, entry in entries.items()
        if not entry.run.problem and name.isprintable()  # others may not be UTF-8
    }
    body = msgspec.json.encode(readable, enc_hook=str)
    with suppress(OSError):  # a disk that is read-only or full costs time on the next call, nothing else
        replace_file(folder / NAME, _checksum(body) + b"\n" + body)


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(_code() + body).hexdigest().encode()


@cache
def _code() -> bytes:
    """Return a digest of the modules that compute what the index holds."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.digest()
