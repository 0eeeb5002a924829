"""One round as data, and files of rounds: JSON lines, appended as each round ends."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from iobench.errors import RecordError

VERSION = 2

_ALWAYS_THERE = {
    "dataset": ("name", "samples", "fields"),
    "case": ("variant", "loader", "label"),
    "cache": ("mode", "residency"),
    "machine": ("cpu", "disk"),
}


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one epoch took; times in seconds, sizes in bytes."""

    samples: int
    logical_bytes: int
    open_s: float  # until the loader could be asked for its first batch
    epoch_s: float  # from then until the device had finished the last batch
    first_batch_s: float
    wait_s: float  # blocked in next(), all batches together
    wait_p50_s: float
    wait_p99_s: float
    cpu_s: float
    disk_bytes: int | None  # None where the kernel keeps no account, as for the next but one
    major_faults: int
    memory_bytes: int | None  # peak, anonymous and shared, workers included
    steal_s: float | None = None  # of all processors, that a hypervisor gave to others
    device_disk_bytes: int | None = None  # what the disk under the data read, for whoever asked
    stages: dict[str, float] | None = None  # see iobench.stages: seconds of the consuming thread
    beside_s: float | None = None  # that threads beside it spent reading, all together
    spans_s: float | None = None  # what it cost to find that out


@dataclass(frozen=True, kw_only=True)
class Record(Measured):
    """One timed round of one case, and where and how it was measured."""

    run: str  # what the rounds of one call have in common
    time: str  # ISO 8601, UTC, when the round ended
    round: int  # from 1
    dataset: dict[str, Any]  # name, samples, fields, source, content checksum, stored bytes
    case: dict[str, Any]  # variant, loader, label and settings
    device: str
    cache: dict[str, Any]  # mode, how it was emptied, residency before the round
    model: str
    machine: dict[str, Any]
    gpu_allocated_bytes: int | None
    gpu_reserved_bytes: int | None
    loss: float | None  # of the last step
    limit: dict[str, Any] | None = None  # the lowest on the case's way: name and logical bytes_per_s
    shuffledness: float | None = None  # of block order: see iobench.order
    system: list[dict[str, Any]] | None = None  # see iobench.monitor: snapshots since the last record
    record_version: int = VERSION

    @property
    def samples_per_s(self) -> float:
        """Samples on the device per second of the epoch."""
        return self.samples / self.epoch_s

    @property
    def limit_share(self) -> float | None:
        """The rate as a fraction of the lowest limit on the way; None where that was not measured."""
        return self.bytes_per_s / self.limit["bytes_per_s"] if self.limit else None

    @property
    def bytes_per_s(self) -> float:
        """Logical bytes on the device per second of the epoch."""
        return self.logical_bytes / self.epoch_s


def check_writable(path: Path) -> None:
    """RecordError, before anything is measured, where `append` could not write there."""
    folder = next(above for above in path.absolute().parents if above.exists())
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK) or not folder.is_dir():
        raise RecordError(f"records cannot be written to {path}; name a file in a folder of yours with --out")


def append(path: Path, record: Record) -> None:
    """Add one line to a file of records; RecordError where it cannot be written."""
    line = json.dumps(plain(asdict(record)), allow_nan=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a") as file:
            file.write(line + "\n")
    except OSError as error:
        raise RecordError(f"records cannot be written to {path}: {error.strerror}") from error


def read(path: Path) -> tuple[list[Record], list[str]]:
    """The records of a file, and a sentence for each line that is left out, because it is none.

    RecordError where the file cannot be read or no line of it is a record.
    """
    try:
        *lines, rest = path.read_text().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: cannot be read: {error}") from error
    records, left_out = [], []
    for number, line in enumerate(lines, 1):
        try:
            records.append(_record(line))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else error
            left_out.append(f"{path}, line {number}: not a record of this iobench: {reason}")
    if rest:
        left_out.append(f"{path}, line {len(lines) + 1}: cut off in the middle")
    if not records:
        raise RecordError(left_out[0] if left_out else f"{path}: empty, no round was finished")
    return records, left_out


def _record(line: str) -> Record:
    body = json.loads(line, parse_constant=_refuse)
    if body["record_version"] > VERSION:
        raise ValueError(f"it is of version {body['record_version']}, newer than {VERSION}; upgrade iobench")
    if body["record_version"] < 2:
        body = {**body, "case": body["arm"], "steal_s": body.get("stolen_s"), "record_version": VERSION}
    record = Record(**{f.name: body[f.name] for f in fields(Record) if f.name in body})
    for what, keys in _ALWAYS_THERE.items():
        for key in keys:
            getattr(record, what)[key]
    for name in ("samples", "logical_bytes", "epoch_s"):
        if not getattr(record, name) > 0:
            raise ValueError(f"{name} is {getattr(record, name)}")
    return record


def _refuse(constant: str) -> Any:
    raise ValueError(f"a figure is {constant}")


def plain(value: Any) -> Any:
    """The same with None in place of what JSON has no number for."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
