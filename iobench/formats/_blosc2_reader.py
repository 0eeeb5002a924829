"""Reading .b2nd files through blosc2, and where their chunks lie."""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import blosc2
import numpy as np
import numpy.typing as npt

from iobench.base.errors import (
    CorruptArtifact,
    corrupt,
)
from iobench.base.text import reason
from iobench.formats._arrays import native
from iobench.formats._external import check_stored, schema_of_arrays
from iobench.formats._file_kind import regular
from iobench.formats._placement import Blocks
from iobench.formats._reader import Convert, Reader, Rows, identity
from iobench.formats._schema import Array, Batch, Field, Schema

# what blosc2 raises for damaged files
DAMAGE = (
    *(OSError, RuntimeError, ValueError, KeyError, TypeError),
    *(AttributeError, IndexError, SystemError, MemoryError, OverflowError),
)
MAGIC = b"b2frame\x00"
# metalayers of what the library would compute by a file's own expression, or fetch, in opening it
ELSEWHERE = (b"LazyArray", b"proxy-source", b"\xa3b2o\xd2")
HEADER_SIZE_AT, MOST_HEADER_BYTES = 11, 1 << 20  # of a frame
LAZY_TAIL = struct.Struct("<iq")  # of a chunk that is left in its file: its number, and where it begins
HEADER_BYTES = 32


def opened(file: Path) -> blosc2.NDArray:
    """The array in a file; CorruptArtifact where it is none."""
    try:
        header = _header(file)
        if any(name in header for name in ELSEWHERE):
            raise ValueError("it computes or fetches what it gives; save its values")
        array = blosc2.open(str(file), mode="r")
    except Exception as error:  # its metadata are Python literals, and damaged ones fail in any way
        raise corrupt(file, "a Blosc2 array", reason(error)) from error
    if not isinstance(array, blosc2.NDArray):
        raise corrupt(file, "a Blosc2 array (b2nd)", type(array).__name__)
    return array


def _header(file: Path) -> bytes:
    """The header of a frame, which names its metalayers; ValueError where the file begins with none."""
    with open(regular(file), "rb") as start:
        begin = start.read(HEADER_SIZE_AT + 4)
        if MAGIC not in begin:
            raise ValueError("it does not begin as one")
        return start.read(min(MOST_HEADER_BYTES, int.from_bytes(begin[HEADER_SIZE_AT:], "big")))


def infer_schema_of(path: Path, fields: Sequence[Field]) -> Schema:
    """The samples and the field of an array that others wrote."""
    array = opened(path)
    found = {path.stem: (tuple(array.shape), np.dtype(array.dtype).name)}
    return check_stored(path, schema_of_arrays(path, found, fields), path.stat().st_size)


class Blosc2Reader(Reader):
    """Reads through blosc2, one thread at a time: each read is unpacked by threads of its own."""

    def __init__(self, files: Mapping[str, Path], schema: Schema) -> None:
        super().__init__(schema)
        self._files = dict(files)
        self._lock = threading.Lock()
        self._arrays: dict[str, blosc2.NDArray] | None = {}
        for field in schema.fields:
            if field.name not in files:
                raise corrupt(next(iter(files.values())), f"a field {field.name}", ", ".join(files))
            array = opened(files[field.name])
            expected = f"{field.dtype} {(schema.samples, *field.shape)}"
            found = f"{np.dtype(array.dtype).name} {tuple(array.shape)}"
            if found != expected:
                raise corrupt(files[field.name], expected, found)
            self._arrays[field.name] = array

    def sample(self, row: int, convert: Convert = identity) -> dict[str, Any]:
        """One sample in fresh arrays; IndexError out of range."""
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} is not in 0..{len(self) - 1}")
        return {name: convert(array[0, ...]) for name, array in self.batch(slice(row, row + 1)).items()}

    def native(self, rows: Rows) -> Batch:
        """A slice, or indices."""
        checked, _ = self._checked(rows)
        return {name: self._read(name, checked) for name in self._opened()}

    def blocks(self) -> Sequence[Blocks]:
        """Fields in chunks of whole samples, none of which is left out for being of one value."""
        found = [self._blocks(field) for field in self.schema.fields]
        return [blocks for blocks in found if blocks is not None]

    def _blocks(self, field: Field) -> Blocks | None:
        array, file = self._opened()[field.name], self._files[field.name]
        chunk, block = array.chunks, array.blocks
        if tuple(chunk[1:]) != field.shape or tuple(block[1:]) != field.shape or chunk[0] % block[0]:
            return None
        if not np.dtype(array.dtype).isnative:
            return None
        places = _places(array, file)
        if places is None:
            return None
        blosc2.set_releasegil(True)
        rows = int(chunk[0])
        count = -(-len(self) // rows)

        def decode(number: int, stored: memoryview, out: Mapping[str, Array]) -> None:
            for target in out.values():
                full = target if len(target) == rows else np.empty((rows, *field.shape), field.dtype)
                self._unpack(file, number, stored, full)
                if full is not target:
                    target[...] = full[: len(target)]

        first = np.arange(count, dtype=np.int64) * rows
        offset, stored = places
        return Blocks((field.name,), (file,), first, np.zeros(count, np.int64), offset, stored, decode)

    @staticmethod
    def _unpack(file: Path, number: int, stored: memoryview, full: Array) -> None:
        header = bytes(stored[:HEADER_BYTES])
        # the bytes unpacked and packed stand at 4 and 12: the library would write past the end of ours
        sizes = struct.unpack_from("<iii", header.ljust(HEADER_BYTES, b"\0"), 4)
        if (sizes[0], sizes[2]) != (full.nbytes, len(stored)):
            raise corrupt(file, f"{full.nbytes} bytes in chunk {number}", f"{sizes[0]} in {sizes[2]}")
        try:
            blosc2.decompress2(stored, dst=full, nthreads=1)  # each thread that asks is one
        except DAMAGE as error:
            raise corrupt(file, f"a readable chunk {number}", reason(error)) from error

    def close(self) -> None:
        """Let go of the arrays; no file stays open between reads."""
        self._arrays = None

    def _opened(self) -> dict[str, blosc2.NDArray]:
        if self._arrays is None:
            raise ValueError("this reader is closed")
        return self._arrays

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        for name, target in out.items():
            target[...] = self._read(name, slice(start, stop))

    def _read_rows(self, rows: npt.NDArray[np.int64], out: Mapping[str, Array]) -> None:
        for name, target in out.items():
            target[...] = self._read(name, rows)

    def _read(self, name: str, rows: Rows) -> Array:
        array = self._opened()[name]
        try:
            with self._lock:
                found = array[rows]
        except DAMAGE as error:
            raise corrupt(self._files[name], "readable chunks", reason(error)) from error
        return native(np.asarray(found))


def _places(array: blosc2.NDArray, file: Path) -> tuple[Any, Any] | None:
    """Offset and bytes of each chunk in its file; None where one is of one value, which is not stored."""
    schunk, offsets, sizes = array.schunk, [], []
    size = file.stat().st_size
    if not schunk.contiguous:
        return None
    try:
        for info in schunk.iterchunks_info():
            if info.special != blosc2.SpecialValue.NOT_SPECIAL:
                return None
            lazy = bytes(info.lazychunk)
            blocks = -(-schunk.chunksize // schunk.blocksize)
            number, offset = LAZY_TAIL.unpack_from(lazy, len(lazy) - 4 * blocks - LAZY_TAIL.size)
            (packed,) = struct.unpack_from("<i", lazy, 12)
            if number != info.nchunk or not 0 < offset <= size - packed:
                raise corrupt(file, f"a place of chunk {info.nchunk}", f"byte {offset} of {size}")
            offsets.append(offset)
            sizes.append(packed)
    except DAMAGE as error:
        if isinstance(error, CorruptArtifact):
            raise
        raise corrupt(file, "readable chunks", reason(error)) from error
    return np.array(offsets, np.int64), np.array(sizes, np.int64)
