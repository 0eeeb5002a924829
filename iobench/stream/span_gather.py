"""Gather samples of different lengths from memory into one contiguous piece."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.formats import Index, offsets_of
from iobench.host.memory import Bytes

LONG_BYTES = 8 << 10  # from this mean length on, one copy of a sample costs less than two of its blocks
LEAST_BLOCK, MOST_BLOCK = 16, 512
BLOCKS = 4  # per sample of mean length: fewer would copy more bytes for nothing, more cost more look-ups
STEP_BYTES = (
    1 << 20
)  # copied by one call: small enough for the cache, and more than the 500 items up to which
# NumPy holds the GIL


def gather_spans(memory: Bytes, begins: Index, lengths: Index, out: Bytes) -> None:
    """Copy samples of `memory` to `out`, one after the other.

    They are copied in blocks of one size by few NumPy calls, which release the GIL: twice as fast as a slice
    per sample of 1 KB. The last block of a sample reaches into the next sample, which is copied after it.
    Samples whose last block would leave `memory` or `out` are copied one by one, and so are all if most are
    long: some in blocks and some one by one would take longer than either.

    Parameters
    ----------
    memory : uint8 array
        Holds every sample.
    begins, lengths : int64 array
        First byte of each sample in `memory`, and its bytes.
    out : uint8 array
        As long as the samples together.
    """
    mean, targets = len(out) // max(1, len(lengths)), offsets_of(lengths)[:-1]
    block = min(MOST_BLOCK, max(LEAST_BLOCK, 1 << (mean // BLOCKS).bit_length()))
    counts = -(-lengths // block)
    fits = (begins + counts * block <= len(memory)) & (targets + counts * block <= len(out))
    by_block = fits & (lengths > 0) & (mean < LONG_BYTES)
    if by_block.any():
        some = np.flatnonzero(by_block)
        _copy_blocks(memory, begins[some], out, targets[some], counts[some], block)
    alone = [ends[~by_block].tolist() for ends in (begins, targets, lengths)]
    for begin, target, length in zip(*alone, strict=True):  # after the blocks, whose last may reach into them
        out[target : target + length] = memory[begin : begin + length]


def _copy_blocks(memory: Bytes, begins: Index, out: Bytes, targets: Index, counts: Index, block: int) -> None:
    """Copy `counts` blocks of each sample; NumPy copies them in this order."""
    into_bytes = np.arange(int(counts.sum())) * block
    into_bytes += np.repeat(targets - (np.cumsum(counts) - counts) * block, counts)
    from_bytes = into_bytes + np.repeat(begins - targets, counts)
    into, found, step = _every(out, block), _every(memory, block), STEP_BYTES // block
    for low in range(0, len(into_bytes), step):
        into[into_bytes[low : low + step]] = found[from_bytes[low : low + step]]


def _every(array: Bytes, block: int) -> npt.NDArray[Any]:
    """Return a view whose item i is the block that begins at byte i; the items overlap."""
    row, count = np.dtype((np.void, block)), len(array) - block + 1
    every: npt.NDArray[Any] = np.ndarray((count,), row, array, strides=(1,))
    return every
