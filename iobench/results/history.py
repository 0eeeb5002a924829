"""Past runs: files of records in the results folder beside the datasets."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from iobench.base.errors import RecordError, needing, no_permission
from iobench.base.files import replace_file, system_errors_as
from iobench.results import record_file, run_index, trend
from iobench.results.metrics import row_of
from iobench.results.record import Record
from iobench.results.run_index import PastRun, Progress
from iobench.results.trend import Trend

SUFFIX, TRACES = ".jsonl", ".traces"


def past(data_dir: Path, progress: Progress | None = None) -> list[PastRun]:
    """Return every past run in a data folder, the newest first.

    `progress` is called with an activity, the bytes read and those in total, where many files are read.
    """
    return run_index.runs_in(data_dir / "results", files_of(data_dir, SUFFIX)[::-1], progress)


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


def readable(data_dir: Path, runs: Sequence[PastRun]) -> list[PastRun]:
    """Return the runs that can be read; RecordError where there is none: why not the first, or no runs."""
    found = [one for one in runs if not one.problem]
    if not found:
        raise next((one.problem for one in runs if one.problem), no_runs(data_dir))
    return found


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
