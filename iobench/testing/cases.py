"""Random data for the contract suites, and artifacts written from them."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from iobench.base.errors import CorruptArtifact
from iobench.formats import Array, Batch, Checkable, Field, Format, Reader, Schema

SCHEMA = Schema(
    23,
    (
        Field("rgb", (3,), "uint8"),
        Field("signal", (2, 5), "float32"),
        Field("label", (), "int64"),
        Field("mask", (7,), "bool"),
    ),
)
SAMPLES = SCHEMA.samples
INDICES = np.array([22, 0, 7, 7, 3, 22])


def varied_field(schema: Schema) -> Field:
    """Return the field that tests replace by another: the first of two axes, or else the first."""
    return next((field for field in schema.fields if len(field.shape) == 2), schema.fields[0])


def turned(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return another shape: the axes in reverse, or more of them if that is the same."""
    return shape[::-1] if shape[::-1] != shape else (*shape, 2)


def flat(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return another shape: one axis, or two if that is the same."""
    return (math.prod(shape),) if len(shape) > 1 else (2, *shape)


def other_dtype(field: Field, *dtypes: str) -> str:
    """Return the first of the dtypes that is not the field's."""
    return next(dtype for dtype in dtypes if dtype != field.dtype)


@dataclass(frozen=True)
class StoredArtifact:
    """An artifact with its format, schema and the source data."""

    format: Format
    path: Path
    schema: Schema
    source: Batch

    def open(self) -> Reader:
        """Return a new reader."""
        return self.format.open(self.path, self.schema)


def random_batch(schema: Schema, seed: int = 0) -> Batch:
    """Return all samples of a schema, of random bytes, which no codec can compress."""
    rng = np.random.default_rng(seed)
    return {f.name: _random(rng, (schema.samples, *f.shape), np.dtype(f.dtype)) for f in schema.fields}


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    return np.frombuffer(rng.bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)


def store(fmt: Format, path: Path, schema: Schema, batch_sizes: Sequence[int] = (5,)) -> StoredArtifact:
    """Write random data in batches of these sizes, and the rest in a last batch."""
    source = random_batch(schema)
    edges = [0, *itertools.accumulate(batch_sizes, initial=0), schema.samples]
    edges = [min(edge, schema.samples) for edge in edges]
    batches = ({name: a[low:high] for name, a in source.items()} for low, high in itertools.pairwise(edges))
    fmt.write(path, schema, batches)
    return StoredArtifact(fmt, path, schema, fmt.roundtrip(source))


def assert_same(actual: Any, expected: Array) -> None:
    """Assert equal shape, dtype and bytes of an array or tensor, so that NaN equals itself."""
    actual = np.asarray(actual)
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    assert actual.tobytes() == expected.tobytes()


def assert_rows(batch: Batch, source: Batch, rows: Any) -> None:
    """Assert that the batch has the fields of the source, and these rows in each of them."""
    assert batch.keys() == source.keys()
    for name, array in batch.items():
        assert_same(array, source[name][rows])


def bare_files(artifact: StoredArtifact, reader: Reader) -> set[Path]:
    """Return the files that hold samples from their first byte on, in which garbage is valid content."""
    placed: list[tuple[Path, int]] = []
    for placement in reader.placement().values():
        file, offset = placement.locate(np.arange(len(reader)))
        placed += [(placement.files[f], o) for f, o in zip(file.tolist(), offset.tolist(), strict=True)]
    return {path.relative_to(artifact.path) for path, offset in placed if offset == 0}


def column(native: Any, name: str) -> Any:
    """Return a field of a native batch, which is a dict or a tensorclass."""
    return native[name] if isinstance(native, dict) else native.get(name)


def files_of(path: Path) -> list[Path]:
    """Return every non-empty file below a folder."""
    return sorted(file for file in path.rglob("*") if file.is_file() and file.stat().st_size)


def read_all(fmt: Format, path: Path, schema: Schema) -> Batch | None:
    """Check, open and read all samples; None if the format raises CorruptArtifact."""
    try:
        if isinstance(fmt, Checkable):
            fmt.check(path, schema)
        with fmt.open(path, schema) as reader:
            return reader.batch(slice(None))
    except CorruptArtifact as error:
        if "\n" in str(error):
            raise AssertionError(f"an error of several lines: {error}") from error
        return None


def open_and_read(pickled: bytes, rows: Any) -> Batch:
    """Return these rows of an artifact whose format, path and schema are pickled."""
    fmt, path, schema = pickle.loads(pickled)  # trusted: the test itself pickled it
    with fmt.open(path, schema) as reader:
        batch: Batch = reader.batch(rows)
        return batch


Call = Callable[..., Any]


@contextmanager
def spawned() -> Iterator[Call]:
    """Yield a function that calls another in a spawned process, with a new process after it died."""
    pools: list[ProcessPoolExecutor] = []

    def call(function: Callable[..., Any], *args: Any) -> Any:
        if not pools:
            pools.append(ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")))
        try:
            return pools[0].submit(function, *args).result()
        except BrokenProcessPool:
            pools.pop().shutdown()
            raise

    try:
        yield call
    finally:
        for pool in pools:
            pool.shutdown()
