"""Plan to scatter requested rows, sorted by position, from read bytes into a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from iobench.formats._placement import Index
from iobench.formats._schema import Array, raw_bytes

FEW = 4  # up to this number, rows are copied one by one


class Positions(Protocol):
    """Positions of rows in an address space, and the bytes of a sample by field."""

    widths: dict[str, int]

    def positions(self, name: str, rows: Index) -> Index:
        """Return the position of each row of a field."""


@dataclass(frozen=True)
class ScatterPlan:
    """Requested rows of some fields, sorted by position.

    Attributes
    ----------
    starts, ends : int64 array
        Positions of each row in the address space.
    fields : int64 array
        Index of each row's field.
    slots : int64 array
        Index of each row in its batch.
    targets : list of arrays
        Memory of each field, one void item per row.
    """

    starts: Index
    ends: Index
    fields: Index
    slots: Index
    targets: list[Array]

    @classmethod
    def of(cls, addresses: Positions, rows: Index, out: Mapping[str, Array]) -> ScatterPlan:
        """Plan these rows of all fields of `out`."""
        positions = [addresses.positions(name, rows) for name in out]
        starts = np.concatenate(positions) if len(positions) > 1 else positions[0]
        widths = [addresses.widths[name] for name in out]
        order = sorted_by(starts)
        fields, slots = np.divmod(order, len(rows))
        starts = starts[order]
        targets = [
            np.frombuffer(raw_bytes(target), np.dtype((np.void, width)))
            for target, width in zip(out.values(), widths, strict=True)
        ]
        return cls(starts, starts + np.array(widths)[fields], fields, slots, targets)

    def part(self, low: int, high: int) -> ScatterPlan:
        """Return the plan of the rows `low` to `high` - 1."""
        if (low, high) == (0, len(self.starts)):
            return self
        some = slice(low, high)
        return ScatterPlan(
            self.starts[some], self.ends[some], self.fields[some], self.slots[some], self.targets
        )

    def take(self, low: int, high: int, got: Array, position: int) -> None:
        """Copy the rows `low` to `high` - 1 from bytes that begin at a position."""
        if len(self.targets) == 1:
            self._take(0, slice(low, high), got, position)
            return
        for number in range(len(self.targets)):
            chosen = low + np.flatnonzero(self.fields[low:high] == number)
            if len(chosen):
                self._take(number, chosen, got, position)

    def _take(self, field: int, chosen: slice | Index, got: Array, position: int) -> None:
        into, slots = self.targets[field], self.slots[chosen]
        row, at = into.dtype, self.starts[chosen] - position
        width = row.itemsize
        if len(at) <= FEW:
            for slot, begin in zip(slots.tolist(), at.tolist(), strict=True):
                into[slot : slot + 1] = np.frombuffer(got, row, 1, begin)  # `into[slot] =` would copy twice
        elif int(at[-1]) - int(at[0]) == (len(at) - 1) * width and (np.diff(at) == width).all():
            into[slots] = np.frombuffer(got, row, len(at), int(at[0]))
        else:  # rows begin at any byte
            every: Array = np.ndarray((len(got) - width + 1,), row, got, strides=(1,))
            into[slots] = every[at]


def sorted_by(rows: Index) -> Index:
    """Return the stable argsort of rows, by digits of 16 bits: five times as fast as NumPy's of int64."""
    order = np.arange(len(rows))
    for shift in range(0, max(1, int(rows.max()).bit_length()), 16):
        digit = (rows >> shift & 0xFFFF).astype(np.uint16)
        order = order[np.argsort(digit[order], kind="stable")]
    return order
