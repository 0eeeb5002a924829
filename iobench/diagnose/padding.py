"""How much of the sequences in some batches is padding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

MOST_BYTES = 64 << 20  # of batches that are looked at
SHORTEST = 8  # of a sequence: in fewer nobody pads
WITHIN = 0.05  # of the rest, that may look like padding and be none


def padding_of(batches: Iterable[Sequence[Any]]) -> float | None:
    """The part of the largest field of sequences that is padding, over some batches' tensors.

    A sequence is padded where its end repeats one value, the same for the whole batch, which hardly occurs
    before that, and where sequences end in different places. None where no field looks like that.
    """
    found = [one for tensors in batches for tensor in tensors if (one := _of(tensor)) is not None]
    if not found:
        return None
    whole = sum(size for _, size in found)
    return sum(padded for padded, _ in found) / whole


def _of(tensor: Any) -> tuple[int, int] | None:
    """Padded places and all places of one tensor; None where it holds no padded sequences."""
    if tensor.ndim not in (2, 3) or tensor.shape[0] < 2 or tensor.shape[1] < SHORTEST:
        return None
    values: npt.NDArray[Any] = np.asarray(tensor.cpu() if hasattr(tensor, "cpu") else tensor)
    same = values == values[:, -1:]
    padded = same if values.ndim == 2 else same.all(axis=2)
    lengths = values.shape[1] - np.argmin(padded[:, ::-1], axis=1)  # where the repeated end begins
    lengths = np.where(padded.all(axis=1), 0, lengths)
    short = lengths < values.shape[1] - 1
    if not short.any() or len(np.unique(lengths)) < 2:
        return None
    pad = values[np.argmax(short), -1]
    if (values[short, -1] != pad).any():
        return None
    inside = np.arange(values.shape[1]) < lengths[:, None]
    alike = values == pad if values.ndim == 2 else (values == pad).all(axis=2)
    if (alike & inside).sum() > WITHIN * max(1, inside.sum()):
        return None
    rows = np.where(short, values.shape[1] - lengths, 0)
    return int(rows.sum()), int(values.shape[0] * values.shape[1])
