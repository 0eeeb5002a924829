"""Content checksums: the sum modulo 2^64 of one 64-bit hash per sample over all its fields.

The bytes of a sample are 64-bit words w_j; each field is padded with zeros to whole words. The sample's hash
is mix(Σ_j (w_j ^ w_j >>> 32) · m_j) with odd pseudo-random m_j, where mix is the finalizer of SplitMix64
(Steele, Lea, Flood 2014). The sum of the hashes does not depend on the order of the samples. The non-linear
mix ties the fields of a sample together: a label that moves to another sample changes the sum. `ordered`
also mixes in each row number, which detects swapped samples.

A field whose samples differ in length adds mix(f · Σ_p (v_p ^ v_p >>> 32) · m_p + (length + f) · m) to the
outer sum: v_p is the scalar at position p of the sample, sign-extended, m_p an odd weight, f the field's own.

The same arithmetic runs on NumPy arrays and on torch tensors on any device, since int64 wraps in both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.formats import Ragged, Schema

MASK = (1 << 64) - 1
PIECE_BYTES = 1 << 18  # hashed at a time: fits into the processor's cache


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


_MIX = (_signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB))
_GOLDEN = _signed(0x9E3779B97F4A7C15)
_LENGTH = _signed(0xD1B54A32D192ED03)  # of the R2 sequence: independent of the golden section


class Checksum:
    """Running content checksum of batches of NumPy arrays or torch tensors, in any order."""

    def __init__(self, schema: Schema) -> None:
        self._fields = [field.name for field in schema.fields]
        fixed = (field for field in schema.fields if not field.is_ragged)
        self._weights = _weights(sum(_word_count(field.sample_bytes) for field in fixed))
        self._on_device: dict[Any, Any] = {}  # the weights, copied to each device once
        self._content: Any = 0
        self._ordered: Any = 0
        self.samples = 0

    @property
    def content(self) -> int:
        """Sum of the hashes so far, as an unsigned 64-bit number."""
        return int(self._content) & MASK

    @property
    def ordered(self) -> int:
        """Sum of the hashes mixed with row numbers, over the samples added with their rows."""
        return int(self._ordered) & MASK

    def add(self, batch: Mapping[str, Any], rows: npt.NDArray[np.int64] | None = None) -> None:
        """Add every sample of a batch, on the device where its arrays are.

        `rows`, int64 of shape ``(samples,)``, are their rows in the dataset, if known.
        """
        self.add_hashes(self.hashes(batch), rows)

    def add_in_order(self, batch: Mapping[str, npt.NDArray[Any]]) -> None:
        """Add every sample of a NumPy batch that follows the previous one in the dataset."""
        hashes = self.hashes(batch)
        self.add_hashes(hashes, np.arange(self.samples, self.samples + len(hashes), dtype=np.int64))

    def add_hashes(self, hashes: Any, rows: npt.NDArray[np.int64] | None = None) -> None:
        """Add samples by their hashes, with their rows in the dataset if known."""
        self.samples += len(hashes)
        self._content = self._content + _plain(hashes.sum())
        if rows is not None:
            self._ordered = self._ordered + _plain(_mix(hashes ^ _like(rows + 1, hashes) * _GOLDEN).sum())

    def hashes(self, batch: Mapping[str, Any]) -> Any:
        """Return the int64 hash of each sample, as an array or tensor on the batch's device."""
        total: Any = 0
        first = 0
        for number, name in enumerate(self._fields):
            if isinstance(batch[name], Ragged):
                total = total + _ragged_hashes(batch[name], number)
                continue
            words = _words(batch[name])
            part = slice(first, first + words.shape[1])
            first = part.stop
            if isinstance(words, np.ndarray):
                total = total + _dot_numpy(words, self._weights[part])
            else:
                total = total + _dot_torch(words, self._weights_on(words.device)[part])
        return _mix(total)

    def _weights_on(self, device: Any) -> Any:
        """Return the weights on a device; a copy per batch from pageable memory would stall it."""
        import torch

        if device not in self._on_device:
            self._on_device[device] = torch.from_numpy(self._weights).to(device)
        return self._on_device[device]


def _plain(total: Any) -> Any:
    return int(total) if isinstance(total, np.integer) else total


def _like(rows: npt.NDArray[np.int64], hashes: Any) -> Any:
    """Return the rows on the device of the hashes."""
    if isinstance(hashes, np.ndarray):
        return rows
    import torch

    return torch.from_numpy(rows).to(hashes.device)


def _word_count(sample_bytes: int) -> int:
    return -(-sample_bytes // 8)


@lru_cache(maxsize=4)
def _weights(count: int) -> npt.NDArray[np.int64]:
    generator = np.random.Generator(np.random.PCG64(count))
    return generator.integers(-(1 << 63), 1 << 63, count, dtype=np.int64) | 1


def _mix(value: Any) -> Any:
    value = (value ^ _shifted(value, 30)) * _MIX[0]
    value = (value ^ _shifted(value, 27)) * _MIX[1]
    return value ^ _shifted(value, 31)


def _shifted(value: Any, bits: int) -> Any:
    """Shift int64 right logically; NumPy and torch only shift arithmetically."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _words(array: Any) -> Any:
    """Return each sample's bytes as int64 of shape ``(samples, words)``, padded with zeros to whole words."""
    count = array.shape[0]
    if isinstance(array, np.ndarray):
        flat = np.ascontiguousarray(array).reshape(count, -1).view(np.uint8)
        if flat.shape[1] % 8:
            padded = np.zeros((count, 8 * _word_count(flat.shape[1])), np.uint8)
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


def _ragged_hashes(field: Ragged, number: int) -> Any:
    """Return the hash of each sample of a ragged field, on its device.

    `number` is the position of the field in the schema.
    """
    values, size = field.values, min(8, field.dtype.itemsize)  # scalars of 16 bytes are two words
    edges = field.offsets * (math.prod(values.shape[1:]) * values.dtype.itemsize // size)
    if isinstance(values, np.ndarray):
        sums = _sums_numpy(np.ascontiguousarray(values).reshape(-1).view(f"i{size}"), edges)
    else:
        import torch

        sums = _sums_torch(values.contiguous().reshape(-1).view(getattr(torch, f"int{8 * size}")), edges)
    return _mix(sums * (2 * number + 1) + (edges[1:] - edges[:-1] + number) * _LENGTH)


def _sums_numpy(words: npt.NDArray[Any], edges: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the weighted sum of each sample's words, in pieces that fit into the processor's cache."""
    lengths = np.diff(edges)
    sums, weights = np.zeros_like(lengths), _position_weights(int(lengths.max(initial=0)).bit_length())
    low = 0
    while low < len(lengths):
        last = int(np.searchsorted(edges, edges[low] + PIECE_BYTES // 8, "right")) - 1
        high = max(low + 1, last)
        wide = words[edges[low] : edges[high]].astype(np.int64)
        wide ^= _shifted(wide, 32)  # an odd weight keeps the top bit as it is
        wide *= np.concatenate([weights[:length] for length in lengths[low:high].tolist()])
        filled = low + np.flatnonzero(lengths[low:high])
        if filled.size:
            sums[filled] = np.add.reduceat(wide, edges[filled] - edges[low])
        low = high
    return sums


def _sums_torch(words: Any, edges: Any) -> Any:
    """Return the weighted sum of each sample's words, in one pass on their device."""
    import torch

    wide, begins, ends = words.to(torch.int64), edges[:-1], edges[1:]
    # with the size, the host does not wait for the device
    starts = torch.repeat_interleave(begins, ends - begins, output_size=wide.numel())
    weights = _mix((torch.cumsum(torch.ones_like(wide), 0) - starts) * _GOLDEN) | 1
    products = (wide ^ _shifted(wide, 32)) * weights
    sums = torch.nn.functional.pad(torch.cumsum(products, 0), (1, 0))
    return sums[ends] - sums[begins]


@lru_cache(maxsize=4)
def _position_weights(bits: int) -> npt.NDArray[np.int64]:
    """Return the odd weights of the first 2^bits positions in a sample."""
    weights: npt.NDArray[np.int64] = _mix(np.arange(1, (1 << bits) + 1) * _GOLDEN) | 1
    return weights


def _dot_numpy(words: npt.NDArray[np.int64], weights: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    out = np.empty(len(words), np.int64)
    step = max(1, PIECE_BYTES // (8 * words.shape[1]))
    for low in range(0, len(words), step):
        piece = words[low : low + step]
        np.matmul(piece ^ _shifted(piece, 32), weights, out=out[low : low + step])
    return out


def _dot_torch(words: Any, weights: Any) -> Any:
    # CUDA has no integer matrix product
    return ((words ^ _shifted(words, 32)) * weights).sum(1)
