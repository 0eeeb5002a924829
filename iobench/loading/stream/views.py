"""Arrays that are parts of one and the same array, which join and are found again without a copy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Index = npt.NDArray[np.int64]


def following(parts: Sequence[Index]) -> Index | None:
    """The part of an array that these, which are parts of it, follow each other in; None where they do not.

    Joined by copies, each of them lets go of the interpreter's lock, which other threads wait for.
    """
    base = parts[0].base
    if not isinstance(base, np.ndarray) or base.shape != (base.size,) or base.dtype != parts[0].dtype:
        return None
    begin = stop = (_address(parts[0]) - _address(base)) // base.itemsize
    for part in parts:
        follows = part.base is base and _address(part) == _address(base) + stop * base.itemsize
        if not follows or part.strides != base.strides:
            return None
        stop += len(part)
    return base[begin:stop]


def begin_in(whole: Index, part: Index) -> int | None:
    """Where a part of `whole` begins in it; None where it is not in one piece of it."""
    if part.base is None or part.base is not whole.base or part.strides != whole.strides:
        return None
    begin, rest = divmod(_address(part) - _address(whole), whole.itemsize)
    return begin if not rest and 0 <= begin <= len(whole) - len(part) else None


def _address(array: Index) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
