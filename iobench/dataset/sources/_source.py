"""Interface of sources, and the checks shared by all sources that read files."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from iobench.base.errors import SourceError
from iobench.base.finding import Finding
from iobench.dataset.sources._regular_files import (
    CLOSE_WRITERS,
    FileState,
    check_unchanged,
    open_regular,
    source_errors,
)
from iobench.formats import Array, Batch, Schema, map_values, native_dtype, plain_bools

BATCH_BYTES = 8 << 20
MAX_NAME = 100  # characters of a generated name


class Source(ABC):
    """A schema and its samples, which can be read in order any number of times.

    Attributes
    ----------
    schema : Schema
        Number of samples, and their fields.
    name : str
        Default name of a dataset of this source.
    decodes : bool
        Whether producing a batch is expensive; prepare then caches the batches.
    notes : sequence of Finding
        What a user should know about the data.
    losses : sequence of str
        What the user's files allow and a dataset written from this source does not, a clause each.
    """

    schema: Schema
    name: str
    decodes: bool = False
    notes: Sequence[Finding] = ()
    losses: Sequence[str] = ()

    @property
    @abstractmethod
    def description(self) -> dict[str, Any]:
        """Description for the manifest; equal descriptions promise equal data."""

    @abstractmethod
    def batches(self) -> Iterator[Batch]:
        """Yield all samples in order, in new arrays of about BATCH_BYTES a batch."""

    def in_place(self) -> tuple[Path, str] | None:
        """Return path and format variant that read the samples where they lie; None if none does."""
        return None

    def other_decoders(self) -> tuple[str, ...]:
        """Return variants that decode the files of `in_place` in other ways, with pixels of their own."""
        return ()


class FileSource(Source):
    """A single file of the user, or the arrays `chosen` out of it."""

    kind: str

    def __init__(self, path: Path, chosen: tuple[str, ...] = ()) -> None:
        self.path = path.resolve()
        self.chosen = chosen
        self.name = default_name("-".join((path.resolve().stem, *chosen)))
        if chosen:
            self.losses = selected_alone(path, chosen)
        with open_regular(self.path) as file:
            self._state = FileState.of(os.fstat(file.fileno()))

    @property
    def description(self) -> dict[str, Any]:
        """Kind, path, size, time of change, selected arrays and fields that have other names."""
        stat = self.path.stat()
        return {
            "kind": self.kind,
            "path": str(self.path),
            "bytes": stat.st_size,
            "mtime_ns": stat.st_mtime_ns,
            **({"arrays": list(self.chosen)} if self.chosen else {}),
            **({"renamed": self.schema.renamed} if self.schema.renamed else {}),
        }

    @contextlib.contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Open the file; raises SourceError if it cannot be read, or changed before or during the body."""
        with source_errors(self.path), open_regular(self.path) as file:
            check_unchanged(self.path, file, self._state)
            yield file
            check_unchanged(self.path, file, self._state)


def selected_alone(path: Path, chosen: Sequence[str]) -> tuple[str, ...]:
    """Return what a dataset of the arrays `chosen` lacks, as `Source.losses`."""
    return (f"of {path.name} only {', '.join(chosen)} {'is' if len(chosen) == 1 else 'are'} written",)


class FirstSamples(Source):
    """The first `count` samples of another source, or all if it has fewer."""

    def __init__(self, whole: Source, count: int) -> None:
        self._whole, self._count = whole, min(count, whole.schema.samples)
        self.schema = Schema(self._count, whole.schema.fields, totals=self._totals())
        self.name = f"{whole.name}-first-{self.schema.samples}"
        self.decodes = whole.decodes

    @property
    def description(self) -> dict[str, Any]:
        """Description of the other source, with the number of samples as `first`."""
        return {**self._whole.description, "first": self.schema.samples}

    def batches(self) -> Iterator[Batch]:
        """Yield the other source's batches up to that number of samples."""
        left = self._count
        for batch in self._whole.batches():
            count = len(next(iter(batch.values())))
            yield batch if count <= left else {name: array[:left] for name, array in batch.items()}
            left -= min(count, left)
            if not left:
                return

    def _totals(self) -> dict[str, int]:
        """Return the sums of the lengths of these samples; reads them if they differ in length."""
        whole = self._whole.schema
        if not whole.totals or self._count == whole.samples:
            return whole.totals
        batches = list[Any](self.batches())
        return {name: sum(len(batch[name].values) for batch in batches) for name in whole.totals}


def default_name(text: str) -> str:
    """Make a dataset name from a file's: letters, digits, dots, dashes and underscores."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", text)[:MAX_NAME].strip("._-")
    return "dataset" if name in ("", "results") else name


def checked(source: Source) -> Iterator[Batch]:
    """Yield the batches of a source after checking them against its schema.

    Numbers are converted to this machine's byte order, and bools to the bytes 0 and 1, so that equal samples
    have equal bytes in every format. Raises SourceError if the arrays differ from the schema.
    """
    schema, samples = source.schema, 0
    for batch in source.batches():
        count = len(next(iter(batch.values()))) if batch else 0
        expected = {f.name: ((count, *f.merged_shape), f.dtype) for f in schema.fields}
        if not count or {n: (a.shape, a.dtype.name) for n, a in batch.items()} != expected:
            raise SourceError(
                f"arrays of source {source.name} changed while they were read",
                kind="changed",
                hint=CLOSE_WRITERS,
            )
        samples += count
        native = {name: map_values(_native, array) for name, array in batch.items()}
        yield plain_bools(native)
    if samples != schema.samples:
        raise SourceError(
            f"source {source.name} yielded another number of samples than its schema has",
            kind="wrong-length",
            expected=f"{schema.samples:,}",
            found=f"{samples:,}",
            hint=CLOSE_WRITERS,
        )


def _native(array: Array) -> Array:
    return np.ascontiguousarray(array, native_dtype(array.dtype))


def prefetched(batches: Iterator[Batch]) -> Generator[Batch, None, None]:
    """Yield batches that a thread produces up to two ahead; raises the thread's errors."""
    ready: queue.Queue[Batch | BaseException | None] = queue.Queue(2)
    stop = threading.Event()

    def produce() -> None:
        last: BaseException | None = None
        try:
            for batch in batches:
                if stop.is_set():
                    return
                ready.put(batch)
        except BaseException as error:  # noqa: BLE001 - raised in the consumer
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
