"""Views of one array: join adjacent views and locate a view without a copy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Index = npt.NDArray[np.int64]


def joined_view(parts: Sequence[Index]) -> Index | None:
    """Return the view that consists of these adjacent views, or None if they are not adjacent.

    Without copies: each copy would release the GIL, for which other threads wait.
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
    """Return the base of a contiguous view, from the view's start on; None for any other array."""
    base = part.base
    if not isinstance(base, np.ndarray) or base.shape != (base.size,) or base.dtype != part.dtype:
        return None
    begin = offset_in(base[:], part)
    return None if begin is None else base[begin:]


def offset_in(whole: Index, part: Index) -> int | None:
    """Return the offset, in elements, of a contiguous view in `whole`; None if it is not one."""
    if part.base is None or part.base is not whole.base or part.strides != whole.strides:
        return None
    begin, rest = divmod(_address(part) - _address(whole), whole.itemsize)
    return begin if not rest and 0 <= begin <= len(whole) - len(part) else None


def _address(array: Index) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
