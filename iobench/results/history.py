"""Earlier runs: files of records in the results folder beside the datasets."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from iobench.base.errors import (
    MissingDependency,
    RecordError,
)
from iobench.base.text import enumerated, shortened
from iobench.results import cases, record, trend
from iobench.results.metrics import row_of
from iobench.results.record import Record
from iobench.results.summary import summarise
from iobench.results.trend import Trend
from iobench.results.verdict import brief, sentence

SUFFIX, TRACES = ".jsonl", ".traces"


@dataclass(frozen=True)
class Past:
    """An earlier run in a few words; `problem` is why it cannot be read, and then the rest is empty."""

    name: str
    path: Path
    time: str = ""  # ISO 8601, UTC, of its last round
    dataset: str = ""
    cases: int = 0
    rounds: int = 0
    device: str = ""
    cache: str = ""
    verdict: str = ""
    brief: str = ""  # the same in a few words
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "path": str(self.path)}


def past(data_dir: Path) -> list[Past]:
    """Every earlier run in a data folder, the newest first."""
    return [_past(path) for path in reversed(files_of(data_dir, SUFFIX))]


def files_of(data_dir: Path, suffix: str) -> list[Path]:
    """The files in a data folder's results whose names end so, the oldest first.

    RecordError where they cannot be listed.
    """
    try:
        files = (data_dir / "results").glob(f"*{suffix}")
        return sorted(files, key=lambda path: path.stat().st_mtime_ns)
    except OSError as error:
        where = error.filename or data_dir / "results"
        raise RecordError(f"{where}: {error.strerror or error}; name another --data-dir") from error


def trends(runs: Sequence[Past]) -> list[Trend]:
    """How the cases of these runs went from one to the next."""
    return trend.trends({run.name: record.read(run.path)[0] for run in runs})


def find(data_dir: Path, name: str) -> Path:
    """The file of records of that name: a path, or a run in the data folder's results.

    RecordError where there is none.
    """
    for path in (Path(name), data_dir / "results" / f"{name}{SUFFIX}", data_dir / "results" / name):
        if os.path.isfile(path):
            return path
    raise RecordError(
        f"no run {name!r}: neither a file nor in {data_dir / 'results'}; 'iobench runs' lists them"
    )


def newest(data_dir: Path) -> Path:
    """The file of the newest run; RecordError where there is none."""
    found = past(data_dir)
    if not found:
        raise RecordError(f"no runs in {data_dir / 'results'}; make one with 'iobench run'")
    return found[0].path


def delete(path: Path) -> list[Path]:
    """Remove a file of records and the traces beside it, and return what was removed.

    RecordError where the file holds no records, or cannot be removed.
    """
    record.read(path)
    doomed = [path, *traces_of(path)]
    try:
        for file in doomed:
            file.unlink()
        if traces_folder(path).is_dir():
            traces_folder(path).rmdir()
    except OSError as error:
        raise RecordError(f"{error.filename} cannot be removed: {error.strerror}") from error
    return doomed


def traces_of(path: Path) -> list[Path]:
    """The traces that were written beside a file of records: none of another run whose name begins alike."""
    return sorted(traces_folder(path).glob("*.json"))


def traces_folder(path: Path) -> Path:
    """The folder beside a file of records that holds its traces, if any were written."""
    return path.with_suffix(TRACES)


def export(records: Sequence[Record], path: Path) -> None:
    """Write one row per round to a new `.csv` or `.parquet` file.

    RecordError where it has another ending, is there already or cannot be written; MissingDependency
    without pyarrow.
    """
    rows = [flat(one) for one in records]
    names = list(dict.fromkeys(name for row in rows for name in row))
    writers = {".csv": _write_csv, ".parquet": _write_parquet}
    if path.suffix not in writers:
        raise RecordError(f"{path}: a table is written to a file that ends in {' or '.join(writers)}")
    if os.path.exists(path):
        raise RecordError(f"{path} is there already; name another file, or remove it first")
    try:
        writers[path.suffix](path, names, rows)
    except OSError as error:
        raise RecordError(f"{path} cannot be written: {error.strerror or error}") from error


def flat(one: Record) -> dict[str, Any]:
    """A record as one row: nested values under joined names, lists left out."""
    parts = {name: part for name, part in asdict(one).items() if name != "plan"}
    return {"case_key": cases.key_of(cases.facets_of(one)), **flattened(parts), **row_of(one)}


def flattened(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same without parts in parts: their values stand under joined names, and lists are left out."""
    row: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            row |= {f"{name}_{inner}": one for inner, one in flattened(value).items()}
        elif not isinstance(value, (list, tuple)):
            row[name] = value
    return row


def _write_csv(path: Path, names: list[str], rows: list[dict[str, Any]]) -> None:
    with open(path, "x", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)


def _write_parquet(path: Path, names: list[str], rows: list[dict[str, Any]]) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingDependency("a .parquet file needs pyarrow: pip install 'iobench[parquet]'") from error
    table = pyarrow.table({name: [row.get(name) for row in rows] for name in names})
    parquet.write_table(table, path)


def _past(path: Path) -> Past:
    try:
        records, _ = record.read(path)
    except RecordError as error:
        return Past(path.stem, path, problem=str(error))
    found, last = summarise(records), records[-1]
    verdicts = [sentence(context) for context in found.contexts]
    return Past(
        name=path.stem,
        path=path,
        time=last.time,
        dataset=last.dataset.name,
        cases=len(found.cases),
        rounds=max(case.rounds for case in found.cases),
        device=_all(records, "device"),
        cache=_all(records, "cache"),
        verdict=verdicts[0] + (f" (and {len(verdicts) - 1} more)" if len(verdicts) > 1 else ""),
        brief=brief(found.contexts),
    )


def _all(records: Sequence[Record], facet: str) -> str:
    return enumerated(sorted({shortened(str(one.case.get(facet)), 40) for one in records}))
