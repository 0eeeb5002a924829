"""Gather rows at any positions of a map into contiguous memory."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from iobench.formats import Array, Index, raw_bytes
from iobench.host.memory import Bytes
from iobench.stream.addresses import Locate, RowAddresses

Copy: TypeAlias = Callable[[Index, Array], None]
MAX_ITEM_BYTES = (1 << 31) - 1  # NumPy's maximum itemsize


@dataclass(frozen=True)
class Gather:
    """Gathers rows of a field: `copy` takes the offsets that `locate` returns, and the output.

    `locate` is None if `copy` takes row numbers.
    """

    locate: Locate | None
    copy: Copy

    def __call__(self, rows: Index, out: Array) -> None:
        """Copy rows into `out`."""
        self.copy(rows if self.locate is None else self.locate(rows), out)


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
    over = addresses.common_remainder(name)
    if over is not None:
        take = Elements(memory[over:][: (len(memory) - over) // width * width].reshape(-1, width))
        return Gather(addresses.elements(name, over), take)
    return Gather(partial(addresses.positions, name), _Overlapping(memory, width))


class Elements:
    """Rows as elements of an array, addressed by number."""

    def __init__(self, array: Array) -> None:
        self._bytes = array.nbytes // len(array)
        self._array = self._rows(array)

    def __call__(self, numbers: Index, out: Array) -> None:
        """Copy rows into `out`, which has one item per row, of any shape and dtype."""
        # "clip" never clips here, because the rows were checked; with "raise", take copies twice
        np.take(self._array, numbers, axis=0, out=self._rows(out), mode="clip")

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
    """Rows at any byte positions, gathered by one call."""

    def __init__(self, memory: Bytes, width: int) -> None:
        self._rows = _as_tensor(memory).as_strided((len(memory) - width + 1, width), (1, 1))

    def __call__(self, positions: Index, out: Array) -> None:
        into = torch.from_numpy(np.frombuffer(raw_bytes(out), np.uint8).reshape(len(positions), -1))
        with one_thread():
            torch.index_select(self._rows, 0, torch.from_numpy(positions), out=into)


def _as_tensor(memory: Bytes) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's warning about read-only memory
        return torch.from_numpy(memory)


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
