"""Arrays that are parts of one and the same array, which join and are found again without a copy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Index = npt.NDArray[np.int64]


def joined_view(parts: Sequence[Index]) -> Index | None:
    """The part of an array that these, which are parts of it, follow each other in; None where they do not.

    Joined by copies, each of them lets go of the interpreter's lock, which other threads wait for.
    """
    rest, stop = base_from(parts[0]), 0
    if rest is None:
        return None
    for part in parts:
        if offset_in(rest, part) != stop:
            return None
        stop += len(part)
    return rest[:stop]


def base_from(part: Index) -> Index | None:
    """The array that this is a part of, from there on; None where it is not in one piece of one."""
    base = part.base
    if not isinstance(base, np.ndarray) or base.shape != (base.size,) or base.dtype != part.dtype:
        return None
    begin = offset_in(base[:], part)
    return None if begin is None else base[begin:]


def offset_in(whole: Index, part: Index) -> int | None:
    """Where a part of `whole` begins in it; None where it is not in one piece of it."""
    if part.base is None or part.base is not whole.base or part.strides != whole.strides:
        return None
    begin, rest = divmod(_address(part) - _address(whole), whole.itemsize)
    return begin if not rest and 0 <= begin <= len(whole) - len(part) else None


def _address(array: Index) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
