"""The header of a .npy file, read from memory: nothing in it is run or unpickled."""

from __future__ import annotations

import io
from pathlib import Path
from tokenize import TokenError

import numpy as np

from iobench.base.errors import (
    CorruptArtifact,
    corrupt,
)
from iobench.base.text import reason
from iobench.formats._schema import Field

LONGEST = 10_000 + 12  # NumPy refuses longer headers, too
# The header is Python source, and a damaged one fails in any way that source can.
DAMAGE = (
    *(OSError, ValueError, SyntaxError, TypeError, OverflowError, TokenError, KeyError),
    *(RecursionError, MemoryError),
)


def header_of(field: Field) -> bytes:
    """The header of one sample of a field."""
    made = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(np.dtype(field.dtype))
    np.lib.format.write_array_header_1_0(made, {"descr": descr, "fortran_order": False, "shape": field.shape})
    return made.getvalue()


def read_header(start: bytes, what: str, path: Path) -> tuple[int, tuple[int, ...], np.dtype[np.generic]]:
    """Bytes of the header, shape and dtype; CorruptArtifact where it is damaged or says Fortran order."""
    stream = io.BytesIO(start)
    try:
        version = np.lib.format.read_magic(stream)
        read = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = read(stream)
    except DAMAGE as error:
        raise corrupt(path, f"{what} as a .npy file", reason(error)) from error
    if fortran and len(shape) > 1:
        raise CorruptArtifact(f"{path}: {what} is in Fortran order; save it as np.ascontiguousarray")
    if dtype.hasobject or not dtype.isnative:
        raise CorruptArtifact(
            f"{path}: {what} is of dtype {dtype.str}; save it as a little-endian number type"
        )
    return stream.tell(), shape, dtype
