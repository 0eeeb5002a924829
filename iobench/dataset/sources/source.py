"""Interface of sources, and the checks shared by all sources that read files."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from iobench.base.errors import CorruptArtifact, SourceError
from iobench.base.finding import Finding
from iobench.base.text import reason
from iobench.formats import Array, Batch, BatchStream, Schema, map_values
from iobench.formats.array_schema import native_dtype
from iobench.formats.schema import plain_bools
from iobench.host.system_errors import system_error

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}

CLOSE_WRITERS = "try again when no program writes to it"  # for data that change while they are read


def named(path: Path) -> Path:
    """Return the absolute path, without links; the last one stays if its name says what the file is.

    Caches name files by their content, `blobs/4f1a…`, and link `train.parquet` to them.
    """
    whole = Path(os.path.realpath(path, strict=True))
    if path.suffix and whole.is_file() and path.is_symlink():
        return Path(os.path.realpath(path.parent), path.name)
    return whole


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    Raises SourceError for a FIFO, device, socket or folder, and OSError if the file cannot be opened. The
    type is checked twice: before opening, because opening a device can have effects, and on the descriptor,
    because another file may have taken the name in between.
    """
    check_regular(path, os.stat(path))
    # non-blocking: opening a FIFO waits for a writer
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    try:
        check_regular(path, os.fstat(file.fileno()))
    except SourceError:
        file.close()
        raise
    return file


def check_unchanged(path: Path, file: BinaryIO, before: os.stat_result) -> None:
    """Raise SourceError if an open file is another one, or of another size or time of change."""
    now = os.fstat(file.fileno())
    same_content = (now.st_size, now.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    if not (same_content and os.path.samestat(now, before)):
        raise SourceError("changed while it was read", "changed", path, hint=CLOSE_WRITERS)


@contextlib.contextmanager
def source_errors(path: Path) -> Iterator[None]:
    """Convert an OSError or CorruptArtifact in the body to a SourceError, about `path` if about no file."""
    try:
        yield
    except CorruptArtifact as error:
        raise error.converted(SourceError) from None
    except OSError as error:
        raise refused_by_system(error, path) from error


def refused_by_system(error: OSError, path: str | os.PathLike[str]) -> SourceError:
    """Return the SourceError for an OSError about its file, by default `path`."""
    if refused := system_error(error):
        return refused.converted(SourceError)
    kind = "missing-file" if isinstance(error, FileNotFoundError) else None
    return SourceError(error.strerror or reason(error), kind, error.filename or path)


def no_such_path(path: Path) -> SourceError:
    """Return the SourceError for a path that does not exist, or that is a URL."""
    scheme, colon, place = str(path).partition(":/")
    if colon and scheme.isalnum():
        return SourceError(
            "data of other programs are read from a disk, not from an address",
            "remote-data",
            f"{scheme}://{place.lstrip('/')}",
            hint="download the data, or mount them as a folder, and give that path; 'iobench add' takes an "
            "address, too",
        )
    return SourceError("no such file or folder", "missing-file", path)


def check_regular(path: str | os.PathLike[str], status: os.stat_result, hint: str | None = None) -> None:
    """Raise SourceError for anything but a regular file."""
    if not stat.S_ISREG(status.st_mode):
        found = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise SourceError(kind="not-a-file", path=path, expected="a regular file", found=found, hint=hint)


BATCH_BYTES = 8 << 20
AHEAD = 3  # batches that are produced while one is used
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


class FirstSamples(Source):
    """The first `count` samples of another source, or all if it has fewer."""

    def __init__(self, whole: Source, count: int) -> None:
        self._whole, self._count, totals = whole, min(count, whole.schema.samples), whole.schema.totals
        if totals and self._count < whole.schema.samples:  # of samples that differ in length: all are read
            batches = list[Any](self.batches())
            totals = {name: sum(len(batch[name].values) for batch in batches) for name in totals}
        self.schema = Schema(self._count, whole.schema.fields, totals=totals)
        self.name = f"{whole.name}-first-{self.schema.samples}"
        self.decodes = whole.decodes

    @property
    def description(self) -> dict[str, Any]:
        """Description of the other source, with the number of samples as `first`."""
        return {**self._whole.description, "first": self.schema.samples}

    def batches(self) -> Iterator[Batch]:
        """Yield the other source's batches up to that number of samples."""
        return BatchStream(self._whole.batches()).take(self._count)


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

    def native(array: Array) -> Array:
        return np.ascontiguousarray(array, native_dtype(array.dtype))

    for batch in source.batches():
        count = len(next(iter(batch.values()))) if batch else 0
        expected = {f.name: ((count, *f.merged_shape), f.dtype) for f in schema.fields}
        if not count or {n: (a.shape, a.dtype.name) for n, a in batch.items()} != expected:
            problem = f"arrays of source {source.name} changed while they were read"
            raise SourceError(problem, "changed", hint=CLOSE_WRITERS)
        samples += count
        yield plain_bools({name: map_values(native, array) for name, array in batch.items()})
    if samples != schema.samples:
        problem = f"source {source.name} yielded another number of samples than its schema has"
        raise SourceError(
            problem, "wrong-length", expected=f"{schema.samples:,}", found=f"{samples:,}", hint=CLOSE_WRITERS
        )


def prefetched(batches: Iterator[Batch]) -> Generator[Batch, None, None]:
    """Yield batches that a thread produces up to AHEAD ahead; raises the thread's errors."""
    pool = ThreadPoolExecutor(1, "iobench-source")
    try:
        ahead = deque(pool.submit(next, batches, None) for _ in range(AHEAD))
        while (batch := ahead.popleft().result()) is not None:
            ahead.append(pool.submit(next, batches, None))
            yield batch
    finally:
        pool.shutdown(cancel_futures=True)
