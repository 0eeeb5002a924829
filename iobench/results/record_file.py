"""Files of records: JSON lines, one of which is appended as each round ends."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from iobench.base.errors import RecordError, no_permission
from iobench.base.files import regular, system_errors_as
from iobench.base.text import reason
from iobench.results.record import Record
from iobench.results.record_json import parse, plain


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
