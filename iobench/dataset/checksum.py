"""Content checksums: the sum modulo 2^64 of one 64-bit hash per sample over all its fields.

A sample's hash is mix(sum of the words of all fields); the sum is defined below. Each field is
padded with zeros to whole words. mix is the finalizer of SplitMix64 (Steele, Lea, Flood 2014). The sum of the
hashes does not depend on the order of the samples. The non-linear mix ties the fields of a sample together: a
label that moves to another sample changes the sum. `ordered` also mixes in each row number, which detects
swapped samples.

A field whose samples differ in length has words and weights of its own, and adds
mix((2f + 1) · its sum + (bytes + f) · m) to the sum: f is the number of the field.

The same arithmetic runs on NumPy arrays and on torch tensors on any device, since int64 wraps in both. CPU
tensors are hashed as arrays, which takes a tenth of torch's time.

The sum of the words w_j of a sample is Σ_j (w_j ^ w_j >>> 31) · m_j, where m_j
are odd pseudo-random weights. Changes of the top bits of two words would cancel each other: the shift makes
them changes of lower bits. It is odd, so that equal changes of both halves of a word, such as two signs, do
not cancel each other in it.

Arrays are summed in pieces that fit into the processor's cache, tensors in one pass on their device, which is
not waited for.

Where not all rows were hashed, the rows are divided into pieces of one length; only the last may be shorter.
Piece j of the list of hashes is the golden section of all pieces further than piece j - 1 (modulo their
number), which spreads the first k evenly for every k (Knuth, TAOCP 3, section 6.4). So the length and number
of pieces say which rows have a hash and where in the list it is; the last piece of the data is the first in
the list.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from iobench.formats import Index, Ragged, Rows, Schema, array_of, index_of, map_arrays, offsets_of

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


MASK = (1 << 64) - 1
_LENGTH = signed(0xD1B54A32D192ED03)  # of the R2 sequence: independent of the golden section


class Checksum:
    """Running content checksum of batches of NumPy arrays or torch tensors, in any order."""

    def __init__(self, schema: Schema) -> None:
        # of each field in each sample: none of a ragged one
        self._words = {one.name: 0 if one.is_ragged else -(-one.sample_bytes // 8) for one in schema.fields}
        self._weights = weights(sum(self._words.values()))
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

    @property
    def sums(self) -> tuple[int, int]:
        """Both sums: content and ordered."""
        return self.content, self.ordered

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
            self._ordered = self._ordered + _plain(mix(hashes ^ _like(hashes, rows + 1) * GOLDEN).sum())

    def hashes(self, batch: Mapping[str, Any]) -> Any:
        """Return the int64 hash of each sample, as an array or tensor on the batch's device."""
        total: Any = 0
        first = 0
        for number, (name, count) in enumerate(self._words.items()):
            field = map_arrays(_on_host, batch[name])
            if isinstance(field, Ragged):
                total = total + _ragged_hashes(field, number)
                continue
            part = slice(first, first + count)
            first = part.stop
            total = total + fixed_sums(field, self._weights_for(field)[part])
        one = batch[name]
        return _like(one.values if isinstance(one, Ragged) else one, mix(total))

    def _weights_for(self, array: Any) -> Any:
        """Return the weights on an array's device, which a copy for each batch would stall."""
        if isinstance(array, np.ndarray):
            return self._weights
        import torch

        if array.device not in self._on_device:
            self._on_device[array.device] = torch.from_numpy(self._weights).to(array.device)
        return self._on_device[array.device]


def _plain(total: Any) -> Any:
    return int(total) if isinstance(total, np.integer) else total


def _on_host(array: Any) -> Any:
    return array if isinstance(array, np.ndarray) or array.device.type != "cpu" else array_of(array)


def _like(array: Any, hashes: Any) -> Any:
    """Return int64 values as an array or tensor, where an array or tensor is."""
    if isinstance(array, np.ndarray) or not isinstance(hashes, np.ndarray):
        return hashes
    import torch

    return torch.from_numpy(hashes).to(array.device)


def _ragged_hashes(field: Ragged, number: int) -> Any:
    """Return what each sample of ragged field `number` adds to the sum of its sample."""
    values = field.values
    edges = field.offsets * (math.prod(values.shape[1:]) * values.dtype.itemsize)
    sums = ragged_sums(values, edges)
    return mix(sums * (2 * number + 1) + (edges[1:] - edges[:-1] + number) * _LENGTH)


GOLDEN_RATIO = (math.sqrt(5) - 1) / 2
NEAR = 64  # steps tried on both sides of it
HASHED_BYTES = 1 << 20  # small, so that a stretch of rows contains some; reading one is longer than a seek


@dataclass(frozen=True)
class HashedRows:
    """The first `pieces` pieces of `piece_rows` rows, out of `samples` rows, in the order of the list."""

    samples: int
    piece_rows: int
    pieces: int

    @classmethod
    def all_of(cls, samples: int) -> HashedRows:
        """Return all rows, in stored order."""
        return cls(samples, samples, 1)

    @classmethod
    def part_of(cls, schema: Schema, size: int) -> HashedRows:
        """Return rows of about `size` bytes, spread over the dataset; all if it is not larger."""
        if schema.logical_bytes <= size:
            return cls.all_of(schema.samples)
        rows = min(schema.samples, max(1, HASHED_BYTES // schema.sample_bytes))
        return cls(schema.samples, rows, max(1, size // (rows * schema.sample_bytes)))

    @property
    def count(self) -> int:
        """Number of rows."""
        return self._last_rows + (self.pieces - 1) * self.piece_rows

    @property
    def whole(self) -> bool:
        """True if these are all rows."""
        return self.count == self.samples

    def slices(self, rows: int) -> Iterator[slice]:
        """Yield slices of at most that many rows, in the order of the list."""
        for number in range(self.pieces):
            piece = (self._all - 1 + number * _golden_step(self._all)) % self._all
            stop = min((piece + 1) * self.piece_rows, self.samples)
            for low in range(piece * self.piece_rows, stop, rows):
                yield slice(low, min(low + rows, stop))

    def paired(
        self, schema: Schema, rows: int, hashes: Iterable[Index], report: Callable[[int, int], None]
    ) -> Iterator[tuple[Index, Index]]:
        """Yield the rows of each of the `slices` with their hashes.

        `report` gets the bytes done and those in total.
        """
        done, total = 0, self.count * schema.sample_bytes
        report(0, total)
        for part, some in zip(self.slices(rows), hashes, strict=True):
            yield index_of(part), some
            done += len(some) * schema.sample_bytes
            report(done, total)

    def known(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Return for each row whether it is one of these."""
        known: npt.NDArray[np.bool_] = self._number(index_of(rows)) < self.pieces
        return known

    def positions(self, rows: Rows) -> Rows:
        """Return the position in the list of each row, which must be known."""
        if self._all == 1:
            return rows
        rows = index_of(rows)
        number = self._number(rows)
        before = np.where(number == 0, 0, self._last_rows + (number - 1) * self.piece_rows)
        return before + rows % self.piece_rows

    @property
    def _all(self) -> int:
        """Number of pieces of all rows."""
        return -(-self.samples // self.piece_rows)

    @property
    def _last_rows(self) -> int:
        """Rows of the last piece."""
        return self.samples - (self._all - 1) * self.piece_rows

    def _number(self, rows: Index) -> Index:
        """Return the number in the list of the piece of each row."""
        return (rows // self.piece_rows + 1) * pow(_golden_step(self._all), -1, self._all) % self._all


@lru_cache
def _golden_step(count: int) -> int:
    """Return the step from one piece to the next, near the golden section, that spreads them best.

    Manifests depend on it.
    """
    middle = round(GOLDEN_RATIO * count)
    near = range(max(1, middle - NEAR), min(count, middle + NEAR) + 1)
    return min(near, key=lambda step: (_largest_quotient(step, count), step))


def _largest_quotient(step: int, count: int) -> float:
    """Return the largest partial quotient of count / step; infinity if they share a factor."""
    largest = 0
    while step:
        largest = max(largest, count // step)
        count, step = step, count % step
    return largest if count == 1 else math.inf
