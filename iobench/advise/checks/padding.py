"""Share of padding in batches of sequences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

MOST_BYTES = 64 << 20  # of batches that are examined
MIN_LENGTH = 8  # of a sequence: shorter ones are not padded in practice
INSIDE = 0.05  # of the rest, that may equal the padding value


def padding_of(batches: Iterable[Sequence[Any]]) -> float | None:
    """Return the share of padding in the padded fields of some batches; None if no field is padded.

    A field is padded if its sequences end in a run of one value, the same for the whole batch, if that value
    hardly occurs before, and if the sequences end at different positions.
    """
    counts = [one for tensors in batches for tensor in tensors if (one := _padded(tensor)) is not None]
    if not counts:
        return None
    return sum(padded for padded, _ in counts) / sum(size for _, size in counts)


def _padded(tensor: Any) -> tuple[int, int] | None:
    """Return the padded and all positions of one tensor; None if it holds no padded sequences."""
    if tensor.ndim not in (2, 3) or tensor.shape[0] < 2 or tensor.shape[1] < MIN_LENGTH:
        return None
    values: npt.NDArray[Any] = np.asarray(tensor.cpu() if hasattr(tensor, "cpu") else tensor)
    same = values == values[:, -1:]
    padded = same if values.ndim == 2 else same.all(axis=2)
    lengths = values.shape[1] - np.argmin(padded[:, ::-1], axis=1)  # where the run at the end begins
    lengths = np.where(padded.all(axis=1), 0, lengths)
    short = lengths < values.shape[1] - 1
    if not short.any() or len(np.unique(lengths)) < 2:
        return None
    pad = values[np.argmax(short), -1]
    if (values[short, -1] != pad).any():
        return None
    inside = np.arange(values.shape[1]) < lengths[:, None]
    alike = values == pad if values.ndim == 2 else (values == pad).all(axis=2)
    if (alike & inside).sum() > INSIDE * max(1, inside.sum()):
        return None
    rows = np.where(short, values.shape[1] - lengths, 0)
    return int(rows.sum()), int(values.shape[0] * values.shape[1])
