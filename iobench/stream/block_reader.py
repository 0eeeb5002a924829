"""Read rows from encoded blocks, each decoded once for all rows requested from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

import numpy as np

from iobench.base.errors import IobenchError, corrupt
from iobench.formats import Array, Batch, Blocks, Index, Schema
from iobench.host.maps import GuardedMap
from iobench.stream.addresses import NEAR_BYTES, AddressSpace, merged
from iobench.stream.decoded_blocks import CACHE_BYTES, DecodedBlocks
from iobench.stream.readahead import ReadaheadReader


class BlockAddresses(AddressSpace):
    """Positions of the stored bytes of blocks; CorruptArtifact if a block does not lie in its file."""

    def __init__(self, schema: Schema, tables: Sequence[Blocks]) -> None:
        super().__init__(schema, (path for table in tables for path in table.files))
        self._tables = {name: table for table in tables for name in table.fields if name in self.widths}
        self._lows = {id(table): self._checked(table) for table in tables}

    def byte_ranges(self, name: str, rows: Index) -> tuple[Index, Index]:
        """Return start and end positions of the blocks of these rows."""
        table = self._tables[name]
        numbers = np.unique(table.number(rows))
        low = self.low(table, numbers)
        return low, low + table.stored[numbers]

    def ranges(self, start: int, stop: int, names: Sequence[str]) -> tuple[Index, Index]:
        """Return the sorted, merged position ranges of the blocks of rows `start` to `stop` - 1."""
        rows = np.arange(start, stop)
        ranges = [self.byte_ranges(name, rows) for name in names]
        low, high = (np.concatenate(ends) for ends in zip(*ranges, strict=True))
        return merged(low, high, NEAR_BYTES)

    def low(self, table: Blocks, numbers: Index) -> Index:
        """Return the start positions of these blocks."""
        return np.asarray(self._lows[id(table)][table.file[numbers]] + table.offset[numbers])

    def close(self) -> None:
        """Release the tables, which may be maps of files."""
        self._tables.clear()

    def _checked(self, table: Blocks) -> Index:
        """Return the start positions of a table's files, after a check that its blocks lie in them."""
        of_table = self.numbers(table.files)
        sizes = np.array(self.sizes, np.int64)[of_table]
        numbers_wrong = (table.file < 0) | (table.file >= len(of_table))
        if numbers_wrong.any():
            expected = f"blocks in {len(of_table)} files"
            raise corrupt(table.files[0].parent, expected, "one in another file", kind="bad-placement")
        wrong = (table.offset < 0) | (table.stored < 0) | (table.offset + table.stored > sizes[table.file])
        if wrong.any():
            first = int(wrong.argmax())
            path, end = table.files[int(table.file[first])], int(table.offset[first] + table.stored[first])
            raise corrupt(path, f"{end} bytes", f"{int(sizes[table.file[first]])} bytes", kind="truncated")
        return self.starts[of_table]


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
        self._decoded = [
            self._room_for(table, counts, threads)
            for table, counts in zip(self._tables, self._counts, strict=True)
        ]
        if cold:
            mapped.advise_random()

    def _room_for(self, table: Blocks, counts: Index, threads: int) -> DecodedBlocks:
        specs = {name: spec for name, spec in self._specs.items() if name in table.fields}
        return DecodedBlocks(counts, specs, CACHE_BYTES // len(self._tables), threads)

    def close(self) -> None:
        """Stop reading ahead, and release the maps and the decoded blocks."""
        self.stop()
        self._tables = ()
        self._memory = self._memory[:0].copy()
        self._decoded.clear()
        self._addresses.close()

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        if self._ahead is not None:
            self._ahead.wait_for(stop)
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
    """Split rows into whole blocks in their order (True) and the rows between them (False).

    Parameters
    ----------
    numbers, at : int64 array
        Block of each row, and the row's index in its block.
    counts : int64 array
        Rows of each block.

    Yields
    ------
    low, high, whole
        Range of the rows, and whether it is one whole block.
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
