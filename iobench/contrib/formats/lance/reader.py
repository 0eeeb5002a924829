"""Reader of Lance datasets through the library's `take`, from a disk or by its own client from S3."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from iobench.base.errors import CorruptArtifact, IobenchError, LoaderFailed, corrupt, is_panic
from iobench.base.files import name_problem, regular
from iobench.base.text import reason
from iobench.contrib.formats.shared.arrow_columns import DAMAGE, Table, arrays, checked_columns
from iobench.formats import (
    Array,
    Batch,
    Convert,
    Reader,
    Rows,
    Schema,
    StoreAddress,
    identity,
    index_of,
    map_arrays,
    only_sample,
    unclosed,
)

os.environ.setdefault("LANCE_LOG", "error")  # Lance reads it on import

import lance

# Lance warns at each fork of a process that has imported it; the processes that read it are never forked.
warnings.filterwarnings("ignore", "lance is not fork-safe")

__all__ = ["errors_as", "lance"]

STDERR = 2
_captured = threading.Lock()


@contextmanager
def errors_as(converted: Callable[[BaseException], IobenchError]) -> Iterator[None]:
    """Raise what `converted` returns for errors and panics of Lance, CorruptArtifact as it is."""
    try:
        with _without_panics():
            yield
    except CorruptArtifact:
        raise
    except BaseException as error:
        if not (is_panic(error) or isinstance(error, DAMAGE)):
            raise
        raise converted(error) from None  # its text may repeat what a store answered


@contextmanager
def _without_panics() -> Iterator[None]:
    """Suppress the message and backtrace that Lance prints on stderr before it raises a panic.

    Captures stderr meanwhile; the captured output is written afterwards unless there was a panic.
    """
    if not _captured.acquire(blocking=False):  # another thread captures stderr already
        yield
        return
    try:
        original, capture = os.dup(STDERR), os.memfd_create("stderr")
    except OSError:  # there is no stderr
        _captured.release()
        yield
        return
    panicked = False
    try:
        os.dup2(capture, STDERR)
        yield
    except BaseException as error:
        panicked = is_panic(error)
        raise
    finally:
        os.dup2(original, STDERR)
        output = b"" if panicked else os.pread(capture, os.fstat(capture).st_size, 0)
        os.close(original)
        os.close(capture)
        _captured.release()
        if output:
            os.write(STDERR, output)


Errors: TypeAlias = Callable[[Path, str], AbstractContextManager[None]]

PIECE_ROWS = 1024  # per record batch while a schema is inferred


def opened(path: Path) -> Any:
    """Open the newest version of a dataset.

    CorruptArtifact if it is none, or a file of it is missing or outside the folder.
    """
    with damage_as_error(path, "a Lance dataset"):
        if not (path / "_versions").is_dir():
            raise OSError("no folder _versions")
        for inner in path.rglob("*"):
            if not inner.is_dir():
                regular(inner)
        dataset = lance.dataset(str(path))
        check_files(dataset, lambda name: (path / name).is_file())
    return dataset


def check_files(dataset: Any, exists: Callable[[str], bool]) -> None:
    """Raise an error if metadata are damaged, or a data file does not exist or is outside the dataset."""
    assert dataset.schema is not None  # reading it raises on damaged metadata
    for fragment in dataset.get_fragments():
        for file in fragment.data_files():
            if getattr(file, "base_id", None) is not None or "/" in file.path or name_problem(file.path):
                raise OSError(f"data outside its folder: {file.path}")
            if not exists(f"data/{file.path}"):
                raise OSError(f"no file data/{file.path}")


def table_of(path: Path) -> Table:
    """Open a dataset that another program wrote."""
    dataset = opened(path)

    def pieces(names: Sequence[str]) -> Iterator[tuple[str, pa.Array]]:
        with damage_as_error(path, "readable columns"):
            for batch in dataset.to_batches(columns=list(names), batch_size=PIECE_ROWS):
                yield from ((name, batch.column(name)) for name in names)

    with damage_as_error(path, "readable columns"):
        return Table(path, dataset.schema, dataset.count_rows(), pieces)


class LanceReader(Reader):
    """Takes rows by number and copies them into the caller's memory.

    `errors` converts those of the library: it gets the path, and what is read there.
    """

    def __init__(self, path: Path, schema: Schema, dataset: Any, errors: Errors) -> None:
        super().__init__(schema)
        self._path, self._dataset, self._errors = path, dataset, errors
        with errors(path, f"{schema.samples} samples"):
            self._names = checked_columns(path, schema, dataset.schema)
            samples = dataset.count_rows()
            if samples != schema.samples:
                raise corrupt(path, f"{schema.samples} samples", samples)

    @property
    def dataset(self) -> Any:
        """The open dataset."""
        return unclosed(self._dataset)

    def sample(self, row: int, convert: Convert = identity) -> dict[str, Any]:
        """Return one sample; IndexError out of range."""
        self._check_row(row)
        taken = self._taken(np.array([row]), [field.name for field in self.schema.fields])
        return {name: convert(only_sample(array)) for name, array in taken.items()}

    def batch(self, rows: Rows | Sequence[int]) -> Batch:
        """Return the rows in new arrays, ragged fields as `Ragged`; IndexError outside 0..len-1."""
        checked, _ = self._checked(rows)
        if not self.schema.ragged:
            return super().batch(checked)
        return {name: map_arrays(np.array, array) for name, array in self.native(checked).items()}

    def native(self, rows: Rows) -> Batch:
        """Return the rows as the library's `take` returns them."""
        checked, count = self._checked(rows)
        unclosed(self._dataset)
        if not count:
            return self.schema.empty(0)
        return self._taken(index_of(checked), [field.name for field in self.schema.fields])

    def close(self) -> None:
        """Release the dataset."""
        self._dataset = None

    def _read_rows(self, rows: npt.NDArray[np.int64], out: Mapping[str, Array]) -> None:
        for name, array in self._taken(rows, list(out)).items():
            out[name][...] = array

    def _taken(self, rows: npt.NDArray[np.int64], names: list[str]) -> Batch:
        dataset = self.dataset
        if not names:
            return {}
        fields, columns = self.schema.chosen(names), dict.fromkeys(self._names[name] for name in names)
        with self._errors(self._path, "readable rows"):
            table: pa.Table = dataset.take(rows, columns=list(columns))
            batch = arrays(self._path, fields, table, self._names)
            if any(len(array) != len(rows) for array in batch.values()):
                raise corrupt(self._path, f"{len(rows)} rows", table.num_rows)
        return batch


@contextmanager
def damage_as_error(path: Path, expected: str) -> Iterator[None]:
    """Raise CorruptArtifact in place of the errors and panics that Lance raises on damaged files."""
    with errors_as(lambda error: corrupt(path, expected, reason(error))):
        yield


def opened_at(address: StoreAddress) -> Any:
    """Open the newest version of a dataset; CorruptArtifact if a file of it is not among the objects."""
    # what Lance does not find in the environment by itself, without credentials
    options = {"aws_skip_signature": "true"} if address.public else {}
    if address.endpoint is not None:
        options |= {"aws_endpoint": address.endpoint, "aws_region": address.region}
        options["allow_http"] = str(address.endpoint.startswith("http://")).lower()
    with store_errors(address.url):
        dataset = lance.dataset(address.url, storage_options=options)
        with damage_as_error(Path(address.url), "a Lance dataset"):
            check_files(dataset, address.names.__contains__)
    return dataset


@contextmanager
def store_errors(url: str, *read: object) -> Iterator[None]:
    """Raise `store_error` for errors and panics of Lance's client, whatever is `read`."""
    try:
        with errors_as(partial(store_error, url)):
            yield
    except CorruptArtifact as error:
        raise error.changed(path=url) from None


def store_error(url: str, error: BaseException) -> LoaderFailed:
    """Return the error for one of Lance's client, without the address and the answer of the store."""
    found = reason(error).rpartition(" - ")[2].partition(": <")[0].partition(", /")[0]
    return LoaderFailed("lance could not read the objects", kind="store-failed", path=url, found=found)
