"""Rows out of blocks that have to be decoded, each once for all rows that are wanted of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

import numpy as np
import numpy.typing as npt

from iobench.base.errors import (
    IobenchError,
    corrupt,
)
from iobench.formats import Array, Batch, Blocks, Schema
from iobench.host.maps import GuardedMap
from iobench.loading.stream.addresses import NEAR_BYTES, AddressSpace, Index, merged
from iobench.loading.stream.decoded_blocks import CACHE_BYTES, DecodedBlocks
from iobench.loading.stream.readahead import ReadaheadReader

Bytes = npt.NDArray[np.uint8]


class BlockAddresses(AddressSpace):
    """Where the stored bytes of blocks lie; CorruptArtifact where that is not in their files."""

    def __init__(self, schema: Schema, tables: Sequence[Blocks]) -> None:
        super().__init__(schema, (path for table in tables for path in table.files))
        self._tables = {name: table for table in tables for name in table.fields if name in self.widths}
        self._lows = {id(table): self._checked(table) for table in tables}

    def byte_ranges(self, name: str, rows: Index) -> tuple[Index, Index]:
        """Where the blocks of these rows begin and end."""
        table = self._tables[name]
        numbers = np.unique(table.number(rows))
        low = self.low(table, numbers)
        return low, low + table.stored[numbers]

    def ranges(self, start: int, stop: int, names: Sequence[str]) -> tuple[Index, Index]:
        """Where the blocks of rows start..stop-1 of these fields begin and end, sorted and merged."""
        rows = np.arange(start, stop)
        found = [self.byte_ranges(name, rows) for name in names]
        low, high = (np.concatenate(ends) for ends in zip(*found, strict=True))
        return merged(low, high, NEAR_BYTES)

    def low(self, table: Blocks, numbers: Index) -> Index:
        """Where these blocks begin."""
        return np.asarray(self._lows[id(table)][table.file[numbers]] + table.offset[numbers])

    def close(self) -> None:
        """Let go of the tables, which may be maps of files."""
        self._tables.clear()

    def _checked(self, table: Blocks) -> Index:
        """Where a table's files begin, once its blocks are known to lie in them."""
        of_table = self.numbers(table.files)
        sizes = np.array(self.sizes, np.int64)[of_table]
        numbers_wrong = (table.file < 0) | (table.file >= len(of_table))
        if numbers_wrong.any():
            raise corrupt(table.files[0].parent, f"blocks in {len(of_table)} files", "one in another file")
        wrong = (table.offset < 0) | (table.stored < 0) | (table.offset + table.stored > sizes[table.file])
        if wrong.any():
            first = int(wrong.argmax())
            path, end = table.files[int(table.file[first])], int(table.offset[first] + table.stored[first])
            raise corrupt(path, f"{end} bytes", f"{int(sizes[table.file[first]])} bytes")
        return self.starts[of_table]


class BlockReader(ReadaheadReader):
    """Decodes blocks out of maps; of cold files, `read_ahead` brings them into the cache before.

    CorruptArtifact where a block is damaged; OSError where the disk fails. Several threads that want
    rows of one block have it decoded once, and blocks stay decoded as long as there is room. `threads`: how
    many read at a time.
    """

    def __init__(self, schema: Schema, tables: Sequence[Blocks], cold: bool, threads: int) -> None:
        self._tables = tuple(tables)
        self._counts = [np.diff(table.first, append=schema.samples) for table in tables]
        self._places = BlockAddresses(schema, tables)
        self._begins = [self._places.low(table, np.arange(len(table.first))) for table in tables]
        super().__init__(schema, self._places, cold)
        mapped = GuardedMap(self._places.files, self._places.sizes)
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
        """End reading ahead, drop the maps and forget what was decoded."""
        self.stop()
        self._tables = ()
        self._memory = self._memory[:0].copy()
        self._decoded.clear()
        self._places.close()

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        if self._ahead is not None:
            self._ahead.wait_for(stop)
        self._read_all(np.arange(start, stop), out)

    def _read_rows(self, rows: Index, out: Mapping[str, Array]) -> None:
        if self._ahead is not None:
            self._ahead.fetch(rows, list(out))
        self._read_all(rows, out)
        if self._ahead is not None:
            self._ahead.begin()

    def _read_all(self, rows: Index, out: Mapping[str, Array]) -> None:
        if out and not self._tables:
            raise ValueError("this reader is closed")
        for number, table in enumerate(self._tables):
            wanted = {name: array for name, array in out.items() if name in table.fields}
            if wanted:
                self._read_table(number, rows, wanted)

    def _read_table(self, which: int, rows: Index, out: Batch) -> None:
        """Rows of the fields of a table: blocks of which all are wanted straight to where they belong."""
        table = self._tables[which]
        numbers = table.number(rows)
        at = rows - table.first[numbers]
        for low, high, whole in _stretches(numbers, at, self._counts[which]):
            part = {name: array[low:high] for name, array in out.items()}
            if whole:
                self._decode(which, int(numbers[low]), part)
            else:
                decode = partial(self._decode, which)
                self._decoded[which].take(numbers[low:high], at[low:high], part, decode)

    def _decode(self, which: int, number: int, out: Batch) -> None:
        table, low = self._tables[which], int(self._begins[which][number])
        stored = self._memory[low : low + int(table.stored[number])].data.toreadonly()
        try:
            table.decode(number, stored, out)
        except IobenchError:
            self._guard.check()  # knows better what happened
            raise
        finally:
            with suppress(BufferError):  # an error's traceback would keep it, and so the map
                stored.release()
        self._guard.check()


def _stretches(numbers: Index, at: Index, counts: Index) -> Iterator[tuple[int, int, bool]]:
    """From which to which of some rows it is a block as a whole, in its order, or rows of whatever blocks.

    `numbers`: each row's block, `at`: where it is in it, `counts`: how many a block has.
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
