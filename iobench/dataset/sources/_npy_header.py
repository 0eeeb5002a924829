"""The header of a .npy file, read from a stream that may hold anything."""

from __future__ import annotations

import io
import math
import warnings
from dataclasses import dataclass
from tokenize import TokenError
from typing import Any, Protocol

import numpy as np

from iobench.base.text import reason, shortened

MAX_HEADER_BYTES = 10_000  # NumPy's own limit, which it checks only after having read all of it
# A header is Python source, and a damaged one fails in any way that source can.
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


class Stream(Protocol):
    """What a header is read from."""

    def read(self, size: int, /) -> bytes:
        """At most so many bytes, none at the end."""


@dataclass(frozen=True)
class Header:
    """What a .npy file says of its array; `offset` is that of the first byte of data."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    offset: int

    @property
    def data_bytes(self) -> int:
        """The bytes that the array takes."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(stream: Stream) -> Header:
    """The header at the beginning of a stream, of which no more than the header is read.

    ValueError, in words, where there is none, or it promises what no array can be.
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
                raise ValueError(
                    f"its header would have {length:,} bytes; NumPy's have below {MAX_HEADER_BYTES:,}"
                )
            text = io.BytesIO(size + _exactly(stream, length))
            read = (
                np.lib.format.read_array_header_1_0
                if size_bytes == 2
                else np.lib.format.read_array_header_2_0
            )
            shape, fortran, dtype = read(text)
        except _DAMAGE as error:
            raise ValueError(f"its header is damaged: {reason(error)}") from error
    if len(shape) > 64 or not all(type(n) is int and 0 <= n < 1 << 62 for n in shape):
        described = ", ".join(hex(n) for n in shape[:64])  # decimal is refused for very long numbers
        raise ValueError(f"its header is damaged: ({shortened(described)}) is no shape")
    return Header(shape, dtype, fortran, len(magic) + size_bytes + length)


def _exactly(stream: Stream, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = stream.read(count - len(data))
        if not piece:
            raise ValueError("it ends before its header does")
        data += piece
    return data
