"""Headers of .npy data, ours or untrusted; nothing in them is executed or unpickled."""

from __future__ import annotations

import io
import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any, Protocol

import numpy as np

from iobench.base.errors import CorruptArtifact, expecting
from iobench.base.text import reason, shortened
from iobench.formats._schema import Field

MAX_HEADER_BYTES = 10_000  # NumPy's own limit, which it checks only after reading everything
LONGEST = MAX_HEADER_BYTES + 12  # with magic, version and length
FORTRAN_HINT = "save np.ascontiguousarray(a, a.dtype.newbyteorder('='))"
# A header is a Python literal, and parsing a damaged one raises any of these.
DAMAGE = (
    *(OSError, ValueError, SyntaxError, TypeError, OverflowError, TokenError, KeyError),
    *(RecursionError, MemoryError),
)


class ByteStream(Protocol):
    """Stream that a header is read from."""

    def read(self, size: int, /) -> bytes:
        """Read at most `size` bytes; none at the end."""


@dataclass(frozen=True)
class NpyHeader:
    """Array in .npy data; `offset` is that of its first byte."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    offset: int

    @property
    def data_bytes(self) -> int:
        """Size of the array."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def by_columns(self) -> bool:
        """True if the array is in Fortran order, and that is another than C order."""
        return self.fortran and sum(count > 1 for count in self.shape) > 1


def header_of(field: Field, samples: int | None = None) -> bytes:
    """Return the .npy header of one sample of a field, or of an array of so many."""
    stream = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(np.dtype(field.dtype))
    shape = field.shape if samples is None else (samples, *field.shape)
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue()


def read_header(stream: ByteStream) -> NpyHeader:
    """Read the header at the beginning of a stream, and nothing after it; ValueError if it is damaged."""
    magic = _exactly(stream, np.lib.format.MAGIC_LEN)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's about escapes in a damaged literal, NumPy's about Python 2
        try:
            first = np.lib.format.read_magic(io.BytesIO(magic)) == (1, 0)
            size = _exactly(stream, 2 if first else 4)
            length = int.from_bytes(size, "little")
            if length > MAX_HEADER_BYTES:
                raise ValueError(f"header of {length:,} bytes, at most {MAX_HEADER_BYTES:,} are valid")
            text = io.BytesIO(size + _exactly(stream, length))
            read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(text)
        except DAMAGE as error:
            raise ValueError(f"damaged header ({reason(error)})") from error
    if len(shape) > 64 or not all(type(n) is int and 0 <= n < 1 << 62 for n in shape):
        described = ", ".join(hex(n) for n in shape[:64])  # Python refuses very long decimal numbers
        raise ValueError(f"damaged header (invalid shape {shortened(described)})")
    return NpyHeader(shape, dtype, fortran, len(magic) + len(size) + length)


def read_plain_header(start: bytes, what: str, path: Path) -> NpyHeader:
    """Return the header of the .npy data that begin with `start`.

    CorruptArtifact if the header is damaged, or of kind ``fortran-order``, ``unsupported-dtype`` or
    ``byte-order``.
    """
    with expecting(path, f"{what} as a .npy file", ValueError):
        header = read_header(io.BytesIO(start))
    if header.fortran and len(header.shape) > 1:
        raise CorruptArtifact(
            f"{what} is in Fortran order", kind="fortran-order", path=path, hint=FORTRAN_HINT
        )
    if header.dtype.hasobject or not header.dtype.isnative:
        raise CorruptArtifact(
            f"{what} has dtype {header.dtype.str}",
            kind="unsupported-dtype" if header.dtype.hasobject else "byte-order",
            path=path,
            hint="save it as a little-endian number type",
        )
    return header


def wrong_size(path: Path, header: NpyHeader, size: int, what: str = "") -> CorruptArtifact:
    """Return the error for data of another size than their header says."""
    short = size < header.data_bytes
    return CorruptArtifact(
        f"{what}{'cut off: fewer' if short else 'more'} bytes of data than its header says",
        kind="truncated" if short else "trailing-bytes",
        path=path,
        expected=f"{header.data_bytes:,}",
        found=f"{max(0, size):,}",
        hint="copy or save it again" if short else None,
    )


def _exactly(stream: ByteStream, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = stream.read(count - len(data))
        if not piece:
            raise ValueError("truncated header")
        data += piece
    return data
