"""Index of past runs: a hidden file beside the records, so that only new and changed files are read.

It is only a cache. An entry counts while its file has the size and times it was made from, and the whole
index while it is intact and the code that computed it is unchanged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec

from iobench.base.errors import RecordError
from iobench.base.files import regular, replace_file
from iobench.base.text import enumerated, shortened
from iobench.results import record_file
from iobench.results.record import Record
from iobench.results.summary import summarise
from iobench.results.trend import CasePoint, case_points
from iobench.results.verdict import brief, sentence, verdict


@dataclass(frozen=True)
class PastRun:
    """A past run in brief; where it cannot be read, `problem` says why and the rest is empty."""

    name: str
    path: Path
    time: str = ""  # ISO 8601, UTC, end of its last round
    dataset: str = ""
    cases: int = 0
    rounds: int = 0
    device: str = ""
    cache: str = ""
    outcome: str = ""  # kind of the verdict on its first context
    verdict: str = ""
    brief: str = ""  # the verdict in a few words
    problem: RecordError | None = None
    points: list[CasePoint] = field(default_factory=list, repr=False)  # for trends

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        fields = asdict(replace(self, problem=None, points=[]))
        del fields["points"]
        problem = self.problem.fields() if self.problem else None
        return {**fields, "path": str(self.path), "problem": problem}


def read_run(path: Path) -> PastRun:
    """Return the run in a file of records."""
    try:
        records, _ = record_file.read(path)
    except RecordError as error:
        return PastRun(path.stem, path, problem=error)
    summary, last = summarise(records), records[-1]
    verdicts = [sentence(context) for context in summary.contexts]
    return PastRun(
        name=path.stem,
        path=path,
        time=last.time,
        dataset=last.dataset.name,
        cases=len(summary.cases),
        rounds=max(case.rounds for case in summary.cases),
        device=_all(records, "device"),
        cache=_all(records, "cache"),
        outcome=verdict(summary.contexts[0]).kind,
        verdict=verdicts[0] + (f" (and {len(verdicts) - 1} more)" if len(verdicts) > 1 else ""),
        brief=brief(summary.contexts),
        points=case_points(path.stem, records),
    )


def _all(records: Sequence[Record], facet: str) -> str:
    return enumerated(sorted({shortened(str(one.case.get(facet)), 40) for one in records}))


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
    known = {path: index.get(path.name) for path in paths}
    current = {path: one.run for path, one in known.items() if one and one.stamp == stamps[path]}
    new = [path for path in paths if path not in current]
    done = [0, *accumulate(max(1, stamps[path][0]) for path in new)]
    for path, before in zip(new, done, strict=False):
        if progress and len(new) >= MANY:
            progress(f"reading {len(new)} runs", before, done[-1])
        current[path] = read_run(path)
    if any(not current[path].problem for path in new) or index.keys() - {path.name for path in paths}:
        _save(folder, {path.name: IndexEntry(stamps[path], current[path]) for path in paths})
    return [replace(current[path], path=path) for path in paths]


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
        if checksum != checksum_of(body):
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
        replace_file(folder / NAME, checksum_of(body) + b"\n" + body)


def checksum_of(body: bytes) -> bytes:
    """Return the checksum of an index, which changes with the code that reads it."""
    return hashlib.sha256(own_code() + body).hexdigest().encode()


@cache
def own_code() -> bytes:
    """Return a digest of the modules that compute what the index holds."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.digest()
