"""Decoded blocks side by side in memory, each decoded by one thread while others wait for it."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from iobench.formats import Array, Batch
from iobench.host.memory import untouched_array
from iobench.loading.stream.addresses import Index
from iobench.loading.stream.gather import Elements
from iobench.loading.stream.scatter_plan import sorted_by

CACHE_BYTES = 256 << 20  # of all tables: several windows of block order

Decode = Callable[[int, Batch], None]  # a block's number, and where all its rows go
Spec = tuple[tuple[int, ...], np.dtype[Any]]


class Decoding:
    """A block in its slot: how many of its rows are not yet taken, and how many threads use it now."""

    def __init__(self, slot: int, left: int) -> None:
        self.slot, self.left, self.users = slot, left, 0
        self.error: BaseException | None = None
        self._ended = threading.Lock()
        self._ended.acquire()

    def run(self, decode: Callable[[], None]) -> None:
        """Decode, for all who wait."""
        try:
            decode()
        except BaseException as error:  # noqa: BLE001 - whoever waits gets it
            self.error = error
        finally:
            self._ended.release()

    def wait(self) -> None:
        """Wait until it is decoded; the error that came instead is raised."""
        with self._ended:
            if self.error is not None:
                raise self.error


class DecodedBlocks:
    """Rows of a table's blocks, which are decoded into slots and stay there as long as there is room.

    `counts`: the rows of each block; `specs`: shape and dtype of each field; `room`: bytes of all slots,
    of which there are two for each of `threads` at least. Rows of many blocks are copied by one call, after
    which a thread waits for the interpreter's lock only once. A block whose rows were all taken is not wanted
    again in an epoch: its slot is the next to be used, since memory that is used for the first time, which
    the kernel fills with zeros, takes longer than some codecs.
    """

    def __init__(self, counts: Index, specs: Mapping[str, Spec], room: int, threads: int) -> None:
        self._counts, self._rows = counts.tolist(), int(counts.max())
        width = sum(dtype.itemsize * math.prod(shape) for shape, dtype in specs.values())
        slots = min(len(counts), max(room // (self._rows * width), 2 * threads))
        # two windows of block order have room at the same time
        self._most_at_once = slots if slots == len(counts) else -(-slots // 2)
        self._at_a_time = max(1, slots // threads)  # of more than that
        self._arrays = {name: _array(slots * self._rows, *spec) for name, spec in specs.items()}
        self._elements = {name: Elements(array) for name, array in self._arrays.items()}
        self._begins = np.zeros(len(counts), np.int64)  # of blocks in a slot: which element is their first
        self._blocks: dict[int, Decoding] = {}
        self._undecoded: dict[int, Decoding] = {}  # of these, and by nobody yet
        self._unused: OrderedDict[int, None] = OrderedDict()  # but kept, those used last at the end
        self._free = list(range(slots))
        self._changed = threading.Condition()

    def take(self, numbers: Index, at: Index, out: Batch, decode: Decode) -> None:
        """Copy rows to where they follow each other; of each its block's number, and where it is in it.

        By one call where there is room for all their blocks, else by some blocks at a time. What `decode`
        raises is raised in every thread that wants the block.
        """
        found = _counted(numbers)
        if len(found) <= self._most_at_once:
            with self._using(found, decode):
                for name, target in out.items():
                    self._elements[name](self._begins[numbers] + at, target)
            return
        order, which = sorted_by(numbers), list(found)
        ends = np.cumsum([0, *found.values()]).tolist()
        for low in range(0, len(which), self._at_a_time):
            some = which[low : low + self._at_a_time]
            rows = order[ends[low] : ends[low + len(some)]]
            with self._using({number: found[number] for number in some}, decode):
                for name, target in out.items():
                    self._elements[name].scatter(self._begins[numbers[rows]] + at[rows], target, rows)

    @contextmanager
    def _using(self, wanted: Mapping[int, int], decode: Decode) -> Iterator[None]:
        """Have blocks decoded, of each of which so many rows are taken, in slots that stay theirs meanwhile.

        There are slots for all of them at once: nobody waits for slots who has some.
        """
        blocks = self._in_slots(wanted, decode)
        try:
            for number in blocks:
                self._run(number, decode)
            for block in blocks.values():
                block.wait()
            yield
        finally:
            self._give_back(blocks, wanted)

    def _in_slots(self, wanted: Mapping[int, int], decode: Decode) -> dict[int, Decoding]:
        """Give each block a slot; whoever waits for slots decodes meanwhile what others have in theirs."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._undecoded or self._fit(wanted))
                if self._fit(wanted):
                    return self._placed(wanted)
                number = next(reversed(self._undecoded))  # to which the thread that has it comes last
                others = {number: self._undecoded[number]}
                others[number].users += 1
            self._run(number, decode)
            self._give_back(others, {number: 0})

    def _run(self, number: int, decode: Decode) -> None:
        """Decode a block in its slot, unless another thread does or did."""
        with self._changed:
            block = self._undecoded.pop(number, None)
        if block is not None:
            low = block.slot * self._rows
            rows = slice(low, low + self._counts[number])
            block.run(partial(decode, number, {name: array[rows] for name, array in self._arrays.items()}))

    def _fit(self, wanted: Collection[int]) -> bool:
        """Whether each block has a slot, or there is one that nobody uses."""
        missing = sum(number not in self._blocks for number in wanted)
        unused = len(self._unused) - sum(number in self._unused for number in wanted)
        return missing <= len(self._free) + unused

    def _placed(self, wanted: Collection[int]) -> dict[int, Decoding]:
        """Use these blocks, of which those that have no slot get one."""
        for number in wanted:
            self._unused.pop(number, None)
        for number in wanted:
            if number not in self._blocks:
                slot = self._free.pop() if self._free else self._evicted()
                block = Decoding(slot, self._counts[number])
                self._blocks[number] = self._undecoded[number] = block
                self._begins[number] = slot * self._rows
        blocks = {number: self._blocks[number] for number in wanted}
        for block in blocks.values():
            block.users += 1
        self._changed.notify_all()  # there may be something to decode
        return blocks

    def _evicted(self) -> int:
        """The slot of the block that was used longest ago, which has none any more."""
        number, _ = self._unused.popitem(last=False)
        return self._blocks.pop(number).slot

    def _give_back(self, blocks: Mapping[int, Decoding], taken: Mapping[int, int]) -> None:
        """Use blocks no more, of each of which so many rows were taken.

        One of which rows are left is kept; where some are taken twice, others may be decoded twice.
        """
        with self._changed:
            for number, block in blocks.items():
                block.users -= 1
                block.left -= taken[number]
                if block.users:
                    continue
                if block.left > 0 and block.error is None:
                    self._unused[number] = None
                    continue
                block.error = None  # its traceback would keep the block, and so all slots
                del self._blocks[number]
                self._free.append(block.slot)
            self._changed.notify_all()


def _array(rows: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    memory = untouched_array(rows * math.prod(shape) * dtype.itemsize)
    return memory.view(dtype).reshape(rows, *shape)


def _counted(numbers: Index) -> dict[int, int]:
    """Each number that there is, in order, and how often: np.unique takes ten times as long."""
    found = np.sort(numbers)
    begins = np.flatnonzero(np.diff(found, prepend=-1))
    return dict(zip(found[begins].tolist(), np.diff(begins, append=len(found)).tolist(), strict=True))
