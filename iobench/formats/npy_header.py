"""Parser of .npy headers in memory; nothing in them is executed or unpickled."""

from __future__ import annotations

import io
from pathlib import Path
from tokenize import TokenError

import numpy as np

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.base.text import reason
from iobench.formats._schema import Field

LONGEST = 10_000 + 12  # NumPy refuses longer headers as well
FORTRAN_HINT = "save np.ascontiguousarray(a, a.dtype.newbyteorder('='))"
# The header is Python source; a damaged one fails in any way that source can.
DAMAGE = (
    *(OSError, ValueError, SyntaxError, TypeError, OverflowError, TokenError, KeyError),
    *(RecursionError, MemoryError),
)


def header_of(field: Field) -> bytes:
    """Return the .npy header of one sample of a field."""
    stream = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(np.dtype(field.dtype))
    header = {"descr": descr, "fortran_order": False, "shape": field.shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue()


def read_header(start: bytes, what: str, path: Path) -> tuple[int, tuple[int, ...], np.dtype[np.generic]]:
    """Return header size in bytes, shape and dtype of the .npy data that begin with `start`.

    Raises
    ------
    CorruptArtifact
        The header is damaged, or kind ``fortran-order``, ``unsupported-dtype`` or ``byte-order``.
    """
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
        raise CorruptArtifact(
            f"{what} is in Fortran order", kind="fortran-order", path=path, hint=FORTRAN_HINT
        )
    if dtype.hasobject or not dtype.isnative:
        raise CorruptArtifact(
            f"{what} has dtype {dtype.str}",
            kind="unsupported-dtype" if dtype.hasobject else "byte-order",
            path=path,
            hint="save it as a little-endian number type",
        )
    return stream.tell(), shape, dtype
