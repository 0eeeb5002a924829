"""The seam between storage and measurement: schema, format, reader and their errors.

FormatError
├ UnknownFormat        + LookupError         lists the known names
├ InvalidOption        + ValueError          an option this format does not have, or a value it cannot take
├ MissingDependency    + ImportError         gives the pip command
├ ArtifactExists       + FileExistsError     names --overwrite
└ CorruptArtifact      + ValueError          file, expected, found
"""

from __future__ import annotations

import dataclasses
import keyword
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")
Array: TypeAlias = npt.NDArray[Any]
Batch: TypeAlias = dict[str, Array]
Rows: TypeAlias = "slice | npt.NDArray[np.int64]"
Convert: TypeAlias = Callable[[Array], Any]
Timed: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]

DTYPES = "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 float32 float64".split()
FIELD_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
# A tensorclass has no attribute `class`, and its own methods by these names are needed; TensorDict's
# meta.json keeps its own `shape` and `device`.
RESERVED_NAMES = {*keyword.kwlist, "shape", "device", "to", "clone", "items", "pin_memory"}


class FormatError(Exception):
    """Any failure of a format; its message is one line for the user."""


class UnknownFormat(FormatError, LookupError):
    """No module of that name in formats/."""


class InvalidOption(FormatError, ValueError):
    """A format was given an option it does not have, or a value it cannot take."""


class MissingDependency(FormatError, ImportError):
    """The format's own library is not installed."""


class ArtifactExists(FormatError, FileExistsError):
    """Something is already there and --overwrite was not given."""


class CorruptArtifact(FormatError, ValueError):
    """A file does not hold what was written."""


def corrupt(path: Path, expected: object, found: object) -> CorruptArtifact:
    """The CorruptArtifact that names a file, what it should hold and what it holds."""
    return CorruptArtifact(
        f"{path}: expected {expected}, found {found}; "
        "prepare it again, as it was first prepared, to repair it"
    )


@dataclass(frozen=True)
class Field:
    """A named array per sample.

    `shape` is one sample's, `()` for a scalar; `dtype` is a NumPy name out of DTYPES.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if not FIELD_NAME.fullmatch(self.name):
            raise ValueError(f"field name {self.name!r} is not a letter followed by letters, digits or _")
        if self.name in RESERVED_NAMES:
            raise ValueError(f"field name {self.name!r} is reserved")
        if self.dtype not in DTYPES:
            raise ValueError(f"field {self.name}: dtype {self.dtype} is not one of {', '.join(DTYPES)}")
        if any(n < 1 for n in self.shape):
            raise ValueError(f"field {self.name}: shape {self.shape} holds no element")

    @property
    def elements(self) -> int:
        """Scalar elements in one sample."""
        return math.prod(self.shape)

    @property
    def sample_bytes(self) -> int:
        """Logical bytes of one sample."""
        return self.elements * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Schema:
    """What every artifact of a dataset holds: the number of samples and their fields."""

    samples: int
    fields: tuple[Field, ...]

    @property
    def sample_bytes(self) -> int:
        """Logical bytes of one sample over all its fields."""
        return sum(field.sample_bytes for field in self.fields)

    @property
    def logical_bytes(self) -> int:
        """Bytes of the whole dataset as arrays."""
        return self.samples * self.sample_bytes

    @property
    def elements(self) -> int:
        """Scalar elements of the whole dataset."""
        return self.samples * sum(field.elements for field in self.fields)

    def field(self, name: str) -> Field:
        """The field of that name; KeyError lists the known ones."""
        for field in self.fields:
            if field.name == name:
                return field
        raise KeyError(f"no field {name!r}; there are {', '.join(f.name for f in self.fields)}")

    def empty(self, count: int) -> Batch:
        """A batch of `count` uninitialised samples."""
        return {f.name: np.empty((count, *f.shape), f.dtype) for f in self.fields}

    def batch_rows(self, target_bytes: int) -> int:
        """How many samples fit `target_bytes`, at least 1 and at most all of them."""
        return max(1, min(self.samples, target_bytes // self.sample_bytes))


@dataclass(frozen=True)
class Extent:
    """Where the samples of one field lie in a file: sample i is at `offset + i * stride` bytes."""

    path: Path
    offset: int
    stride: int


def same(value: T) -> T:
    """The value itself."""
    return value


def option(
    default: Any, help: str, *, choices: tuple[Any, ...] | None = None, minimum: int | None = None
) -> Any:
    """A dataclass field that is also a format's option on the command line."""
    metadata = {"help": help, "choices": choices, "minimum": minimum}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Format(ABC):
    """Turns batches into files and opens them again. The dataclass fields are the options."""

    name: ClassVar[str]
    summary: ClassVar[str]
    library: ClassVar[str]

    def __post_init__(self) -> None:
        for spec in dataclasses.fields(self):
            value, limits = getattr(self, spec.name), spec.metadata
            known, least = limits["choices"], limits["minimum"]
            if known is not None and value not in known:
                shown = ", ".join(_word(choice) for choice in known)
                raise InvalidOption(f"{self.name}: {spec.name}={_word(value)} is not one of {shown}")
            if least is not None and not (isinstance(value, int) and value >= least):
                raise InvalidOption(
                    f"{self.name}: {spec.name}={_word(value)} is not a whole number from {least} up"
                )

    @property
    def options(self) -> dict[str, Any]:
        """Every option with its value."""
        return dataclasses.asdict(self)

    @property
    def variant(self) -> str:
        """The format and the options that differ from their defaults, in one word."""
        changed = [
            f"{spec.name}={_word(getattr(self, spec.name))}"
            for spec in dataclasses.fields(self)
            if getattr(self, spec.name) != spec.default
        ]
        return self.name + (":" + ",".join(changed) if changed else "")

    def size_bound(self, schema: Schema) -> int:
        """The most bytes that `write` puts on disk; prepare asks for this much free space."""
        return schema.logical_bytes + (1 << 20)

    @abstractmethod
    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write all batches, in order, into the new directory `path`."""

    @abstractmethod
    def open(self, path: Path, schema: Schema, random: bool = False) -> Reader:
        """A reader of what `write` left in `path`; CorruptArtifact where it is not `schema`.

        `random` announces that rows will be asked for in random order; any order can be read.
        """


class Reader(ABC):
    """Fills a caller's buffers from rows. Reading is safe from several threads at once."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._specs = {f.name: (f.shape, np.dtype(f.dtype)) for f in schema.fields}
        self._timed: Timed = same

    def __len__(self) -> int:
        return self.schema.samples

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def read(self, rows: Rows, out: Mapping[str, Array]) -> None:
        """Overwrite `out` (field → C-contiguous array, leading axis = rows) with these rows.

        `rows` is a slice, or int64 indices in any order, duplicates allowed. `out` may hold
        a subset of the fields. IndexError outside 0..len-1 (negative indices included),
        ValueError where an array has the wrong shape, dtype or layout.
        """
        checked, count = self._checked(rows)
        self._check_out(count, out)
        self._fill(checked, out)

    def batch(self, rows: Rows) -> Batch:
        """These rows in fresh arrays; IndexError outside 0..len-1."""
        checked, count = self._checked(rows)
        out = {name: np.empty((count, *shape), dtype) for name, (shape, dtype) in self._specs.items()}
        self._fill(checked, out)
        return out

    @abstractmethod
    def sample(self, row: int, convert: Convert = same) -> dict[str, Any]:
        """One sample, each field without the leading axis and passed through `convert`.

        For map-style Datasets, which call it once per sample: `row` is the caller's promise to be
        in 0..len-1, and an array may be a read-only view of the file, of which no byte has moved.
        """

    def native(self, rows: Rows) -> Any:
        """One batch the way the format's own library advises; fresh arrays unless overridden."""
        return self.batch(rows)

    def time_decoding(self, timed: Timed) -> None:
        """Have `timed` wrap what decodes many samples; of no avail where a library does that itself."""
        self._timed = timed

    @property
    def extents(self) -> dict[str, Extent] | None:
        """Where each field lies, if its samples stand at a fixed stride in a file; else None."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Let go of every file and map. A second call does nothing; a later read is a ValueError."""

    @abstractmethod
    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        """Read rows start..stop-1, at least one, into checked `out`."""

    @abstractmethod
    def _read_rows(self, rows: npt.NDArray[np.int64], out: Mapping[str, Array]) -> None:
        """Read checked, non-empty `rows` into checked `out`."""

    def _fill(self, rows: Rows, out: Mapping[str, Array]) -> None:
        if not isinstance(rows, slice):
            if len(rows):
                self._read_rows(rows, out)
        elif rows.start < rows.stop:
            self._read_slice(rows.start, rows.stop, out)

    def _checked(self, rows: Any) -> tuple[Rows, int]:
        """The rows as a slice of step 1 or as int64 in range, and how many they are."""
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step == 1:
                return slice(start, stop), max(0, stop - start)
            rows = np.arange(start, stop, step)
        index = np.asarray(rows)
        if index.ndim != 1 or (index.size and index.dtype.kind not in "iu"):
            raise ValueError(f"rows must be one axis of integers, not {index.dtype} {index.shape}")
        index = index.astype(np.int64, copy=False)
        if index.size and (int(index.min()) < 0 or int(index.max()) >= len(self)):
            raise IndexError(f"rows {index.min()}..{index.max()} are not all in 0..{len(self) - 1}")
        return index, len(index)

    def _check_out(self, count: int, out: Mapping[str, Array]) -> None:
        for name, array in out.items():
            self.schema.field(name)  # KeyError lists the known ones
            shape, dtype = self._specs[name]
            if array.shape != (count, *shape) or array.dtype != dtype:
                raise ValueError(
                    f"out[{name!r}] is {array.dtype} {array.shape}, these rows are {dtype} {(count, *shape)}"
                )
            if not array.flags.c_contiguous:
                raise ValueError(f"out[{name!r}] is not C-contiguous")


def raw_bytes(array: Array) -> memoryview:
    """The bytes of a C-contiguous array, as a flat view of its memory."""
    return array.reshape(-1).view(np.uint8).data


def _word(value: object) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
