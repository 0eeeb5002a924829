"""Gather samples of different lengths from memory into one contiguous piece."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.formats import offsets_of
from iobench.stream.addresses import Index

Bytes = npt.NDArray[np.uint8]

LONG_BYTES = 8 << 10  # mean length from which a copy per sample is faster
LEAST_BLOCK, MOST_BLOCK = 16, 512
BLOCKS = 3  # per sample of mean length: fewer would copy more bytes for nothing, more cost more look-ups


def gather_spans(memory: Bytes, begins: Index, lengths: Index, out: Bytes) -> None:
    """Copy samples of `memory` to `out`, one after the other.

    Short samples are copied in blocks of one size by two NumPy calls for all samples, which release the GIL:
    twice as fast as a slice per sample. The last block of a sample reaches into the next one, which is copied
    after it. Blocks that would leave `memory` or `out` are copied one by one to their sample's end.

    Parameters
    ----------
    memory : uint8 array
        Holds every sample.
    begins, lengths : int64 array
        First byte of each sample in `memory`, and its bytes.
    out : uint8 array
        As long as the samples together.
    """
    count = int((lengths > 0).sum())
    if not count:
        return
    mean = len(out) // count
    if mean >= LONG_BYTES:
        _copy_each(memory, begins, lengths, out, offsets_of(lengths))
        return
    block = min(MOST_BLOCK, max(LEAST_BLOCK, 1 << (mean // BLOCKS).bit_length()))
    sources, targets, left = _blocks(begins, lengths, block)
    inside = (sources + block <= len(memory)) & (targets + block <= len(out))
    if inside.any():
        _every(out, block)[targets[inside]] = _every(memory, block)[sources[inside]]
    edge = np.flatnonzero(~inside)
    if len(edge):
        _copy_each(memory, sources[edge], np.minimum(left[edge], block), out, targets[edge])


def _blocks(begins: Index, lengths: Index, block: int) -> tuple[Index, Index, Index]:
    """Return where each block begins in memory and in the output, and the sample's bytes from there on."""
    per_sample = -(-lengths // block)
    within = np.arange(int(per_sample.sum())) - np.repeat(np.cumsum(per_sample) - per_sample, per_sample)
    within *= block
    firsts = offsets_of(lengths)[:-1]
    return (
        np.repeat(begins, per_sample) + within,
        np.repeat(firsts, per_sample) + within,
        np.repeat(lengths, per_sample) - within,
    )


def _every(array: Bytes, block: int) -> npt.NDArray[Any]:
    """Return a view whose item i is the block that begins at byte i; the items overlap."""
    row, count = np.dtype((np.void, block)), len(array) - block + 1
    every: npt.NDArray[Any] = np.ndarray((count,), row, array, strides=(1,))
    return every


def _copy_each(memory: Bytes, begins: Index, lengths: Index, out: Bytes, targets: Index) -> None:
    for begin, length, target in zip(begins.tolist(), lengths.tolist(), targets.tolist(), strict=False):
        out[target : target + length] = memory[begin : begin + length]
