"""One round as data, and files of rounds: JSON lines, appended as each round ends."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from iobench.errors import RecordError

VERSION = 1


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


@dataclass(frozen=True, kw_only=True)
class Record(Measured):
    """One timed round of one arm, and where and how it was measured."""

    run: str  # what the rounds of one call have in common
    time: str  # ISO 8601, UTC, when the round ended
    round: int  # from 1
    dataset: dict[str, Any]  # name, samples, fields, source, content checksum, stored bytes
    arm: dict[str, Any]  # variant, loader, label and settings
    device: str
    cache: dict[str, Any]  # mode, how it was emptied, residency before the round
    model: str
    machine: dict[str, Any]
    gpu_allocated_bytes: int | None
    gpu_reserved_bytes: int | None
    loss: float | None  # of the last step
    limit: dict[str, Any] | None = None  # the lowest on the arm's way: name and logical bytes_per_s
    shuffledness: float | None = None  # of block order: see iobench.order
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


def read(path: Path) -> list[Record]:
    """The records of a file; a last line that was cut off is left out.

    RecordError where it cannot be read, holds something else or is of a newer version.
    """
    try:
        lines = path.read_text().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: cannot be read: {error}") from error
    complete, known = lines[:-1], {f.name for f in fields(Record)}
    records = []
    for number, line in enumerate(complete, 1):
        try:
            body = json.loads(line)
            version = body["record_version"]
            if version <= VERSION:
                records.append(Record(**{key: value for key, value in body.items() if key in known}))
        except (ValueError, TypeError, KeyError) as error:
            raise RecordError(f"{path}, line {number}: not a record of iobench ({error})") from error
        if version > VERSION:
            raise RecordError(
                f"{path}, line {number}: record version {version}, "
                f"this iobench reads up to {VERSION}; upgrade iobench"
            )
    return records


def plain(value: Any) -> Any:
    """The same with None in place of what JSON has no number for."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
