"""What prepare asks of a source, and the checks that all file sources share."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from iobench.base.errors import (
    SourceError,
)
from iobench.dataset.sources._files import Stamp, check_unchanged, open_regular, reading
from iobench.dataset.sources._schema import native_dtype
from iobench.formats import Array, Batch, Schema, plain_bools

BATCH_BYTES = 8 << 20
MAX_NAME = 100  # characters of a name that nobody chose


class Source(ABC):
    """A schema and its samples, in order, as often as they are asked for."""

    schema: Schema
    name: str
    decodes: bool = False  # producing a batch is costly: prepare keeps the batches once made

    @property
    @abstractmethod
    def description(self) -> dict[str, Any]:
        """What the manifest records: equal descriptions promise equal data."""

    @abstractmethod
    def batches(self) -> Iterator[Batch]:
        """All samples in order, in fresh arrays of about BATCH_BYTES a batch."""


class FileSource(Source):
    """A source that is one file of the user's, or the arrays `chosen` out of it."""

    kind: str

    def __init__(self, path: Path, chosen: tuple[str, ...] = ()) -> None:
        self.path = path.resolve()
        self.chosen = chosen
        self.name = default_name("-".join((path.resolve().stem, *chosen)))
        with open_regular(self.path) as file:
            self._stamp = Stamp.of(os.fstat(file.fileno()))

    @property
    def description(self) -> dict[str, Any]:
        """Kind, path, size and time of change, and what was chosen."""
        stat = self.path.stat()
        return {
            "kind": self.kind,
            "path": str(self.path),
            "bytes": stat.st_size,
            "mtime_ns": stat.st_mtime_ns,
            **({"arrays": list(self.chosen)} if self.chosen else {}),
        }

    @contextlib.contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """The file, open; SourceError where it cannot be read, or is not what it was at first or at last."""
        with reading(self.path), open_regular(self.path) as file:
            check_unchanged(self.path, file, self._stamp)
            yield file
            check_unchanged(self.path, file, self._stamp)


def default_name(text: str) -> str:
    """A dataset name out of a file's: letters, digits, dots, dashes and underscores."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", text)[:MAX_NAME].strip("._-")
    return "dataset" if name in ("", "results") else name


def checked(source: Source) -> Iterator[Batch]:
    """The batches of a source; SourceError where they are not what its schema promises.

    Numbers come in this machine's byte order, and truth values as the bytes 0 and 1, so that equal
    samples have equal bytes wherever they are stored.
    """
    schema, found = source.schema, 0
    for batch in source.batches():
        count = len(next(iter(batch.values()))) if batch else 0
        expected = {f.name: ((count, *f.shape), f.dtype) for f in schema.fields}
        if not count or {n: (a.shape, a.dtype.name) for n, a in batch.items()} != expected:
            raise SourceError(f"--source {source.name}: its arrays changed while they were read; try again")
        found += count
        yield plain_bools({name: _native(array) for name, array in batch.items()})
    if found != schema.samples:
        raise SourceError(
            f"--source {source.name}: it promised {schema.samples:,} samples and gave {found:,}; try again"
        )


def _native(array: Array) -> Array:
    return np.ascontiguousarray(array, native_dtype(array.dtype)).reshape(array.shape)


def ahead(batches: Iterator[Batch], depth: int = 2) -> Generator[Batch, None, None]:
    """The same batches, produced by a thread that stays `depth` ahead; its errors come out here."""
    ready: queue.Queue[Batch | BaseException | None] = queue.Queue(depth)
    stop = threading.Event()

    def produce() -> None:
        last: BaseException | None = None
        try:
            for batch in batches:
                if stop.is_set():
                    return
                ready.put(batch)
        except BaseException as error:  # noqa: BLE001 - handed over to the consumer, who raises it
            last = error
        ready.put(last)

    thread = threading.Thread(target=produce, name="iobench-source", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        while thread.is_alive():
            with contextlib.suppress(queue.Empty):
                ready.get(timeout=0.05)
