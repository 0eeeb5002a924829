"""Files of records: JSON lines, one of which is appended as each round ends, and checked when read."""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any, get_type_hints

import msgspec

from iobench.base.errors import RecordError, no_permission
from iobench.base.files import regular, system_errors_as
from iobench.base.text import reason
from iobench.results.parts import CasePart
from iobench.results.record import VERSION, Record

MAX_DIGITS = 40  # of a figure, that an error repeats
MAX_LEVELS = 50  # of nesting: far more than a record has, far fewer than Python's own recursion can take


def check_writable(path: Path) -> None:
    """Raise RecordError, before anything is measured, where `append` could not write."""
    folder = next(above for above in path.absolute().parents if os.path.exists(above))
    if (
        os.path.isdir(path)
        or (os.path.exists(path) and path.is_fifo())
        or not os.access(path if os.path.exists(path) else folder, os.W_OK)
        or not folder.is_dir()
    ):
        raise RecordError(
            "records cannot be written there",
            kind="not-writable",
            path=path,
            hint="name a file in a writable folder with --out",
        )


def append(path: Path, record: Record) -> None:
    """Append one line to a file of records; RecordError where it cannot be written."""
    line = json.dumps(plain(record), allow_nan=False)
    try:
        parse(line)
    except ValueError as error:
        problem = f"the round cannot be written as a record: {error}"
        raise RecordError(problem, kind="not-a-record", path=path) from error
    problem = "records cannot be written there"
    with system_errors_as(RecordError, problem, path, kind="not-writable", exact=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab+") as file:
            with suppress(OSError):  # some file systems have no locks
                fcntl.flock(file, fcntl.LOCK_EX)  # `_separator` must not see half of another writer's line
            file.write((_separator(file) + line + "\n").encode())


@contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Lock a file of records for the block; RecordError if another process has locked it.

    What is no regular file, such as /dev/null, takes any number of writers.
    """
    if os.path.exists(path) and not os.path.isfile(path):  # False for a name too long
        yield
        return
    lock = path.with_name(f".{path.name}.lock")
    with ExitStack() as stack:
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(lock, "ab"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file.fileno()).st_nlink == 0:  # its owner has just ended; another may lock a new one
                raise BlockingIOError
            stack.callback(_remove, lock)
        except BlockingIOError:
            hint = "wait for its end, or measure into another file with --out"
            raise RecordError("another iobench writes there", kind="in-use", path=path, hint=hint) from None
        except OSError:  # no locks there; `append` reports where nothing can be written
            pass
        yield


def _remove(lock: Path) -> None:
    """Remove a lock, unless its disk fails: the error of the block says so."""
    with suppress(OSError):
        lock.unlink()


def _separator(file: IO[bytes]) -> str:
    """Return a line end where the last line lacks one because its writer was killed."""
    if file.seek(0, os.SEEK_END) == 0:
        return ""
    file.seek(-1, os.SEEK_END)
    return "" if file.read(1) == b"\n" else "\n"


def read(path: Path) -> tuple[list[Record], list[RecordError]]:
    """Return the records of a file, and an error for each line that is skipped because it is none.

    RecordError if the file cannot be read, or no line of it is a record.
    """
    try:
        *lines, rest = regular(path).read_text().split("\n")
    except PermissionError as error:
        raise no_permission(RecordError, path) from error
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"cannot be read: {reason(error)}", kind="not-readable", path=path) from error
    records: list[Record] = []
    skipped: list[RecordError] = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(parse(line))
        except RecordError as error:
            skipped.append(error.changed(problem=f"line {number}: {error.problem}", path=path))
        except (ValueError, RecursionError) as error:
            skipped.append(
                RecordError(f"line {number}: not a record: {error}", kind="not-a-record", path=path)
            )
    if rest:
        skipped.append(
            RecordError(f"line {len(lines) + 1}: cut off in the middle", kind="truncated", path=path)
        )
    if not records:
        raise skipped[0] if skipped else RecordError("no round was finished", kind="empty", path=path)
    return records, skipped


def check_parts(**parts: Any) -> None:
    """Raise RecordError, before anything is measured, where parts of a record could not be read back."""
    body = plain(parts)
    _check_text(body)
    try:
        for name, part in body.items():
            msgspec.convert(json.loads(json.dumps(part)), get_type_hints(Record)[name])
    except (ValueError, TypeError) as error:
        problem = f"rounds could not be written as records: {error}"
        raise RecordError(problem, kind="not-a-record") from error


def _check_text(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        name = text[text.rfind('"', 0, error.start) + 1 : text.find('"', error.end)]
        raise RecordError(
            "a name is not UTF-8, which records are", kind="not-utf-8", found=name, hint="rename it"
        ) from None


def parse(line: str) -> Record:
    """Return the record that a line of JSON holds; every part is checked against its declared types.

    RecordError if it is of another version of the record format. ValueError if it is no record.
    """
    body = json.loads(line, parse_constant=_refuse, parse_float=_finite)
    check_levels(body)
    if "\\ud" in line.lower():  # half of a surrogate pair is no text: a UnicodeEncodeError
        json.dumps(body, ensure_ascii=False).encode()
    version = body.get("record_version") if isinstance(body, dict) else None
    if type(version) is not int:
        raise ValueError("it has no record_version")
    if version != VERSION:
        raise RecordError(
            "a record of another version of iobench",
            kind="unknown-version",
            expected=f"record_version {VERSION}",
            found=version,
            hint="read it with the iobench that wrote it, or upgrade this one",
        )
    try:
        record = msgspec.convert(body, Record)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"damaged: {type(error).__name__} {error}") from error
    _check(record)
    return record


def _check(record: Record) -> None:
    """Raise ValueError where a figure is out of the range that readers rely on."""
    timing = record.timing
    positive = {
        "samples": timing.samples,
        "logical_bytes": timing.logical_bytes if record.dataset.fields else 1,  # batches without tensors
        "epochs_s": timing.epochs_s,
        "epochs": timing.epochs,
        "headroom": 1 if record.headroom_samples_per_s is None else record.headroom_samples_per_s,
        "samples of the dataset": 1 if record.dataset.samples is None else record.dataset.samples,
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


def _finite(digits: str) -> float:
    if not math.isfinite(value := float(digits)):
        _refuse(digits[:MAX_DIGITS])
    return value


def check_levels(body: Any) -> None:
    """Raise ValueError where JSON is nested too deeply, or holds an integer of more than 64 bits."""
    level = [body]
    for _ in range(MAX_LEVELS):
        if any(type(value) is int and abs(value) >= 1 << 64 for value in level):
            raise ValueError("a whole number in it has more than 64 bits")
        containers = [value for value in level if isinstance(value, (dict, list))]
        if not containers:
            return
        level = [
            item for value in containers for item in (value.values() if isinstance(value, dict) else value)
        ]
    raise ValueError(f"it is nested deeper than {MAX_LEVELS} levels")


def plain(value: Any) -> Any:
    """Return the value for JSON, with None in place of figures that it cannot express.

    A dataclass becomes its fields and the properties that its class lists as `derived`, or else what its
    `as_dict` returns.
    """
    if hasattr(value, "as_dict"):
        return plain(value.as_dict())
    if is_dataclass(value):
        names = [*(one.name for one in fields(value)), *getattr(value, "derived", ())]
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
