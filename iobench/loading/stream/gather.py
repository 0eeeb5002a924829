"""Copying rows that lie anywhere in a map into memory where they follow each other."""

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
import numpy.typing as npt
import torch

from iobench.formats import Array, raw_bytes
from iobench.loading.stream.addresses import Index, Locate, RowAddresses

Bytes = npt.NDArray[np.uint8]
Copy: TypeAlias = Callable[[Index, Array], None]
MAX_ITEM_BYTES = (1 << 31) - 1  # of one item of an array of NumPy's


@dataclass(frozen=True)
class Gather:
    """How rows of a field are copied: `copy` takes what `locate` says of them, and where to.

    `locate` is None where it takes the rows as they are.
    """

    locate: Locate | None
    copy: Copy

    def __call__(self, rows: Index, known: Index | None, out: Array) -> None:
        """Copy rows, of which what `locate` says may be known already."""
        if self.locate is not None:
            rows = self.locate(rows) if known is None else known
        self.copy(rows, out)


def gather_for(places: RowAddresses, name: str, memory: Bytes) -> Gather:
    """What copies rows of a field out of memory in which its files lie side by side.

    Where all positions are multiples of the width, but for one offset, NumPy's take knows rows as
    elements of an array. Else torch's index_select takes them out of a view whose elements begin at
    every byte and so overlap: rows of 512 bytes at 0.85 of take's speed. NumPy's take would copy
    such a view as a whole first, and its indexing makes fresh memory: 0.7 of that speed. What makes an
    object of each row keeps other threads from the interpreter's lock: torch.cat of views gave epochs of
    150 KB rows 0.86 to 0.95 of the speed. The kernel's asynchronous reads, a hundred rows to a call, gave as
    much as index_select, and less than take.
    """
    width, first = places.widths[name], places.start_if_contiguous(name)
    if first is not None:
        return Gather(None, Elements(memory[first:][: places.samples * width].reshape(-1, width)))
    over = places.common_remainder(name)
    if over is not None:
        take = Elements(memory[over:][: (len(memory) - over) // width * width].reshape(-1, width))
        return Gather(places.elements(name, over), take)
    return Gather(partial(places.positions, name), _Overlapping(memory, width))


class Elements:
    """Rows by their numbers as elements of an array."""

    def __init__(self, array: Array) -> None:
        self._bytes = array.nbytes // len(array)
        self._array = self._rows(array)

    def __call__(self, numbers: Index, out: Array) -> None:
        """Copy rows to where they follow each other: `out` has as many, of any shape and dtype."""
        # "clip" never clips here, the rows were checked; with "raise", take copies twice
        np.take(self._array, numbers, axis=0, out=self._rows(out), mode="clip")

    def scatter(self, numbers: Index, out: Array, slots: Index) -> None:
        """Copy rows to these places in `out`, by way of fresh memory."""
        self._rows(out)[slots] = self._array[numbers]

    def _rows(self, array: Array) -> Array:
        """Rows as items of their size, which NumPy assigns fastest, or else as bytes."""
        held = np.frombuffer(raw_bytes(array), np.uint8)
        if self._bytes > MAX_ITEM_BYTES:
            return held.reshape(-1, self._bytes)
        return held.view(np.dtype((np.void, self._bytes)))


class _Overlapping:
    """Rows by their positions, all at once."""

    def __init__(self, memory: Bytes, width: int) -> None:
        self._rows = _as_tensor(memory).as_strided((len(memory) - width + 1, width), (1, 1))

    def __call__(self, positions: Index, out: Array) -> None:
        into = torch.from_numpy(np.frombuffer(raw_bytes(out), np.uint8).reshape(len(positions), -1))
        with one_thread():
            torch.index_select(self._rows, 0, torch.from_numpy(positions), out=into)


def _as_tensor(memory: Bytes) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it must not be written to
        return torch.from_numpy(memory)


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch from starting threads for what this thread does: there are several such as this one.

    Not by torch.set_num_threads, which speaks for threads of other people's as well.
    """
    before = torch.get_num_threads()  # also has torch set this thread up, which it does only once
    if _omp_set_num_threads is not None:
        _omp_set_num_threads(1)
    try:
        yield
    finally:
        if _omp_set_num_threads is not None:
            _omp_set_num_threads(before)


def _of_openmp() -> Any:
    """OpenMP's omp_set_num_threads, as torch has it; None where torch is built without."""
    library = next((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*"), None)
    return getattr(ctypes.CDLL(str(library)), "omp_set_num_threads", None) if library else None


_omp_set_num_threads = _of_openmp()
