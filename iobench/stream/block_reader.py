"""Read rows from encoded blocks, each decoded once, by one thread, for all rows requested from it."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np

from iobench.base.errors import IobenchError
from iobench.formats import Array, Batch, Blocks, Index, Schema
from iobench.formats.placement import sorted_by
from iobench.host.maps import GuardedMap
from iobench.host.memory import untouched_array
from iobench.stream.addresses import AddressSpace
from iobench.stream.gather import Elements
from iobench.stream.readahead import ReadaheadReader

CACHE_BYTES = 256 << 20  # of all tables together: several windows of block order

Decode = Callable[[int, Batch], None]  # decodes the block of a number into arrays for all its rows
Spec = tuple[tuple[int, ...], np.dtype[Any]]


class Decoding:
    """A block in its slot, with the number of its rows not yet taken and of threads that use it now."""

    def __init__(self, slot: int, left: int) -> None:
        self.slot, self.left, self.users = slot, left, 0
        self.error: BaseException | None = None
        self._ended = threading.Lock()
        self._ended.acquire()

    def run(self, decode: Callable[[], None]) -> None:
        """Decode the block for all waiting threads."""
        try:
            decode()
        except BaseException as error:  # noqa: BLE001 - raised again in the threads that wait
            self.error = error
        finally:
            self._ended.release()

    def wait(self) -> None:
        """Wait until the block is decoded; raises the error of its decoding."""
        with self._ended:
            if self.error is not None:
                raise self.error


class DecodedBlocks:
    """Cache of a table's decoded blocks, which stay in their slots as long as there is room.

    Rows of many blocks are copied by one call, so that a thread waits for the GIL only once. A block whose
    rows were all taken is not needed again in the epoch, and its slot is reused next: the first use of
    memory, which the kernel fills with zeros, takes longer than some codecs.

    `counts` are the rows of each block, `specs` shape and dtype of a sample of each field. All slots take
    `room` bytes, but there are at least two slots for each of the `threads` that take rows at the same time.
    """

    def __init__(self, counts: Index, specs: Mapping[str, Spec], room: int, threads: int) -> None:
        self._counts, self._rows = counts.tolist(), int(counts.max())
        width = sum(dtype.itemsize * math.prod(shape) for shape, dtype in specs.values())
        slots = min(len(counts), max(room // (self._rows * width), 2 * threads))
        # two windows of block order fit at the same time
        self._most_at_once = slots if slots == len(counts) else -(-slots // 2)
        self._at_a_time = max(1, slots // threads)  # if there are more than that
        self._arrays = {name: _array(slots * self._rows, *spec) for name, spec in specs.items()}
        self._elements = {name: Elements(array) for name, array in self._arrays.items()}
        self._begins = np.zeros(len(counts), np.int64)  # first element of each block that has a slot
        self._blocks: dict[int, Decoding] = {}
        self._undecoded: dict[int, Decoding] = {}  # those of them whose decoding has not started
        self._unused: OrderedDict[int, None] = OrderedDict()  # decoded but idle, most recently used last
        self._free = list(range(slots))
        self._changed = threading.Condition()

    def take(self, numbers: Index, at: Index, out: Batch, decode: Decode) -> None:
        """Copy rows into a batch, decoding their blocks as needed.

        `numbers` are the blocks of the rows, `at` their indices in the blocks. With one call if there is room
        for all their blocks, else some blocks at a time. An error of `decode` is raised in every thread that
        needs the block.
        """
        rows_of = _counted(numbers)
        if len(rows_of) <= self._most_at_once:
            with self._using(rows_of, decode):
                for name, target in out.items():
                    self._elements[name](self._begins[numbers] + at, target)
            return
        order, which = sorted_by(numbers), list(rows_of)
        ends = np.cumsum([0, *rows_of.values()]).tolist()
        for low in range(0, len(which), self._at_a_time):
            some = which[low : low + self._at_a_time]
            rows = order[ends[low] : ends[low + len(some)]]
            with self._using({number: rows_of[number] for number in some}, decode):
                for name, target in out.items():
                    self._elements[name].scatter(self._begins[numbers[rows]] + at[rows], target, rows)

    @contextmanager
    def _using(self, taken: Mapping[int, int], decode: Decode) -> Iterator[None]:
        """Decode blocks and keep them in their slots during the block; `taken` rows of each are taken.

        All slots are acquired at once, so that no thread waits for slots while it holds some.
        """
        blocks = self._in_slots(taken, decode)
        try:
            for number in blocks:
                self._run(number, decode)
            for block in blocks.values():
                block.wait()
            yield
        finally:
            self._give_back(blocks, taken)

    def _in_slots(self, taken: Mapping[int, int], decode: Decode) -> dict[int, Decoding]:
        """Acquire a slot for each block; while waiting, decode blocks that other threads have in theirs."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._undecoded or self._fit(taken))
                if self._fit(taken):
                    return self._placed(taken)
                number = next(reversed(self._undecoded))  # the one that its thread would decode last
                others = {number: self._undecoded[number]}
                others[number].users += 1
            self._run(number, decode)
            self._give_back(others, {number: 0})

    def _run(self, number: int, decode: Decode) -> None:
        """Decode a block in its slot, unless another thread has started or finished that."""
        with self._changed:
            block = self._undecoded.pop(number, None)
        if block is not None:
            low = block.slot * self._rows
            rows = slice(low, low + self._counts[number])
            block.run(partial(decode, number, {name: array[rows] for name, array in self._arrays.items()}))

    def _fit(self, numbers: Collection[int]) -> bool:
        """Return True if each block has a slot or can get an idle one."""
        missing = sum(number not in self._blocks for number in numbers)
        unused = len(self._unused) - sum(number in self._unused for number in numbers)
        return missing <= len(self._free) + unused

    def _placed(self, numbers: Collection[int]) -> dict[int, Decoding]:
        """Mark these blocks as used, and give a slot to those without one."""
        for number in numbers:
            self._unused.pop(number, None)
        for number in numbers:
            if number not in self._blocks:
                if not self._free:  # evict the least recently used block
                    self._free.append(self._blocks.pop(self._unused.popitem(last=False)[0]).slot)
                slot = self._free.pop()
                block = Decoding(slot, self._counts[number])
                self._blocks[number] = self._undecoded[number] = block
                self._begins[number] = slot * self._rows
        blocks = {number: self._blocks[number] for number in numbers}
        for block in blocks.values():
            block.users += 1
        self._changed.notify_all()  # waiting threads may decode these blocks
        return blocks

    def _give_back(self, blocks: Mapping[int, Decoding], taken: Mapping[int, int]) -> None:
        """Release blocks, of each of which `taken` rows were taken.

        A block with rows left stays decoded. If some rows are taken twice, a block may be decoded twice.
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
                block.error = None  # its traceback would keep the block, and thereby all slots
                del self._blocks[number]
                self._free.append(block.slot)
            self._changed.notify_all()


def _array(rows: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    memory = untouched_array(rows * math.prod(shape) * dtype.itemsize)
    return memory.view(dtype).reshape(rows, *shape)


def _counted(numbers: Index) -> dict[int, int]:
    """Count each number, in ascending order; np.unique takes ten times as long."""
    ordered = np.sort(numbers)
    begins = np.flatnonzero(np.diff(ordered, prepend=-1))
    return dict(zip(ordered[begins].tolist(), np.diff(begins, append=len(ordered)).tolist(), strict=True))


class BlockAddresses(AddressSpace):
    """Positions of the stored bytes of blocks; CorruptArtifact if a block does not lie in its file."""

    def __init__(self, schema: Schema, tables: Sequence[Blocks]) -> None:
        super().__init__(schema, (path for table in tables for path in table.files))
        self._tables = {name: table for table in tables for name in table.fields if name in self.widths}
        self._lows = {id(table): self.starts[self.numbers(table.files)] for table in tables}
        for table in tables:
            self.check_inside("blocks", table.files, table.file, table.offset, table.stored)

    def byte_ranges(self, name: str, rows: Index) -> tuple[Index, Index]:
        """Return start and end positions of the blocks of these rows."""
        table = self._tables[name]
        numbers = np.unique(table.number(rows))
        low = self.low(table, numbers)
        return low, low + table.stored[numbers]

    def low(self, table: Blocks, numbers: Index) -> Index:
        """Return the start positions of these blocks."""
        return np.asarray(self._lows[id(table)][table.file[numbers]] + table.offset[numbers])

    def close(self) -> None:
        """Release the tables, which may be maps of files."""
        self._tables.clear()


class BlockReader(ReadaheadReader):
    """Decodes blocks from maps; `read_ahead` brings those of cold files into the page cache before.

    A block is decoded once for all threads that need rows of it, and stays decoded as long as there is room.
    `threads` is the number of threads that read at the same time. Raises CorruptArtifact if a block is
    damaged, OSError if the disk fails.
    """

    decodes = True

    def __init__(self, schema: Schema, tables: Sequence[Blocks], cold: bool, threads: int) -> None:
        self._tables = tuple(tables)
        self._counts = [np.diff(table.first, append=schema.samples) for table in tables]
        self._addresses = BlockAddresses(schema, tables)
        self._begins = [self._addresses.low(table, np.arange(len(table.first))) for table in tables]
        super().__init__(schema, self._addresses, cold)
        mapped = GuardedMap(self._addresses.files, self._addresses.sizes)
        self._guard, self._memory = mapped.guard, mapped.bytes
        self._decoded, room = list[DecodedBlocks](), CACHE_BYTES // len(tables)
        for table, counts in zip(self._tables, self._counts, strict=True):
            specs = {name: spec for name, spec in self._specs.items() if name in table.fields}
            self._decoded.append(DecodedBlocks(counts, specs, room, threads))
        if cold:
            mapped.advise_random()

    def close(self) -> None:
        """Stop reading ahead, and release the maps and the decoded blocks."""
        self.stop()
        self._tables = ()
        self._memory = self._memory[:0].copy()
        self._decoded.clear()
        self._addresses.close()

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        self.wait_for(stop)
        self._copy_rows(np.arange(start, stop), out)

    def _copy_rows(self, rows: Index, out: Mapping[str, Array]) -> None:
        if out and not self._tables:
            raise ValueError("this reader is closed")
        for number, table in enumerate(self._tables):
            own = {name: array for name, array in out.items() if name in table.fields}
            if own:
                self._read_table(number, rows, own)

    def _read_table(self, which: int, rows: Index, out: Batch) -> None:
        """Read rows of a table's fields; whole blocks are decoded directly into the batch."""
        table = self._tables[which]
        numbers = table.number(rows)
        at = rows - table.first[numbers]
        for low, high, whole in _whole_blocks(numbers, at, self._counts[which]):
            part = {name: array[low:high] for name, array in out.items()}
            if whole:
                self.decode_block(which, int(numbers[low]), part)
            else:
                decode = partial(self.decode_block, which)
                self._decoded[which].take(numbers[low:high], at[low:high], part, decode)

    def decode_block(self, which: int, number: int, out: Batch) -> None:
        """Decode a block of one of the tables into `out`."""
        table, low = self._tables[which], int(self._begins[which][number])
        stored = self._memory[low : low + int(table.stored[number])].data.toreadonly()
        try:
            table.decode(number, stored, out)
        except IobenchError:
            self._guard.check()  # its error names the cause
            raise
        finally:
            with suppress(BufferError):  # an error's traceback would keep it, and thereby the map
                stored.release()
        self._guard.check()


def _whole_blocks(numbers: Index, at: Index, counts: Index) -> Iterator[tuple[int, int, bool]]:
    """Yield the ranges of rows that are one whole block in its order (True), and those between them (False).

    `numbers` are the blocks of the rows, `at` their indices in the blocks, `counts` the rows of each block.
    """
    breaks = np.flatnonzero((np.diff(numbers) != 0) | (np.diff(at) != 1)) + 1
    begins, ends = np.append(0, breaks), np.append(breaks, len(numbers))
    whole = np.flatnonzero(ends - begins == counts[numbers[begins]])
    done = 0
    for low, high in zip(begins[whole].tolist(), ends[whole].tolist(), strict=True):
        if done < low:
            yield done, low, False
        yield low, high, True
        done = high
    if done < len(numbers):
        yield done, len(numbers), False
