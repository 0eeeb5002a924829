"""Gather rows, or samples of different lengths, at any positions of a map into contiguous memory."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from iobench.formats import Array, Index, offsets_of, raw_bytes
from iobench.host.memory import Bytes
from iobench.stream.addresses import Locate, RowAddresses

MAX_ITEM_BYTES = (1 << 31) - 1  # NumPy's maximum itemsize
WORDS = (8, 4, 2, 1)  # bytes


@dataclass(frozen=True)
class Gather:
    """Gathers rows of a field: `stored` takes the numbers that `locate` returns, and the output.

    `locate` is None if `stored` takes row numbers.
    """

    locate: Locate | None
    stored: Elements | _Overlapping

    def __call__(self, rows: Index, out: Array) -> None:
        """Copy rows into `out`, in this thread alone."""
        self.stored(rows if self.locate is None else self.locate(rows), out)

    def in_torch(self, rows: Index, out: Array) -> None:
        """Copy rows into `out`, by all of torch's threads."""
        self.stored.in_torch(rows if self.locate is None else self.locate(rows), out)


def gather_for(addresses: RowAddresses, name: str, memory: Bytes) -> Gather:
    """Return the fastest gather of a field's rows from memory in which its files lie side by side.

    If all positions are multiples of the width, up to one common offset, NumPy's take copies rows as elements
    of an array. Otherwise torch's index_select copies them from a view whose elements begin at every byte and
    overlap: for rows of 512 bytes at 0.85 of take's speed.

    Rejected: NumPy's take on such a view, which would copy the whole view first; NumPy's indexing, which
    allocates new memory, at 0.7 of the speed; anything that makes an object per row, because it holds the GIL
    (torch.cat of views gave epochs of 150 KB rows 0.86 to 0.95 of the speed); the kernel's asynchronous reads
    of a hundred rows per call, as fast as index_select and slower than take.
    """
    width, first = addresses.widths[name], addresses.start_if_contiguous(name)
    if first is not None:
        return Gather(None, Elements(memory[first:][: addresses.samples * width].reshape(-1, width)))
    over = addresses.common_remainder(name, width)
    if over is not None:
        take = Elements(memory[over:][: (len(memory) - over) // width * width].reshape(-1, width))
        return Gather(addresses.elements(name, over), take)
    for word in sorted({math.gcd(width, size) for size in WORDS}, reverse=True):
        if (over := addresses.common_remainder(name, word)) is not None:
            break
    return Gather(partial(addresses.positions, name), _Overlapping(memory, width, word, over or 0))


class Elements:
    """Rows as elements of an array, addressed by number."""

    def __init__(self, array: Array) -> None:
        self._bytes = array.nbytes // len(array)
        self._array, self._words = self._rows(array), _words(array, self._bytes)

    def __call__(self, numbers: Index, out: Array) -> None:
        """Copy rows into `out`, which has one item per row, of any shape and dtype."""
        # "clip" never clips here, because the rows were checked; with "raise", take copies twice
        np.take(self._array, numbers, axis=0, out=self._rows(out), mode="clip")

    def in_torch(self, numbers: Index, out: Array) -> None:
        """Copy rows into `out`, by all of torch's threads."""
        torch.index_select(self._words, 0, torch.from_numpy(numbers), out=_words(out, self._bytes))

    def scatter(self, numbers: Index, out: Array, slots: Index) -> None:
        """Copy rows into these slots of `out`, by way of new memory."""
        self._rows(out)[slots] = self._array[numbers]

    def _rows(self, array: Array) -> Array:
        """Return rows as void items of their size, which NumPy assigns fastest, or else as bytes."""
        held = np.frombuffer(raw_bytes(array), np.uint8)
        if self._bytes > MAX_ITEM_BYTES:
            return held.reshape(-1, self._bytes)
        return held.view(np.dtype((np.void, self._bytes)))


class _Overlapping:
    """Rows at any positions that have one remainder, `over`, by `word`; gathered by one call."""

    def __init__(self, memory: Bytes, width: int, word: int, over: int) -> None:
        self._word, self._over, self._width = word, over, width
        every = _words(memory[over:][: (len(memory) - over) // word * word], word)
        self._rows = every.as_strided((len(every) - width // word + 1, width // word), (1, 1))

    def __call__(self, positions: Index, out: Array) -> None:
        """Copy rows into `out`, in this thread alone."""
        with one_thread():
            self.in_torch(positions, out)

    def in_torch(self, positions: Index, out: Array) -> None:
        """Copy rows into `out`, by all of torch's threads."""
        numbers = torch.from_numpy((positions - self._over) // self._word)
        torch.index_select(self._rows, 0, numbers, out=_words(out, self._width, self._word))


def _words(array: Array, width: int, most: int = WORDS[0]) -> torch.Tensor:
    """Return rows of `width` bytes as words as large as possible, which torch copies sooner than bytes."""
    word = math.gcd(width, most)
    stored = np.frombuffer(raw_bytes(array), f"i{word}" if word > 1 else np.uint8)
    return torch.from_numpy(stored).view(-1, width // word)


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch from starting threads for this thread's work, as several threads work already.

    torch.set_num_threads would change the setting of the user's threads as well.
    """
    before = torch.get_num_threads()  # also makes torch initialize this thread, which it does once
    if _omp_set_num_threads is not None:
        _omp_set_num_threads(1)
    try:
        yield
    finally:
        if _omp_set_num_threads is not None:
            _omp_set_num_threads(before)


def _of_openmp() -> Any:
    """Return omp_set_num_threads of torch's OpenMP, or None if torch is built without it."""
    library = next((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*"), None)
    return getattr(ctypes.CDLL(str(library)), "omp_set_num_threads", None) if library else None


_omp_set_num_threads = _of_openmp()


LONG_BYTES = 8 << 10  # from this mean length on, one copy of a sample costs less than two of its blocks
LEAST_BLOCK, MOST_BLOCK = 16, 512
BLOCKS = 4  # per sample of mean length: fewer would copy more bytes for nothing, more cost more look-ups
# copied by one call: small enough for the cache, and more than the 500 items up to which NumPy holds the GIL
STEP_BYTES = 1 << 20


def gather_spans(memory: Bytes, begins: Index, lengths: Index, out: Bytes) -> None:
    """Copy samples of `memory`, given by first bytes and lengths in bytes, to `out`, one after the other.

    They are copied in blocks of one size by few NumPy calls, which release the GIL: twice as fast as a slice
    per sample of 1 KB. The last block of a sample reaches into the next sample, which is copied after it.
    Samples whose last block would leave `memory` or `out` are copied one by one, and so are all if most are
    long: some in blocks and some one by one would take longer than either.
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
