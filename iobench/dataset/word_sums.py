"""Weighted sums of the 64-bit words of samples, modulo 2^64: the linear part of `iobench.dataset.checksum`.

The bytes of each sample, padded with zeros, are words w_j. Its sum is Σ_j (w_j ^ w_j >>> 31) · m_j, where m_j
are odd pseudo-random weights. Changes of the top bits of two words would cancel each other: the shift makes
them changes of lower bits. It is odd, so that equal changes of both halves of a word, such as two signs, do
not cancel each other in it.

Arrays are summed in pieces that fit into the processor's cache, tensors in one pass on their device, which is
not waited for.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from iobench.formats import Index, offsets_of

if TYPE_CHECKING:
    import torch

PIECE_BYTES = 1 << 18  # summed at a time on the CPU
LONG = 64  # bytes of a sample, and weights: more are copied faster by slices than one by one
DEVICE_PIECE_WORDS = 1 << 20  # summed at a time on a device: large for its sake, and small for its memory
SHIFT = 31


def signed(value: int) -> int:
    """Return an unsigned 64-bit number as the int64 of the same bits."""
    return value - (1 << 64) if value >> 63 else value


GOLDEN = signed(0x9E3779B97F4A7C15)
_MIX = (signed(0xBF58476D1CE4E5B9), signed(0x94D049BB133111EB))


def mix(value: Any) -> Any:
    """Return int64 values mixed by the finalizer of SplitMix64."""
    value = (value ^ _shifted(value, 30)) * _MIX[0]
    value = (value ^ _shifted(value, 27)) * _MIX[1]
    return value ^ _shifted(value, 31)


def weights(count: int) -> Index:
    """Return the odd weights of the first words of a sample."""
    return _table(max(0, count - 1).bit_length())[:count]


def fixed_sums(samples: Any, own: Any) -> Any:
    """Return the sum of each sample of an array or tensor of shape ``(samples, …)``, by its `own` weights."""
    words = _words(samples)
    if not isinstance(words, np.ndarray):
        return (_folded(words) * own).sum(1)  # CUDA has no integer matrix product
    sums = np.empty(len(words), np.int64)
    step = max(1, PIECE_BYTES // (8 * words.shape[1]))
    for low in range(0, len(words), step):
        np.matmul(_folded(words[low : low + step]), own, out=sums[low : low + step])
    return sums


def ragged_sums(values: Any, edges: Any) -> Any:
    """Return the sum of each sample; its bytes in `values` are those from one of `edges` to the next."""
    if isinstance(values, np.ndarray):
        return _array_sums(np.ascontiguousarray(values).reshape(-1).view(np.uint8), edges)
    import torch

    return device_sums(values.contiguous().reshape(-1).view(torch.uint8), edges)


@cache  # all together are twice the largest
def _table(bits: int) -> Index:
    table: Index = mix(np.arange(1, (1 << bits) + 1) * GOLDEN) | 1
    return table


def _shifted(value: Any, bits: int) -> Any:
    """Shift int64 right logically; torch only shifts arithmetically."""
    if isinstance(value, np.ndarray):
        return (value.view(np.uint64) >> bits).view(np.int64)
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _folded(words: Any) -> Any:
    return words ^ _shifted(words, SHIFT)


def _words(array: Any) -> Any:
    """Return each sample's bytes as int64 of shape ``(samples, words)``, padded with zeros to whole words."""
    count = array.shape[0]
    if isinstance(array, np.ndarray):
        flat = np.ascontiguousarray(array).reshape(count, -1).view(np.uint8)
        if flat.shape[1] % 8:
            padded = np.zeros((count, (flat.shape[1] + 7) // 8 * 8), np.uint8)  # np.pad takes longer
            padded[:, : flat.shape[1]] = flat
            flat = padded
        return flat.view(np.int64)
    import torch

    flat_t = array.contiguous().reshape(count, -1).view(torch.uint8)
    if flat_t.shape[1] % 8:
        flat_t = torch.nn.functional.pad(flat_t, (0, -flat_t.shape[1] % 8))
    elif flat_t.storage_offset() % 8:
        flat_t = flat_t.clone()
    return flat_t.view(torch.int64)


def _array_sums(values: npt.NDArray[np.uint8], edges: Index) -> Index:
    """Return the sum of each sample, in parts of at most PIECE_BYTES."""
    sums = np.zeros(len(edges) - 1, np.int64)
    filled = np.flatnonzero(edges[1:] > edges[:-1])
    if not filled.size:
        return sums
    begins, ends = edges[filled], edges[filled + 1]
    parts = -(-(ends - begins) // PIECE_BYTES)  # of each sample
    first = np.cumsum(parts) - parts
    before = PIECE_BYTES * (np.arange(parts.sum()) - np.repeat(first, parts))  # bytes of the sample
    begins = np.repeat(begins, parts) + before
    ends = np.minimum(begins + PIECE_BYTES, np.repeat(ends, parts))
    own = [*_part_sums(values, begins, ends, before // 8)]
    sums[filled] = np.add.reduceat(np.concatenate(own), first)
    return sums


def _part_sums(values: npt.NDArray[np.uint8], begins: Index, ends: Index, before: Index) -> Iterator[Index]:
    """Yield the sums of parts of samples, which `before` words precede, of as many as a piece holds."""
    counts = (ends - begins + 7) // 8
    places, low = offsets_of(counts), 0
    while low < len(begins):
        high = max(low + 1, int(np.searchsorted(places, places[low] + PIECE_BYTES // 8, "right")) - 1)
        some = slice(low, high)
        words = _joined(values[begins[low] : ends[high - 1]], (ends - begins)[some])
        yield np.add.reduceat(_folded(words) * _own(before[some], counts[some]), places[some] - places[low])
        low = high


def _joined(memory: npt.NDArray[np.uint8], lengths: Index) -> Index:
    """Return the words of samples of these lengths in bytes, which lie end to end in a memory."""
    if not (lengths % 8).any():
        return memory.view(np.int64)
    edges = offsets_of(lengths)
    if len(memory) < LONG * len(lengths):
        places = offsets_of((lengths + 7) // 8 * 8)
        padded = np.zeros(places[-1], np.uint8)
        padded[np.arange(len(memory)) + np.repeat(places[:-1] - edges[:-1], lengths)] = memory
        return padded.view(np.int64)
    together = memory.tobytes()
    parts = [together[a:b].ljust((b - a + 7) // 8 * 8, b"\0") for a, b in pairwise(edges.tolist())]
    return np.frombuffer(b"".join(parts), np.int64)


def _own(before: Index, counts: Index) -> Index:
    """Return the weights of so many words of each sample, of which others come before."""
    table, total = weights(int((before + counts).max())), int(counts.sum())
    if total > LONG * len(counts):
        return np.concatenate(
            [table[a:b] for a, b in zip(before.tolist(), (before + counts).tolist(), strict=True)]
        )
    return np.asarray(table[np.arange(total) + np.repeat(before - counts.cumsum() + counts, counts)])


def device_sums(values: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    """Return the sum of each sample, whose bytes lie between `edges`, on the device of the tensors.

    The number of words is known on the device only: the host assumes the most that there can be.
    """
    import torch

    pad = torch.nn.functional.pad
    samples, size = len(edges) - 1, len(values)
    memory = pad(values, (0, 16 - size % 8)).view(torch.int64)
    # the last sample, of no bytes, has the words that there are not
    ends = torch.cat((edges[1:], edges[-1:]))
    places = pad((edges.diff() + 7 >> 3).cumsum(0), (1, 0))
    sums, most = torch.zeros_like(places[1:]), size // 8 + samples
    step, numbers = max(DEVICE_PIECE_WORDS, samples), torch.ones_like(places).cumsum(0) - 1
    for low in range(0, most, step):
        high = min(low + step, most)
        cuts = places.clamp(low, high)
        counts = torch.cat((cuts.diff(), high - cuts[-1:]))
        # with the size, the host does not wait for the device
        sample = torch.repeat_interleave(numbers, counts, output_size=high - low)
        position = torch.ones_like(sample).cumsum(0) + (low - 1) - places[sample]
        at = edges[sample] + 8 * position
        words = _loaded(memory, at.clamp(max=size)) & ~_top(8 - (ends[sample] - at).clamp(0, 8))
        products = _folded(words) * (mix((position + 1) * GOLDEN) | 1)
        totals = pad(products.cumsum(0), (1, 0))
        sums = sums + totals[cuts[1:] - low] - totals[cuts[:-1] - low]
    return sums


def _loaded(memory: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Return the words that begin at these bytes of a memory of words."""
    word, byte = at >> 3, at & 7
    upper = (memory[word + 1] << 4 * (8 - byte)) << 4 * (8 - byte)
    return (memory[word] >> 8 * byte) & ~_top(byte) | upper


def _top(count: torch.Tensor) -> torch.Tensor:
    """Return words whose `count` upper bytes are of ones; a shift by 64 bits is undefined."""
    import torch

    half = 4 * (8 - count)
    return (torch.full_like(count, -1) << half) << half
