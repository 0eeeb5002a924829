"""Past runs: files of records in the results folder beside the datasets, and other results there.

An index of the runs is a hidden file in that folder, so that only new and changed files are read. It is only
a cache. An entry counts while its file has the size and times it was made from, and the whole index while it
is intact and the code that computed it is unchanged.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from iobench.base.errors import RecordError, needing, no_permission
from iobench.base.files import regular, replace_file, system_errors_as
from iobench.base.text import enumerated, reason, shortened
from iobench.results import record_file, trend
from iobench.results.metrics import row_of
from iobench.results.record import Record
from iobench.results.record_file import check_levels, plain
from iobench.results.summary import summarise
from iobench.results.trend import CasePoint, Trend, case_points
from iobench.results.verdict import brief, sentence, verdict

SUFFIX, TRACES = ".jsonl", ".traces"
INDEX = ".runs.index"
MANY = 20  # files to read, from which on it takes long enough for a progress report

Stamp = tuple[int, int, int]  # size, and nanoseconds of the last change of content and of any change
Progress = Callable[[str, int, int], None]  # (activity, bytes done, bytes in total)


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
        device=_enumerated(records, "device"),
        cache=_enumerated(records, "cache"),
        outcome=verdict(summary.contexts[0]).kind,
        verdict=verdicts[0] + (f" (and {len(verdicts) - 1} more)" if len(verdicts) > 1 else ""),
        brief=brief(summary.contexts),
        points=case_points(path.stem, records),
    )


def _enumerated(records: Sequence[Record], facet: str) -> str:
    return enumerated(sorted({shortened(str(one.case.get(facet)), 40) for one in records}))


# past runs by the name of their file, each with the stamp that the file had before it was read
Entries = dict[str, tuple[Stamp, PastRun]]


def past(data_dir: Path, progress: Progress | None = None) -> list[PastRun]:
    """Return every past run in a data folder, the newest first; only those are read that its index lacks.

    `progress` is called with an activity, the bytes read and those in total, where many files are read.
    """
    folder, paths = data_dir / "results", files_of(data_dir, SUFFIX)[::-1]
    stamps = {path: _stamp(path) for path in paths}  # before anything is read: a later append makes it stale
    index = _load_index(folder)
    known = {path: index[path.name] for path in paths if path.name in index}
    current = {path: run for path, (stamp, run) in known.items() if stamp == stamps[path]}
    new = [path for path in paths if path not in current]
    done = [0, *accumulate(max(1, stamps[path][0]) for path in new)]
    for path, before in zip(new, done, strict=False):
        if progress and len(new) >= MANY:
            progress(f"reading {len(new)} runs", before, done[-1])
        current[path] = read_run(path)
    if any(not current[path].problem for path in new) or index.keys() - {path.name for path in paths}:
        _save_index(folder, {path.name: (stamps[path], current[path]) for path in paths})
    return [replace(current[path], path=path) for path in paths]


def _stamp(path: Path) -> Stamp:
    try:
        stat = path.stat()
    except OSError:  # a link to nothing, or no permission: reading it says so
        return 0, 0, 0
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _load_index(folder: Path) -> Entries:
    """Return the entries of the index in a folder; none where it is missing, damaged or of other code."""
    try:
        checksum, _, body = regular(folder / INDEX).read_bytes().partition(b"\n")
        if checksum != checksum_of(body):
            return {}
        return msgspec.json.decode(body, type=Entries, dec_hook=lambda cls, value: cls(value))
    except (OSError, ValueError, TypeError, RecursionError):
        return {}


def _save_index(folder: Path, entries: Entries) -> None:
    """Replace the index, where the folder is writable; files that cannot be read are not in it."""
    readable = {
        name: (stamp, replace(run, path=Path(name)))
        for name, (stamp, run) in entries.items()
        if not run.problem and name.isprintable()  # others may not be UTF-8
    }
    body = msgspec.json.encode(readable, enc_hook=str)
    with suppress(OSError):  # a disk that is read-only or full costs time on the next call, nothing else
        replace_file(folder / INDEX, checksum_of(body) + b"\n" + body)


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


def files_of(data_dir: Path, suffix: str) -> list[Path]:
    """Return the files in a data folder's results with that suffix, the oldest first.

    RecordError where they cannot be listed.
    """
    folder, hint = data_dir / "results", "name another --data-dir"
    with system_errors_as(RecordError, "cannot be listed", folder, kind="not-readable", hint=hint):
        try:
            files = [Path(one) for one in os.scandir(folder) if one.name.endswith(suffix)]
        except FileNotFoundError:
            return []
        except PermissionError as error:
            raise no_permission(RecordError, error.filename) from error
        return sorted(files, key=lambda path: path.lstat().st_mtime_ns)


def trends(runs: Sequence[PastRun]) -> list[Trend]:
    """Return the trend of each case over these runs."""
    return trend.trends(point for run in runs for point in run.points)


def find(data_dir: Path, name: str) -> Path:
    """Return the file of records of that name: a path, or a run in the data folder's results.

    RecordError where there is none.
    """
    for path in (Path(name), data_dir / "results" / f"{name}{SUFFIX}", data_dir / "results" / name):
        if is_file(path):
            return path
    raise RecordError(
        f"no run {name!r}", kind="unknown-run", path=data_dir / "results", hint="'iobench runs' lists them"
    )


def new_file(data_dir: Path, name: str) -> Path:
    """Return the file of records for a run of that name that starts now."""
    now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")[:-3]
    return data_dir / "results" / f"{name}-{now}{SUFFIX}"


def file_name(text: str, kept: str = "") -> str:
    """Return a text as part of a file's name: letters, digits, and the characters that are kept."""
    return re.sub(f"[^A-Za-z0-9{kept}]+", "-", text).strip("-")


def is_file(path: Path) -> bool:
    """Return True for a file, False for what cannot be one; RecordError without permission to look."""
    try:
        return path.is_file()
    except PermissionError as error:
        raise no_permission(RecordError, error.filename) from error
    except OSError:  # no name of a file
        return False


def newest(data_dir: Path) -> Path:
    """Return the file of the newest run that can be read; RecordError where there is none."""
    problem = no_runs(data_dir)
    for path in reversed(files_of(data_dir, SUFFIX)):
        try:
            record_file.read(path)
            return path
        except RecordError as error:
            problem = error
    raise problem


def no_runs(data_dir: Path) -> RecordError:
    """Return the error for a data folder without runs."""
    hint = "measure one with 'iobench run'"
    return RecordError("no runs", kind="no-runs", path=data_dir / "results", hint=hint)


def delete(path: Path) -> list[Path]:
    """Remove a file of records and the traces beside it, and return what was removed.

    RecordError where the file holds no records, or cannot be removed.
    """
    record_file.read(path)
    files = [path, *sorted(traces_folder(path).glob("*.json"))]
    with system_errors_as(RecordError, "cannot be removed", path, kind="not-writable"):
        for file in files:
            file.unlink()
        if traces_folder(path).is_dir():
            traces_folder(path).rmdir()
    return files


def traces_folder(path: Path) -> Path:
    """Return the folder beside a file of records that holds its traces, if there are any."""
    return path.with_suffix(TRACES)


def export(records: Sequence[Record], path: Path) -> None:
    """Write one row per round to a new `.csv` or `.parquet` file.

    RecordError where it has another suffix, exists or cannot be written; MissingDependency without pyarrow.
    """
    rows = [flat(one) for one in records]
    names = list(dict.fromkeys(name for row in rows for name in row))
    writers = {".csv": as_csv, ".parquet": _as_parquet}
    if path.suffix not in writers:
        raise RecordError(
            "unknown table format",
            kind="unknown-suffix",
            path=path,
            expected=" or ".join(writers),
            found=path.suffix or "no suffix",
        )
    if os.path.exists(path):
        raise RecordError(
            "exists already", kind="exists", path=path, hint="name another file, or remove it first"
        )
    with system_errors_as(RecordError, "cannot be written", path, kind="not-writable"):
        replace_file(path, writers[path.suffix](names, rows))


def flat(one: Record) -> dict[str, Any]:
    """Return a record as one row: nested values under joined names, without lists."""
    parts = {name: part for name, part in asdict(one).items() if name != "plan"}
    return {"case_key": one.key, **flattened(parts), **row_of(one)}


def flattened(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested values as one level under joined names, without lists."""
    row: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            row |= {f"{name}_{inner}": one for inner, one in flattened(value).items()}
        elif not isinstance(value, (list, tuple)):
            row[name] = value
    return row


def as_csv(names: list[str], rows: list[dict[str, Any]]) -> bytes:
    """Return rows as a CSV file with these columns."""
    text = io.StringIO()
    writer = csv.DictWriter(text, names)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _as_parquet(names: list[str], rows: list[dict[str, Any]]) -> bytes:
    with needing("a .parquet file", "parquet"):
        import pyarrow
        from pyarrow import parquet
    table = pyarrow.table({name: [row.get(name) for row in rows] for name in names})
    file = io.BytesIO()
    parquet.write_table(table, file)
    return file.getvalue()


Stored = TypeVar("Stored")


@dataclass(frozen=True)
class ResultStore(Generic[Stored]):
    """Results of one type, each a file in the results of a data folder."""

    type: type[Stored]  # the class of the results
    suffix: str  # end of the files' names
    description: str  # A result in words, such as ``a recommendation``
    check: Callable[[Stored], None]  # raises ValueError, TypeError or ArithmeticError for contents
    # that their types allow and their readers do not

    def save(self, result: Stored, name: str, time: str, data_dir: Path) -> Path:
        """Write a result of that name and time (ISO 8601) atomically, and return its file.

        RecordError where it cannot be written.
        """
        stamp = time[:19].replace(":", "").replace("-", "").replace("T", "-")
        path = data_dir / "results" / f"{name}-{stamp}{self.suffix}"
        with system_errors_as(RecordError, "cannot be written", path, kind="not-writable", exact=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, json.dumps(plain(result), indent=2).encode())
        return path

    def load(self, data_dir: Path) -> tuple[list[Stored], list[RecordError]]:
        """Return the results in a data folder, the oldest first, and an error for each unreadable file.

        RecordError where the folder cannot be listed.
        """
        results: list[Stored] = []
        problems: list[RecordError] = []
        for path in files_of(data_dir, self.suffix):
            try:
                results.append(self._read(path))
            except (OSError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
                problem = f"not {self.description}: {reason(error)}"
                problems.append(RecordError(problem, kind="not-a-result", path=path))
        return results, problems

    def _read(self, path: Path) -> Stored:
        result = msgspec.json.decode(regular(path).read_bytes(), type=self.type)
        body = msgspec.to_builtins(result)
        check_levels(body)
        json.dumps(body, ensure_ascii=False).encode()  # half of a surrogate pair is no text
        self.check(result)
        return result
