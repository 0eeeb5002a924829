"""What readers find out about where samples lie, kept beside the manifest so that it is found once.

    DATA_DIR/NAME/.index/<artifact's folder>.<what>     arrays, as `_Header` says, page by page

A file is written beside and renamed, and is used only where it was made of the very files that are
there now; else it is made again. It is no part of an artifact: whoever deletes it loses time. Where
it cannot be written, its arrays stay in memory. It is mapped, so that workers share it, and a page that
cannot be read is an OSError for who asks for rows.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import secrets
import zlib
from collections import OrderedDict
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from iobench.formats import Array, Find
from iobench.host.bus_errors import Guard
from iobench.host.maps import GuardedMap

FOLDER = ".index"
MAGIC = b"iobench index 1\n"
MEMORY_BYTES = 1 << 30  # of lists that could not be written; the newest always stays


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One array: where it begins in the file."""

    name: str
    dtype: str
    samples: int
    offset: int


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first page: what the arrays are of, what they are, and the CRC-32 of that and all that follows."""

    made_of: str
    parts: tuple[_Part, ...]
    checksum: int


_memory: OrderedDict[tuple[str, str, str], dict[str, Array]] = OrderedDict()
_checked: set[tuple[str, int, int, int]] = set()  # files whose checksum was right


class Kept:
    """Gives a reader what it found before, or has it found now and keeps it.

    `data`: the artifact's folder, or data that are one file. `index`: the file's path but for what it
    is of; None where nothing may be written.
    """

    def __init__(self, data: Path, index: Path | None, what_for: str) -> None:
        self._data, self._index, self._what_for = data, index, what_for

    def __call__(self, name: str, find: Find) -> dict[str, Array]:
        """The arrays that `find` gives, or gave."""
        made_of = self._stamp()
        key = (str(self._data), name, made_of)
        if key in _memory:
            return _memory[key]
        path = None if self._index is None else self._index.with_name(f"{self._index.name}.{name}")
        found = None if path is None else _read(path, made_of)
        if found is not None:
            return found
        found = find()
        if made_of == self._stamp() and path is not None and _write(path, made_of, found):
            return _read(path, made_of) or found
        _memory[key] = found
        while len(_memory) > 1 and sum(map(_bytes, _memory.values())) > MEMORY_BYTES:
            _memory.popitem(last=False)
        return found

    def _stamp(self) -> str:
        """What the files are now, in a word: names, sizes, times of change and numbers."""
        found = hashlib.blake2b(self._what_for.encode(), digest_size=16)
        files = [self._data] if self._data.is_file() else sorted(self._data.rglob("*"))
        for file in files:
            with contextlib.suppress(OSError):  # whoever opens it says so
                stat = file.stat()
                found.update(f"{file}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ino}\n".encode())
        return found.hexdigest()


def sweep(root: Path, listed: Collection[str]) -> None:
    """Remove the lists of artifacts that a dataset no longer has, and what was left half written."""
    for path in (root / FOLDER).glob("*"):
        if path.name.rpartition(".")[0] not in listed:
            with contextlib.suppress(OSError):  # the next prepare tries again
                path.unlink()


class _Watched(np.ndarray[Any, np.dtype[Any]]):
    """A map of a file, of which each look is checked."""

    guard: Guard | None = None

    def __array_finalize__(self, of: Any) -> None:
        self.guard = getattr(of, "guard", None)

    def __getitem__(self, key: Any) -> Any:
        """What stands there; OSError where a page of it could not be read."""
        found = super().__getitem__(key)
        return found if isinstance(key, slice) else self._checked(found)  # a slice is a view, not a look

    def take(self, *arguments: Any, **more: Any) -> Any:
        """As NumPy's."""
        return self._checked(super().take(*arguments, **more))

    def _checked(self, found: Any) -> Any:
        if self.guard is not None:
            self.guard.check()
        return np.asarray(found) if isinstance(found, np.ndarray) else found


def _mapped(mapped: GuardedMap, part: _Part) -> Array:
    """One array of a mapped file; ValueError where the file does not hold it."""
    plain: Array = np.frombuffer(mapped.bytes.data, part.dtype, part.samples, part.offset)
    watched = plain.view(_Watched)
    watched.guard = mapped.guard
    return watched


def _bytes(arrays: dict[str, Array]) -> int:
    return sum(array.nbytes for array in arrays.values())


def _crc(made_of: str, parts: tuple[_Part, ...]) -> int:
    return zlib.crc32(msgspec.json.encode((made_of, parts)))


def _write(path: Path, made_of: str, found: dict[str, Array]) -> bool:
    """Write arrays into a file that appears whole; whether that could be done."""
    parts, at = [], mmap.PAGESIZE
    for name, array in found.items():
        parts.append(_Part(name, array.dtype.str, len(array), at))
        at = -(-(at + array.nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(exist_ok=True)
        with open(temporary, "wb") as file:
            checksum = _crc(made_of, tuple(parts))
            for part, array in zip(parts, found.values(), strict=True):
                data = np.ascontiguousarray(array)
                file.seek(part.offset)
                file.write(data.data)
                checksum = zlib.crc32(data.data, checksum)
            header = MAGIC + msgspec.json.encode(_Header(made_of, tuple(parts), checksum))
            if len(header) >= mmap.PAGESIZE:
                return False
            file.seek(0)
            file.write(header.ljust(mmap.PAGESIZE))
            file.truncate(at)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:  # a folder that is read-only, or a full disk
        return False
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return True


def _read(path: Path, made_of: str) -> dict[str, Array] | None:
    """The arrays of a file, mapped; None where it is not there, not whole, or made of other files."""
    try:
        if not path.is_file():  # a pipe would keep us waiting
            return None
        with open(path, "rb") as file:
            head, stat = file.read(mmap.PAGESIZE), os.fstat(file.fileno())
            if not head.startswith(MAGIC):
                return None
            header = msgspec.json.decode(head[len(MAGIC) :].strip(), type=_Header)
            if header.made_of != made_of:
                return None
        mapped = GuardedMap([path], [stat.st_size])
        if path.stat().st_ino != stat.st_ino:  # another one came meanwhile
            return None
        found = {part.name: _mapped(mapped, part) for part in header.parts}
    except (OSError, msgspec.DecodeError, ValueError, TypeError):
        return None
    seen = (str(path), stat.st_ino, stat.st_mtime_ns, stat.st_size)
    if seen not in _checked:
        checksum = _crc(header.made_of, header.parts)
        for array in found.values():
            checksum = zlib.crc32(array.data, checksum)
        if checksum != header.checksum:  # also where a page could not be read
            return None
        _checked.add(seen)
    return found
