"""Data that others wrote, looked at and read by a process apart.

The libraries that read formats trust what they read: a damaged or hostile file can end the process, fill
its memory or keep it busy for ever. So a child process (`_apart_child`) asks the formats, with a limit to
its memory and to its time, both of which grow with the data.

It is asked in JSON on its standard input. Each answer is a byte for its kind, the length of a text in
eight bytes, that text in JSON, and after BATCH the rows of each field as they lie in memory.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from iobench.base.errors import (
    SourceError,
)
from iobench.base.text import listed
from iobench.dataset.sources._base import BATCH_BYTES
from iobench.formats import Batch, Field, Schema, raw_bytes

LIMIT_S = 120.0  # for finding out what data are, and for reading one batch of them; and for each of
BYTES_PER_S = 50e6  # these bytes a second
MEMORY_BYTES = 768 << 20  # that reading may take: a sample, a chunk as stored and as unpacked, and room;
MEMORY_SHARE = 256  # and a byte for so many of the data, for tables of rows (torch's own maps count whole)
MAX_ANSWER_BYTES = 16 << 20
BATCH, DONE, FAILED, PROGRESS = 1, 2, 3, 4

Report = Callable[[int, int], None]  # bytes done, bytes in all

# isolated, so that no module in the working directory or beside this file is taken for one of Python's
_START = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from iobench.dataset import _apart_child
_apart_child.main()
"""


@dataclass(frozen=True)
class Data:
    """Data that others wrote.

    `kind` is the word of the format that reads them, or one of `_apart_child.KINDS`; `path` may end in
    `::NAME,NAME`. `opened`: the descriptor of a file that is read in place of what is at the path by now.
    """

    path: Path
    kind: str
    bytes: int
    opened: int | None = None

    @property
    def asked(self) -> dict[str, Any]:
        """What the child is told of them."""
        path = os.fspath(self.path)
        if self.opened is not None:
            path = f"/proc/self/fd/{self.opened}{path[len(os.fspath(self.file)) :]}"
        return {
            "path": path,
            "kind": self.kind,
            "limit_s": LIMIT_S + self.bytes / BYTES_PER_S,
            "memory_bytes": MEMORY_BYTES + self.bytes // (1 if self.kind == "torch" else MEMORY_SHARE),
        }

    @property
    def file(self) -> Path:
        """The path without a choice of arrays."""
        file, separator, _ = os.fspath(self.path).rpartition("::")
        return Path(file) if separator and not os.path.lexists(self.path) else self.path


@dataclass(frozen=True)
class Recognised:
    """Which formats say that data are theirs, and why others could not be asked.

    `beside`: what lies in a folder by itself, and is not of the only format that says so: name and format.
    """

    formats: tuple[str, ...]
    missing: dict[str, str]
    beside: dict[str, str] = field(default_factory=dict)

    @property
    def mixed(self) -> str:
        """What lies in a folder of which it is unclear what to take; empty where that is clear."""
        held = listed([f"{name} ({word})" for name, word in self.beside.items()])
        if held and self.formats:
            several = "recognises" if len(self.formats) == 1 else "both recognise"
            return (
                f"{' and '.join(self.formats)} {several} it, and in it lie {held}, too; name the one to take"
            )
        return f"no format recognises it as a whole; it holds {held}: name the one to take" if held else ""


def recognise(path: Path) -> Recognised:
    """Which formats recognise data; SourceError where looking at them ends the process that does."""
    with _child(Data(path, "", 0), "recognise") as child:
        found = child.done()
        return Recognised(tuple(found["formats"]), found["missing"], found["beside"])


@dataclass(frozen=True)
class Described:
    """What is in data, and what should be known of them, a sentence each."""

    schema: Schema
    remarks: tuple[str, ...]


def describe(data: Data, told: Sequence[Field] = ()) -> Described:
    """What is in data; SourceError where it cannot be told, or is not to be read."""
    with _child(data, "describe", told=_plain(told)) as child:
        found = child.done()
        fields = tuple(Field(name, tuple(shape), dtype) for name, shape, dtype in found["fields"])
        return Described(Schema(found["samples"], fields), tuple(found["remarks"]))


def batches(data: Data, schema: Schema) -> Iterator[Batch]:
    """All samples in order, in fresh arrays; SourceError where they cannot be read."""
    rows = schema.batch_rows(BATCH_BYTES)
    with _child(data, "read", rows=rows, samples=schema.samples, fields=_plain(schema.fields)) as child:
        for start in range(0, schema.samples, rows):
            yield child.batch(schema, min(rows, schema.samples - start))


def checksum(data: Data, schema: Schema, report: Report) -> tuple[int, int]:
    """The checksums, plain and in order, of all samples; SourceError where they cannot be read."""
    with _child(data, "hash", samples=schema.samples, fields=_plain(schema.fields)) as child:
        while True:
            kind, said = child.answer()
            if kind != PROGRESS:
                break
            report(said["done"], schema.logical_bytes)
        found = child.checked(kind, said)
        return int(found["content"]), int(found["ordered"])


def _plain(fields: Sequence[Field]) -> list[list[Any]]:
    return [[field.name, list(field.shape), field.dtype] for field in fields]


class _Child:
    """A process that was asked something, and what it says on its standard output."""

    def __init__(self, data: Data, process: subprocess.Popen[bytes], stream: IO[bytes]) -> None:
        self._data, self._process, self._stream = data, process, stream

    def answer(self) -> tuple[int, dict[str, Any]]:
        """The kind of the next answer, and what it says."""
        head = bytearray(9)
        self._receive(memoryview(head))
        kind, size = head[0], int.from_bytes(head[1:], "little")
        if kind not in (BATCH, DONE, FAILED, PROGRESS) or size > MAX_ANSWER_BYTES:
            raise self._unreadable(
                "the process that reads it gave an answer that makes no sense; it is probably damaged"
            )
        body = bytearray(size)
        self._receive(memoryview(body))
        return kind, json.loads(body) if size else {}

    def done(self) -> dict[str, Any]:
        """What the only answer says; SourceError where that is why it failed."""
        return self.checked(*self.answer())

    def checked(self, kind: int, said: dict[str, Any]) -> dict[str, Any]:
        """What an answer that is not FAILED says."""
        if kind == FAILED:
            raise self._refused(said)
        return said

    def batch(self, schema: Schema, count: int) -> Batch:
        """The next so many samples."""
        self.checked(*self.answer())
        batch = schema.empty(count)
        for array in batch.values():
            self._receive(raw_bytes(array))
        return batch

    def _receive(self, view: memoryview) -> None:
        while view:
            count = os.readv(self._stream.fileno(), [view])
            if not count:
                raise self._unreadable(_end(self._process.wait(), self._data.asked["limit_s"]))
            view = view[count:]

    def _refused(self, fields: dict[str, Any]) -> SourceError:
        """Return the child's error, about the user's path in place of the descriptor that it opened."""
        path = fields.get("path") or ""
        inside = Path(path).is_relative_to(self._data.file)
        return SourceError(**fields | {"path": path if inside else str(self._data.file)})

    def _unreadable(self, why: str) -> SourceError:
        return SourceError(f"{self._data.file}: cannot be read as {self._data.kind or 'any format'}: {why}")


@contextmanager
def _child(data: Data, do: str, **asked: Any) -> Iterator[_Child]:
    """A process that was asked something; it is gone afterwards."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", _START, json.dumps(sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # what a library says before it aborts: the error says it in one line
        pass_fds=() if data.opened is None else (data.opened,),
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # each of its threads takes memory
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with suppress(BrokenPipeError), process.stdin as questions:  # its end is told when it should answer
            questions.write(json.dumps({"do": do, **data.asked, **asked}).encode())
        yield _Child(data, process, process.stdout)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _end(code: int, limit_s: float) -> str:
    if code == -signal.SIGALRM:
        return f"reading it took longer than {limit_s:.0f} s; it is damaged, or its disk does not answer"
    if code < 0:
        return f"it is damaged, which ended the library that reads it ({signal.strsignal(-code)})"
    return f"the process that reads it ended with exit code {code}; it is damaged, or memory is short"
