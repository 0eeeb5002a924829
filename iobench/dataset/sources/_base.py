"""What prepare asks of a source, and the checks that all file sources share."""

from __future__ import annotations

import contextlib
import queue
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from iobench.errors import SourceError
from iobench.formats import DTYPES, RESERVED_NAMES, Batch, Field, Schema

BATCH_BYTES = 8 << 20


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
    """A source that is one file of the user's."""

    kind: str

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.name = default_name(path)

    @property
    def description(self) -> dict[str, Any]:
        """Kind, path, size and time of change."""
        stat = self.path.stat()
        return {
            "kind": self.kind,
            "path": str(self.path),
            "bytes": stat.st_size,
            "mtime_ns": stat.st_mtime_ns,
        }


def default_name(path: Path) -> str:
    """A dataset name out of a file name: letters, digits, dots, dashes and underscores."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", path.resolve().stem).strip("._-")
    return "dataset" if name in ("", "results") else name


def checked(source: Source) -> Iterator[Batch]:
    """The batches of a source; SourceError where they are not what its schema promises."""
    schema, found = source.schema, 0
    for batch in source.batches():
        count = len(next(iter(batch.values())))
        expected = {f.name: ((count, *f.shape), f.dtype) for f in schema.fields}
        if not count or {n: (a.shape, a.dtype.name) for n, a in batch.items()} != expected:
            raise SourceError(f"--source {source.name}: its arrays changed while they were read; try again")
        found += count
        yield batch
    if found != schema.samples:
        raise SourceError(
            f"--source {source.name}: {schema.samples} samples were promised, {found} came; try again"
        )


def schema_of(path: Path, arrays: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> Schema:
    """The schema of named arrays given as (shape, dtype).

    SourceError where there are none, one is empty, scalar or of a dtype that no format stores,
    or their leading axes differ.
    """
    if not arrays:
        raise SourceError(f"--source {path}: it holds no array")
    fields: dict[str, Field] = {}
    for original, (shape, dtype) in arrays.items():
        name = _field_name(original)
        if name in fields:
            raise SourceError(f"--source {path}: two arrays would both be the field {name!r}")
        fields[name] = _field(path, name, shape, dtype)
    lengths = {original: shape[0] for original, (shape, _) in arrays.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{key} has {count}" for key, count in lengths.items())
        raise SourceError(f"--source {path}: fields differ in length: {shown}")
    return Schema(next(iter(lengths.values())), tuple(fields.values()))


def native_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The same kind and size of number in this machine's byte order."""
    native: np.dtype[Any] = dtype.newbyteorder("=")
    return native


def _field(path: Path, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Field:
    if native_dtype(dtype).name not in DTYPES:
        raise SourceError(
            f"--source {path}: {name} is {dtype}, not a number that every format stores "
            f"({', '.join(DTYPES)}); ragged and object arrays must be made rectangular first"
        )
    if not shape:
        raise SourceError(f"--source {path}: {name} is a single value, without an axis of samples")
    if 0 in shape:
        raise SourceError(f"--source {path}: {name} is empty, its shape is {shape}")
    return Field(name, tuple(shape[1:]), native_dtype(dtype).name)


def _field_name(original: str) -> str:
    name = re.sub(r"[^A-Za-z0-9_]+", "_", original).strip("_")
    return name if name[:1].isalpha() and name not in RESERVED_NAMES else f"f_{name}"


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
