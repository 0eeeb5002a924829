"""Reader of .b2nd files through blosc2, which also locates their chunks."""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import blosc2
import numpy as np
import numpy.typing as npt

from iobench.base.errors import CorruptArtifact, corrupt, expecting
from iobench.base.files import regular
from iobench.base.text import reason
from iobench.contrib.formats.shared.external import check_stored
from iobench.formats import Array, Batch, Blocks, Field, Reader, Rows, Schema, arrays_schema, native, unclosed

# what blosc2 raises for damaged files
DAMAGE = (
    *(OSError, RuntimeError, ValueError, KeyError, TypeError),
    *(AttributeError, IndexError, SystemError, MemoryError, OverflowError),
)
MAGIC = b"b2frame\x00"
# metalayers of arrays that the library computes by the file's own expression, or fetches, when it opens
COMPUTED = (b"LazyArray", b"proxy-source", b"\xa3b2o\xd2")
HEADER_SIZE_AT, MOST_HEADER_BYTES = 11, 1 << 20  # of a frame
LAZY_TAIL = struct.Struct("<iq")  # of a chunk that stays in its file: its number and offset
HEADER_BYTES = 32


def opened(file: Path) -> blosc2.NDArray:
    """Open the array in a file; CorruptArtifact if it is none, or (``computed-array``) holds no values."""
    # any Exception: the metadata are Python literals, and damaged ones fail in any way
    with expecting(file, "a Blosc2 array", Exception):
        header = _header(file)
        if any(name in header for name in COMPUTED):
            raise CorruptArtifact(
                "the file holds an expression or a proxy, not values",
                kind="computed-array",
                path=file,
                hint="save its values",
            )
        array = blosc2.open(str(file), mode="r")
    if not isinstance(array, blosc2.NDArray):
        raise corrupt(file, "a Blosc2 array (b2nd)", type(array).__name__, kind="not-an-array")
    return array


def _header(file: Path) -> bytes:
    """Return a frame's header, which names its metalayers; ValueError if the file has none."""
    with open(regular(file), "rb") as start:
        begin = start.read(HEADER_SIZE_AT + 4)
        if MAGIC not in begin:
            raise ValueError("no frame header")
        return start.read(min(MOST_HEADER_BYTES, int.from_bytes(begin[HEADER_SIZE_AT:], "big")))


def infer_schema_of(path: Path, fields: Sequence[Field]) -> Schema:
    """Return the schema of an array that another program wrote."""
    array = opened(path)
    arrays = {path.stem: (tuple(array.shape), np.dtype(array.dtype).name)}
    return check_stored(path, arrays_schema(path, arrays, fields=fields), path.stat().st_size)


class Blosc2Reader(Reader):
    """Reads through blosc2, one thread at a time; the library decompresses with its own threads."""

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
            actual = f"{np.dtype(array.dtype).name} {tuple(array.shape)}"
            if actual != expected:
                raise corrupt(files[field.name], expected, actual)
            self._arrays[field.name] = array

    def native(self, rows: Rows) -> Batch:
        """Return the rows as the library's indexing returns them."""
        checked, _ = self._checked(rows)
        return {name: self._read(name, checked) for name in self._opened()}

    def blocks(self) -> Sequence[Blocks]:
        """Return the fields in chunks of whole samples, all of them stored."""
        tables = [self._blocks(field) for field in self.schema.fields]
        return [blocks for blocks in tables if blocks is not None]

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
        # sizes at 4 (decompressed) and 12 (stored): the library would write past the end of `full`
        sizes = struct.unpack_from("<iii", header.ljust(HEADER_BYTES, b"\0"), 4)
        if (sizes[0], sizes[2]) != (full.nbytes, len(stored)):
            raise corrupt(file, f"{full.nbytes} bytes in chunk {number}", f"{sizes[0]} in {sizes[2]}")
        with expecting(file, f"a readable chunk {number}", DAMAGE):
            blosc2.decompress2(stored, dst=full, nthreads=1)  # the caller has its own threads

    def close(self) -> None:
        """Release the arrays; no file stays open between reads."""
        self._arrays = None

    def _opened(self) -> dict[str, blosc2.NDArray]:
        return unclosed(self._arrays)

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
                values = array[rows]
        except DAMAGE as error:
            raise corrupt(self._files[name], "readable chunks", reason(error)) from error
        return native(np.asarray(values))


def _places(array: blosc2.NDArray, file: Path) -> tuple[Any, Any] | None:
    """Return offset and bytes of each chunk in its file; None if one is a constant, which is not stored."""
    schunk, offsets, sizes = array.schunk, [], []
    size = file.stat().st_size
    if not schunk.contiguous:
        return None
    with expecting(file, "readable chunks", DAMAGE):
        for info in schunk.iterchunks_info():
            if info.special != blosc2.SpecialValue.NOT_SPECIAL:
                return None
            lazy = bytes(info.lazychunk)
            blocks = -(-schunk.chunksize // schunk.blocksize)
            number, offset = LAZY_TAIL.unpack_from(lazy, len(lazy) - 4 * blocks - LAZY_TAIL.size)
            (packed,) = struct.unpack_from("<i", lazy, 12)
            if number != info.nchunk or not 0 < offset <= size - packed:
                raise corrupt(file, f"the location of chunk {info.nchunk}", f"byte {offset} of {size}")
            offsets.append(offset)
            sizes.append(packed)
    return np.array(offsets, np.int64), np.array(sizes, np.int64)
