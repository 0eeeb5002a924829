"""Inspection and reading of untrusted data in a subprocess with limited memory and time.

The libraries that read formats trust their input: a damaged or hostile file can crash the process, fill
its memory or block it for ever. A worker process (`sandbox_worker`) calls the formats instead. Its memory
and time limits grow with the size of the data.

The parent sends one request and receives messages, both in JSON: nothing that a worker sends is unpickled.
A message with a `problem` has the fields of an error. The message before a batch is followed by the rows of
each field as they lie in memory.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from iobench.base.errors import SourceError
from iobench.base.finding import Finding
from iobench.base.text import listed
from iobench.dataset.checksum import HashedRows
from iobench.dataset.sources.source import BATCH_BYTES
from iobench.formats import Batch, Field, Index, Ragged, Schema, raw_bytes, split_selection
from iobench.host.child import Child, ChildEnded, ChildHung, spawn_python

T = TypeVar("T")
LIMIT_S = 120.0  # to identify data, and to read one batch; more for large data:
BYTES_PER_S = 50e6  # one second more for this many bytes
MEMORY_BYTES = 768 << 20  # for reading: a sample, a chunk as stored and as unpacked, and a margin; and
MEMORY_SHARE = 1 / 256  # of the data, for tables of rows; all of them for
# kinds whose files are in memory as a whole, one at a time: torch's own maps count in full, and MATLAB packs
MEMORY_SHARES = {"torch": 1, "samples": 1, "parts": 1, "mat": 16}
# kinds of files that no format reads: module in `sources`, and class with the methods of a format
ADAPTERS = {
    "unmapped-npy": ("array_files", "NpyAdapter"),
    "npz": ("array_files", "NpzAdapter"),
    "mat": ("array_files", "MatAdapter"),
    "netcdf": ("array_files", "NetcdfAdapter"),
    "torch": ("torch_file", "TorchAdapter"),
    "csv": ("text_tables", "CsvAdapter"),
    "jsonl": ("text_tables", "JsonlAdapter"),
}


@dataclass(frozen=True)
class UntrustedData:
    """A file or folder that iobench did not write, or that was touched since it was verified."""

    path: Path  # the file or folder; may end in `::NAME,NAME` to select arrays
    kind: str  # name of the format that reads it, or a key of ADAPTERS
    bytes: int  # size, which the limits depend on
    stored: Schema | None = None  # schema of all samples that it holds, if only the first of them are read

    @property
    def memory_bytes(self) -> int:
        """Memory that the worker may take."""
        share = MEMORY_SHARES.get(self.kind.partition(":")[0], MEMORY_SHARE)
        return MEMORY_BYTES + int(self.bytes * share)

    @property
    def limit_s(self) -> float:
        """Longest time in seconds without a message of the worker."""
        return LIMIT_S + self.bytes / BYTES_PER_S

    @property
    def file(self) -> Path:
        """The path without the selection of arrays."""
        return split_selection(self.path)[0]


NO_SCHEMA = Schema(0, ())


@dataclass(frozen=True)
class SandboxRequest:
    """A command to a worker, `do`, the data that it is about, and its arguments."""

    do: str
    path: str
    kind: str
    memory_bytes: int
    stored: Schema | None
    schema: Schema = NO_SCHEMA
    fields: tuple[Field, ...] = ()
    files: str | None = None
    selected: tuple[str, ...] = ()
    rows: int = 0
    hashed: HashedRows | None = None


def packed(message: object) -> bytes:
    """Return a message as JSON; msgspec's own refuses names of files that are not UTF-8."""
    return json.dumps(msgspec.to_builtins(message)).encode()


MAX_MESSAGE_BYTES = 16 << 20
NOT_ABOUT_DATA = frozenset({"in-use", "read-error"})  # kinds of errors that other bytes would not prevent
WORKER = "iobench.dataset.sandbox_worker:serve"


@dataclass(frozen=True)
class SniffResult:
    """Formats that recognize a file or folder."""

    formats: tuple[str, ...]  # names of the formats that recognize it, or the variant that reads its files
    missing: dict[str, str]  # formats that could not be asked, and the reason
    members: dict[str, str] = field(default_factory=dict)  # entries that another format recognizes: its name
    notes: tuple[Finding, ...] = ()  # how the files in a folder were taken to relate

    @property
    def ambiguity(self) -> str:
        """The reason why it is unclear what to read; empty if it is clear."""
        members = listed([f"{name} ({word})" for name, word in self.members.items()])
        if members and self.formats:
            return f"recognized as {' and '.join(self.formats)}, but the folder also contains {members}"
        if members:
            return f"no format recognizes the folder as a whole; it contains {members}"
        return f"recognized as {' and as '.join(self.formats)}" if len(self.formats) > 1 else ""


def sniff(path: Path, files: str | None = None, selected: Sequence[str] = ()) -> SniffResult:
    """Find the formats that recognize a file or folder; `files` is the relation of its files, if given.

    `selected` are the names of the arrays that will be read; empty for all.

    Raises SourceError if that relation is not certain, or the libraries asked crash or exceed their limits.
    """
    with _worker(UntrustedData(path, "", 0), "sniff", files=files, selected=tuple(selected)) as worker:
        return worker.message(SniffResult)


@dataclass(frozen=True)
class Description:
    """Schema of untrusted data, warnings, and the files below the folder of a file that hold some of them."""

    schema: Schema
    notes: tuple[Finding, ...]
    others: tuple[str, ...] = ()


def describe(data: UntrustedData, fields: Sequence[Field] = ()) -> Description:
    """Infer the schema of data; `fields` are those that the data do not describe themselves.

    Raises SourceError if the schema cannot be inferred or the data cannot be stored.
    """
    with _worker(data, "describe", fields=tuple(fields)) as worker:
        return worker.message(Description)


def placed(data: UntrustedData, schema: Schema) -> list[str]:
    """Return the fields whose rows have known places in the files; raises SourceError as `batches`."""
    with _worker(data, "place", schema=schema) as worker:
        return worker.message(list[str])


def batches(data: UntrustedData, schema: Schema) -> Iterator[Batch]:
    """Yield all samples in order, in new arrays; raises SourceError if they cannot be read."""
    rows = schema.batch_rows(BATCH_BYTES)
    with _worker(data, "read", rows=rows, schema=schema) as worker:
        for start in range(0, schema.samples, rows):
            yield worker.batch(schema, min(rows, schema.samples - start))


def hashes(
    data: UntrustedData, schema: Schema, hashed: HashedRows, report: Callable[[int, int], None]
) -> Iterator[tuple[Index, npt.NDArray[np.int64]]]:
    """Yield rows and their hashes, in the order of the list; `report` gets the bytes done and those in total.

    Raises SourceError if they cannot be read.
    """
    rows = schema.batch_rows(BATCH_BYTES)
    with _worker(data, "hash", schema=schema, rows=rows, hashed=hashed) as worker:
        counts = (part.stop - part.start for part in hashed.slices(rows))
        yield from hashed.paired(schema, rows, map(worker.hashes, counts), report)


class SandboxWorker:
    """A worker process that was sent a request, and its replies."""

    def __init__(self, data: UntrustedData, child: Child) -> None:
        self._data, self._child = data, child

    def message(self, expected: type[T]) -> T:
        """Receive the next message; raises SourceError if it reports a failure."""
        with self._failures():
            self._child.wait(self._data.limit_s)
            message = json.loads(self._child.receive_bytes(MAX_MESSAGE_BYTES))
            if not isinstance(message, dict) or "problem" not in message:
                return msgspec.convert(message, expected)
        path, file = message.get("path") or "", self._data.file  # a path not inside the data is ours
        raise SourceError(**message | {"path": path if Path(path).is_relative_to(file) else str(file)})

    def batch(self, schema: Schema, count: int) -> Batch:
        """Receive the next `count` samples; of a ragged field first the offsets, which are checked."""
        batch: dict[str, Any] = self._received(schema.empty(count))
        with self._failures():
            for one in schema.ragged:
                offsets = batch[one.name].offsets
                if offsets[0] or (np.diff(offsets) < 0).any() or offsets[-1] > schema.totals[one.name]:
                    raise ValueError("offsets that do not rise")
                values = np.empty((int(offsets[-1]), *one.inner), one.dtype)
                if len(values):
                    self._child.receive_into(raw_bytes(values))
                batch[one.name] = Ragged(values, offsets)
        return batch

    def hashes(self, count: int) -> npt.NDArray[np.int64]:
        """Receive the hashes of the next `count` samples."""
        return self._received({"hashes": np.empty(count, np.int64)})["hashes"]

    def _received(self, batch: Batch) -> Batch:
        self.message(dict[str, Any])
        with self._failures():
            for array in batch.values():
                self._child.receive_into(raw_bytes(getattr(array, "offsets", array)))
        return batch

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Turn the end of the worker, its silence and anything but a message into SourceError."""
        try:
            yield
        except ChildEnded as error:
            if (code := self._child.exit_code()) < 0:
                problem = f"the data are damaged and crashed the library ({signal.strsignal(-code)})"
                raise self._error("reader-crashed", problem) from error
            problem = f"the reading process ended with exit code {code}"
            hint = "check that the data are intact and memory is free"
            raise self._error("reader-crashed", problem, hint) from error
        except ChildHung as error:
            problem = f"reading took longer than {error.limit_s:.0f} s"
            hint = "check that the data are intact and the disk responds"
            raise self._error("timeout", problem, hint) from error
        except ValueError as error:
            raise self._error("invalid-reply", "the reading process sent an invalid reply") from error

    def _error(self, kind: str, problem: str, hint: str | None = None) -> SourceError:
        reader = self._data.kind or "any format"
        problem = f"cannot be read as {reader}: {problem}"
        return SourceError(problem, kind, self._data.file, hint=hint)


@contextmanager
def _worker(data: UntrustedData, do: str, **arguments: Any) -> Iterator[SandboxWorker]:
    """Start a worker with a request; kill it at the end."""
    # each thread of OpenBLAS takes memory
    child = Child(WORKER, start=partial(spawn_python, environment={"OPENBLAS_NUM_THREADS": "1"}))
    try:
        with suppress(ChildEnded):  # which `message` reports
            request = SandboxRequest(
                do, os.fspath(data.path), data.kind, data.memory_bytes, data.stored, **arguments
            )
            child.send_bytes(packed(request))
        yield SandboxWorker(data, child)
    finally:
        child.end()
