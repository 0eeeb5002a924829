"""One round as data, and files of rounds: JSON lines, appended as each round ends."""

from __future__ import annotations

import fcntl
import json
import math
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import msgspec

from iobench.base.errors import (
    RecordError,
)
from iobench.base.text import reason
from iobench.results import upgrade
from iobench.results.parts import (
    CachePart,
    CasePart,
    DatasetPart,
    LimitPart,
    MachinePart,
    Measured,
    ProofPart,
    SnapshotPart,
)

VERSION = 2
MOST_DIGITS = 40  # that are repeated of a figure
MOST_LEVELS = 50  # of a record: far more than it has, far fewer than Python's own recursion can take


@dataclass(frozen=True, kw_only=True)
class Record(Measured):
    """One timed round of one case, and where and how it was measured."""

    run: str  # what the rounds of one call have in common
    time: str  # ISO 8601, UTC, when the round ended
    round: int  # from 1
    case: dict[str, Any]  # format, loader, options and whatever else was chosen: see results.cases
    dataset: DatasetPart
    cache: CachePart
    machine: MachinePart
    limit: LimitPart | None = None
    shuffledness: float | None = None  # of block order, and of a loader's own: see iobench.loading.order
    proof: ProofPart | None = None  # of the case, where there is anything to say of it
    headroom_samples_per_s: float | None = None  # of the same loop over batches that are on the device
    snapshots: list[SnapshotPart] | None = None  # of the machine since the last record
    plan: dict[str, Any] | None = None  # of the run, in its first record: what `--resume` goes on with
    record_version: int = VERSION

    @property
    def not_proved(self) -> str | None:
        """Why nobody can say that all of the dataset came; None where it was proved."""
        return self.proof.missing if self.proof else None

    @property
    def samples_per_s(self) -> float:
        """Samples on the device per second of the epochs."""
        return self.timing.samples / self.timing.epochs_s

    @property
    def bytes_per_s(self) -> float:
        """Logical bytes on the device per second of the epochs."""
        return self.timing.logical_bytes / self.timing.epochs_s

    @property
    def epoch_s(self) -> float:
        """Seconds of one epoch, the mean of the round's."""
        return self.timing.epochs_s / self.timing.epochs


def check_writable(path: Path) -> None:
    """RecordError, before anything is measured, where `append` could not write there."""
    folder = next(above for above in path.absolute().parents if os.path.exists(above))
    if (
        os.path.isdir(path)
        or (os.path.exists(path) and path.is_fifo())
        or not os.access(path if os.path.exists(path) else folder, os.W_OK)
        or not folder.is_dir()
    ):
        raise RecordError(f"records cannot be written to {path}; name a file in a folder of yours with --out")


def append(path: Path, record: Record) -> None:
    """Add one line to a file of records; RecordError where it cannot be written."""
    line = json.dumps(plain(asdict(record)), allow_nan=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab+") as file:
            with suppress(OSError):  # not every file system knows locks
                fcntl.flock(file, fcntl.LOCK_EX)  # who looks at its end must not see half of another's line
            file.write((_separator(file) + line + "\n").encode())
    except OSError as error:
        raise RecordError(f"records cannot be written to {path}: {error.strerror}") from error


def _separator(file: IO[bytes]) -> str:
    """A line's end where the last line lacks one: whoever wrote it was ended in the middle."""
    if file.seek(0, os.SEEK_END) == 0:
        return ""
    file.seek(-1, os.SEEK_END)
    return "" if file.read(1) == b"\n" else "\n"


def read(path: Path) -> tuple[list[Record], list[str]]:
    """The records of a file, and a sentence for each line that is left out, because it is none.

    RecordError where the file cannot be read or no line of it is a record.
    """
    try:
        *lines, rest = path.read_text().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: cannot be read: {reason(error)}") from error
    records, left_out = [], []
    for number, line in enumerate(lines, 1):
        try:
            records.append(parse(line))
        except (ValueError, RecursionError) as error:
            left_out.append(f"{path}, line {number}: not a record of this iobench: {error}")
    if rest:
        left_out.append(f"{path}, line {len(lines) + 1}: cut off in the middle")
    if not records:
        raise RecordError(left_out[0] if left_out else f"{path}: empty, no round was finished")
    return records, left_out


def parse(line: str) -> Record:
    """The record that a line of JSON holds, of this version or an older one.

    ValueError, in words, where it is none: every part is checked against its declared types.
    """
    body = json.loads(line, parse_constant=_refuse, parse_float=_real)
    check_levels(body)
    if "\\ud" in line.lower():  # half of a surrogate pair is no text: a UnicodeEncodeError
        json.dumps(body, ensure_ascii=False).encode()
    version = body.get("record_version") if isinstance(body, dict) else None
    if type(version) is not int:
        raise ValueError("it has no record_version")
    if version > VERSION:
        raise ValueError(f"it is of version {version}, newer than {VERSION}; upgrade iobench")
    try:
        record = msgspec.convert(body if version == VERSION else upgrade.to_current(body), Record)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"damaged: {type(error).__name__} {error}") from error
    _check(record)
    return record


def _check(record: Record) -> None:
    """ValueError where a figure is out of the range that others rely on."""
    timing = record.timing
    positive = {
        "samples": timing.samples,
        "logical_bytes": timing.logical_bytes,
        "epochs_s": timing.epochs_s,
        "epochs": timing.epochs,
        "headroom": 1 if record.headroom_samples_per_s is None else record.headroom_samples_per_s,
        "samples of the dataset": record.dataset.samples,
        "limit": record.limit.bytes_per_s if record.limit else 1,
    }
    for name, value in positive.items():
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} is {value}")
    msgspec.convert(record.case, CasePart)
    if datetime.fromisoformat(record.time.replace("Z", "+00:00")).tzinfo is None:
        raise ValueError(f"its time {record.time} has no time zone")


def _refuse(constant: str) -> Any:
    raise ValueError(f"a figure is {constant}")


def _real(digits: str) -> float:
    if not math.isfinite(value := float(digits)):
        _refuse(digits[:MOST_DIGITS])
    return value


def check_levels(body: Any) -> None:
    """ValueError where it is nested deeper than one can walk, or holds a number too large for a figure."""
    level = [body]
    for _ in range(MOST_LEVELS):
        if any(type(value) is int and abs(value) >= 1 << 64 for value in level):
            raise ValueError("a whole number in it has more than 64 bits")
        holders = [value for value in level if isinstance(value, (dict, list))]
        if not holders:
            return
        level = [item for held in holders for item in (held.values() if isinstance(held, dict) else held)]
    raise ValueError(f"it is nested deeper than {MOST_LEVELS} levels")


def plain(value: Any) -> Any:
    """The same with None in place of what JSON has no number for."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
