"""Reader of an environment whose values are payloads of samples that differ in length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.base.errors import corrupt
from iobench.formats._placement import Index, Listed, ListedSpans, Placement
from iobench.formats._ragged import Ragged
from iobench.formats._reader import Convert, Rows, identity, unclosed
from iobench.formats._schema import Array, Batch, Field
from iobench.formats.lmdb.reader import LmdbReader
from iobench.formats.payloads import LENGTH


class RaggedLmdbReader(LmdbReader):
    """Reads samples that differ in length, one value at a time."""

    def sample(self, row: int, convert: Convert = identity) -> dict[str, Any]:
        """Return one sample as read-only arrays of its value; IndexError out of range."""
        self._check_row(row)
        parts = self._parts(self._decoded(row, self._stored(row)))
        return {name: convert(array) for name, array in parts.items()}

    def batch(self, rows: Rows | Sequence[int]) -> Batch:
        """Return the rows in new arrays, ragged fields as `Ragged`; IndexError outside 0..len-1."""
        checked, count = self._checked(rows)
        numbers = range(checked.start, checked.stop) if isinstance(checked, slice) else checked.tolist()
        unclosed(self._env)
        with self._transaction() as txn:
            values = map(txn.get, map(self._key, numbers))
            decoded = self._timed(self._all_decoded)(numbers, list(values))
            parts = [self._parts(value) for value in decoded]
            return {f.name: _joined(f, count, [part[f.name] for part in parts]) for f in self.schema.fields}

    def placement(self) -> dict[str, Placement]:
        """Return the locations in raw values: of the fixed fields, and of a single ragged one."""
        if self._codec or len(self.schema.ragged) > 1:
            return {}
        offset, size = self._values()
        file = np.broadcast_to(np.int64(0), offset.shape)
        (ragged,) = self.schema.ragged
        return {
            **{name: Listed((self._path,), file, offset, within) for name, *_, within in self._columns},
            ragged.name: ListedSpans((self._path,), file, offset, size, self._head),
        }

    def blocks(self) -> tuple[()]:
        """Return no blocks: values differ in size."""
        return ()

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        self._read_rows(np.arange(start, stop), out)

    def _read_rows(self, rows: npt.NDArray[np.int64], out: Mapping[str, Array]) -> None:
        batch = self.batch(rows)
        for name, target in out.items():
            target[...] = batch[name]

    def _wrong_sizes(self, size: Index) -> npt.NDArray[np.bool_]:
        """Return which values cannot hold a sample with one ragged field."""
        (ragged,) = self.schema.ragged
        wrong: npt.NDArray[np.bool_] = (size < self._head) | ((size - self._head) % ragged.sample_bytes != 0)
        return wrong

    def _check_size(self, row: int, value: Any) -> None:
        """Check what `_parts` relies on: that the lengths fill the value."""
        counts = self._counts(value) if len(value) >= self._head else []
        ends = sum(n * f.sample_bytes for n, f in zip(counts, self.schema.ragged, strict=False))
        if min(counts, default=-1) < 0 or self._head + ends != len(value):
            raise corrupt(self._path, f"sample {row} as long as its lengths say", f"{len(value)} bytes")

    def _counts(self, value: Any) -> list[int]:
        """Return the length of each ragged field."""
        counts: list[int] = np.frombuffer(value, LENGTH, len(self.schema.ragged), self._size).tolist()
        return counts

    @property
    def _head(self) -> int:
        """Bytes before the elements of the first ragged field."""
        return self._size + LENGTH.itemsize * len(self.schema.ragged)

    def _parts(self, value: Any) -> dict[str, Array]:
        """Return the fields of a checked value as views."""
        parts: dict[str, Array] = {}
        for name, dtype, shape, elements, offset in self._columns:
            parts[name] = np.frombuffer(value, dtype, elements, offset).reshape(shape)
        begin = self._head
        for field, count in zip(self.schema.ragged, self._counts(value), strict=True):
            flat = np.frombuffer(value, field.dtype, count * field.elements, begin)
            parts[field.name] = flat.reshape(count, *field.inner)
            begin += count * field.sample_bytes
        return {field.name: parts[field.name] for field in self.schema.fields}


def _joined(field: Field, count: int, samples: Iterable[Array]) -> Any:
    """Return the samples of a field as one array, or as a ragged one."""
    arrays = list(samples)
    if not field.is_ragged:
        whole = np.empty((count, *field.shape), field.dtype)
        for slot, array in enumerate(arrays):
            whole[slot] = array
        return whole
    return Ragged.of(arrays, field.inner, field.dtype)
