"""Header of a .npy file, read from an untrusted stream."""

from __future__ import annotations

import io
import math
import warnings
from dataclasses import dataclass
from tokenize import TokenError
from typing import Any, Protocol

import numpy as np

from iobench.base.text import reason, shortened

MAX_HEADER_BYTES = 10_000  # NumPy's own limit, which it checks only after reading everything
# A header is a Python literal, and parsing a damaged one raises any of these.
_DAMAGE = (
    ValueError,
    SyntaxError,
    TypeError,
    OverflowError,
    TokenError,
    RecursionError,
    MemoryError,
    KeyError,
)


class ByteStream(Protocol):
    """Stream that a header is read from."""

    def read(self, size: int, /) -> bytes:
        """Read at most `size` bytes; none at the end."""


@dataclass(frozen=True)
class NpyHeader:
    """Array in a .npy file; `offset` is that of its first byte of data."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    offset: int

    @property
    def data_bytes(self) -> int:
        """Size of the array."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(stream: ByteStream) -> NpyHeader:
    """Read the header at the beginning of a stream, and nothing after it.

    Raises ValueError if there is none, or it describes no valid array.
    """
    magic = _exactly(stream, np.lib.format.MAGIC_LEN)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's about escapes in a damaged literal, NumPy's about Python 2
        try:
            version = np.lib.format.read_magic(io.BytesIO(magic))
            size_bytes = 2 if version == (1, 0) else 4
            size = _exactly(stream, size_bytes)
            length = int.from_bytes(size, "little")
            if length > MAX_HEADER_BYTES:
                raise ValueError(f"header of {length:,} bytes, at most {MAX_HEADER_BYTES:,} are valid")
            text = io.BytesIO(size + _exactly(stream, length))
            read = (
                np.lib.format.read_array_header_1_0
                if size_bytes == 2
                else np.lib.format.read_array_header_2_0
            )
            shape, fortran, dtype = read(text)
        except _DAMAGE as error:
            raise ValueError(f"damaged header ({reason(error)})") from error
    if len(shape) > 64 or not all(type(n) is int and 0 <= n < 1 << 62 for n in shape):
        described = ", ".join(hex(n) for n in shape[:64])  # Python refuses very long decimal numbers
        raise ValueError(f"damaged header (invalid shape {shortened(described)})")
    return NpyHeader(shape, dtype, fortran, len(magic) + size_bytes + length)


def _exactly(stream: ByteStream, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = stream.read(count - len(data))
        if not piece:
            raise ValueError("truncated header")
        data += piece
    return data
