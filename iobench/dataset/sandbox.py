"""Inspection and reading of untrusted data in a subprocess with limited memory and time.

The libraries that read formats trust their input: a damaged or hostile file can crash the process, fill
its memory or block it for ever. A worker process (`sandbox_worker`) calls the formats instead. Its memory
and time limits grow with the size of the data.

Protocol: the parent sends one request in JSON on the worker's standard input. Each reply is one byte for
its kind, the length of a JSON text in eight bytes, and that text. A BATCH reply is followed by the rows of
each field as they lie in memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from iobench.base.errors import SourceError
from iobench.base.finding import Finding
from iobench.base.text import listed
from iobench.dataset.sources._source import BATCH_BYTES
from iobench.formats import Batch, Field, Schema, raw_bytes

LIMIT_S = 120.0  # to identify data, and to read one batch; more for large data:
BYTES_PER_S = 50e6  # one second more for this many bytes
MEMORY_BYTES = 768 << 20  # for reading: a sample, a chunk as stored and as unpacked, and a margin; and
MEMORY_SHARE = 256  # one byte more for this many bytes of data, for tables of rows
MAX_REPLY_BYTES = 16 << 20
BATCH, DONE, FAILED, PROGRESS = 1, 2, 3, 4

Report = Callable[[int, int], None]  # bytes done, bytes in total

# -I: no module in the working directory or next to this file may shadow one of Python's own
_START = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from iobench.dataset import sandbox_worker
sandbox_worker.main()
"""


@dataclass(frozen=True)
class UntrustedData:
    """A file or folder that iobench did not write.

    Attributes
    ----------
    path : Path
        The file or folder; may end in `::NAME,NAME` to select arrays.
    kind : str
        Name of the format that reads it, or a key of `sandbox_worker.ADAPTERS`.
    bytes : int
        Size, which the limits depend on.
    descriptor : int or None
        An open descriptor of the file. If given, the worker reads that file and not the one that may have
        taken its path in the meantime.
    """

    path: Path
    kind: str
    bytes: int
    descriptor: int | None = None

    @property
    def request(self) -> dict[str, Any]:
        """The part of a request that concerns the data."""
        path = os.fspath(self.path)
        if self.descriptor is not None:  # relative to the worker's folder: see `_worker`
            path = path[len(os.fspath(self.file.parent)) :].lstrip(os.sep)
        return {
            "path": path,
            "kind": self.kind,
            "limit_s": LIMIT_S + self.bytes / BYTES_PER_S,
            # torch's own maps count in full
            "memory_bytes": MEMORY_BYTES + self.bytes // (1 if self.kind == "torch" else MEMORY_SHARE),
        }

    @property
    def file(self) -> Path:
        """The path without the selection of arrays."""
        file, separator, _ = os.fspath(self.path).rpartition("::")
        return Path(file) if separator and not os.path.lexists(self.path) else self.path


@dataclass(frozen=True)
class SniffResult:
    """Formats that recognize a file or folder.

    Attributes
    ----------
    formats : tuple of str
        Names of the formats that recognize it.
    missing : dict of str to str
        Formats that could not be asked, and the reason.
    members : dict of str to str
        Entries of a folder that another format recognizes, and that format's name.
    """

    formats: tuple[str, ...]
    missing: dict[str, str]
    members: dict[str, str] = field(default_factory=dict)

    @property
    def ambiguity(self) -> str:
        """The reason why it is unclear what to read; empty if it is clear."""
        members = listed([f"{name} ({word})" for name, word in self.members.items()])
        if members and self.formats:
            return f"recognized as {' and '.join(self.formats)}, but the folder also contains {members}"
        if members:
            return f"no format recognizes the folder as a whole; it contains {members}"
        return f"recognized as {' and as '.join(self.formats)}" if len(self.formats) > 1 else ""


def sniff(path: Path) -> SniffResult:
    """Find the formats that recognize a file or folder.

    Raises SourceError if the libraries asked crash or exceed their limits.
    """
    with _worker(UntrustedData(path, "", 0), "sniff") as worker:
        result = worker.result()
        return SniffResult(tuple(result["formats"]), result["missing"], result["members"])


@dataclass(frozen=True)
class Description:
    """Schema of untrusted data, and warnings about them."""

    schema: Schema
    notes: tuple[Finding, ...]


def describe(data: UntrustedData, fields: Sequence[Field] = ()) -> Description:
    """Infer the schema of data; `fields` are those that the data do not describe themselves.

    Raises SourceError if the schema cannot be inferred or the data cannot be stored.
    """
    with _worker(data, "describe", fields=_plain(fields)) as worker:
        result = worker.result()
        inferred = tuple(Field(name, tuple(shape), dtype) for name, shape, dtype in result["fields"])
        return Description(
            Schema(result["samples"], inferred, result["renamed"]),
            tuple(Finding(**note) for note in result["notes"]),
        )


def batches(data: UntrustedData, schema: Schema) -> Iterator[Batch]:
    """Yield all samples in order, in new arrays; raises SourceError if they cannot be read."""
    rows = schema.batch_rows(BATCH_BYTES)
    with _worker(data, "read", rows=rows, samples=schema.samples, fields=_plain(schema.fields)) as worker:
        for start in range(0, schema.samples, rows):
            yield worker.batch(schema, min(rows, schema.samples - start))


def checksum(data: UntrustedData, schema: Schema, report: Report) -> tuple[int, int]:
    """Return the content checksum and the ordered checksum of all samples.

    Raises SourceError if they cannot be read.
    """
    with _worker(data, "hash", samples=schema.samples, fields=_plain(schema.fields)) as worker:
        while True:
            kind, message = worker.reply()
            if kind != PROGRESS:
                break
            report(message["done"], schema.logical_bytes)
        result = worker.checked(kind, message)
        return int(result["content"]), int(result["ordered"])


def _plain(fields: Sequence[Field]) -> list[list[Any]]:
    return [[field.name, list(field.shape), field.dtype] for field in fields]


class _Worker:
    """A worker process that was sent a request, and its replies."""

    def __init__(self, data: UntrustedData, process: subprocess.Popen[bytes], stream: IO[bytes]) -> None:
        self._data, self._process, self._stream = data, process, stream

    def reply(self) -> tuple[int, dict[str, Any]]:
        """Receive the next reply: its kind and its message."""
        head = bytearray(9)
        self._receive(memoryview(head))
        kind, size = head[0], int.from_bytes(head[1:], "little")
        if kind not in (BATCH, DONE, FAILED, PROGRESS) or size > MAX_REPLY_BYTES:
            raise self._error("invalid-reply", "the reading process sent an invalid reply")
        body = bytearray(size)
        self._receive(memoryview(body))
        return kind, json.loads(body) if size else {}

    def result(self) -> dict[str, Any]:
        """Receive the only reply; raises SourceError if the request failed."""
        return self.checked(*self.reply())

    def checked(self, kind: int, message: dict[str, Any]) -> dict[str, Any]:
        """Return the message of a reply; raises SourceError if it reports a failure."""
        if kind == FAILED:
            raise self._reported(message)
        return message

    def batch(self, schema: Schema, count: int) -> Batch:
        """Receive the next `count` samples."""
        self.checked(*self.reply())
        batch = schema.empty(count)
        for array in batch.values():
            self._receive(raw_bytes(array))
        return batch

    def _receive(self, view: memoryview) -> None:
        while view:
            count = os.readv(self._stream.fileno(), [view])
            if not count:
                limit_s = self._data.request["limit_s"]
                raise self._error(*_end(self._process.wait(), limit_s))
            view = view[count:]

    def _reported(self, fields: dict[str, Any]) -> SourceError:
        """Return the worker's error; its path is the user's if it is not one inside the data."""
        path, file = fields.get("path") or "", self._data.file
        inside = self._data.descriptor is None and Path(path).is_relative_to(file)
        return SourceError(**fields | {"path": path if inside else str(file)})

    def _error(self, kind: str, problem: str, hint: str | None = None) -> SourceError:
        reader = self._data.kind or "any format"
        problem = f"cannot be read as {reader}: {problem}"
        return SourceError(problem, kind=kind, path=self._data.file, hint=hint)


@contextmanager
def _worker(data: UntrustedData, do: str, **arguments: Any) -> Iterator[_Worker]:
    """Start a worker with a request; kill it at the end."""
    modules = [os.path.abspath(folder) for folder in sys.path]
    with ExitStack() as stack:
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _START, json.dumps(modules)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a library's last words before it aborts: the error has the cause
            cwd=None if data.descriptor is None else stack.enter_context(_linked(data)),
            pass_fds=() if data.descriptor is None else (data.descriptor,),
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # each of its threads takes memory
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError), process.stdin as requests:
                requests.write(json.dumps({"do": do, **data.request, **arguments}).encode())
            yield _Worker(data, process, process.stdout)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


@contextmanager
def _linked(data: UntrustedData) -> Iterator[str]:
    """Yield a folder in which the file's name is a link to the worker's descriptor of it.

    The worker runs in that folder and opens the file by its own name, so every message of a library shows
    a name that the user knows.
    """
    with tempfile.TemporaryDirectory(prefix="iobench-") as folder:
        os.symlink(f"/proc/self/fd/{data.descriptor}", os.path.join(folder, data.file.name))
        yield folder


def _end(code: int, limit_s: float) -> tuple[str, str, str | None]:
    """Return kind, problem and hint for a worker that ended before it replied."""
    if code == -signal.SIGALRM:
        problem = f"reading took longer than {limit_s:.0f} s"
        return "timeout", problem, "check that the data are intact and the disk responds"
    if code < 0:
        problem = f"the data are damaged and crashed the library ({signal.strsignal(-code)})"
        return "reader-crashed", problem, None
    problem = f"the reading process ended with exit code {code}"
    return "reader-crashed", problem, "check that the data are intact and memory is free"
