"""Rows out of blocks that have to be decoded, each once for all rows that are wanted of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from iobench.formats import (
    Array,
    Batch,
    Blocks,
    FormatError,
    Schema,
    corrupt,
    raw_bytes,
)
from iobench.host.maps import GuardedMap
from iobench.loading.stream.ahead import AheadReader
from iobench.loading.stream.decoded import DecodedBlocks, Decoding, Room
from iobench.loading.stream.gather import LARGE_ROW_BYTES, one_thread
from iobench.loading.stream.places import NEAR_BYTES, Index, Laid, merged

Bytes = npt.NDArray[np.uint8]


class BlockPlaces(Laid):
    """Where the stored bytes of blocks lie; CorruptArtifact where that is not in their files."""

    def __init__(self, schema: Schema, tables: Sequence[Blocks]) -> None:
        super().__init__(schema, (path for table in tables for path in table.files))
        self._tables = {name: table for table in tables for name in table.fields if name in self.widths}
        self._lows = {id(table): self._checked(table) for table in tables}

    def stretches(self, name: str, rows: Index) -> tuple[Index, Index]:
        """Where the blocks of these rows begin and end."""
        table = self._tables[name]
        numbers = np.unique(table.number(rows))
        low = self.low(table, numbers)
        return low, low + table.stored[numbers]

    def ranges(self, start: int, stop: int, names: Sequence[str]) -> tuple[Index, Index]:
        """Where the blocks of rows start..stop-1 of these fields begin and end, sorted and merged."""
        rows = np.arange(start, stop)
        found = [self.stretches(name, rows) for name in names]
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


class BlockReader(AheadReader):
    """Decodes blocks out of maps; of cold files, `read_ahead` brings them into the cache before.

    CorruptArtifact where a block is damaged; OSError where the disk fails. Several threads that want
    rows of one block have it decoded once, and blocks stay decoded as long as there is room.
    """

    def __init__(self, schema: Schema, tables: Sequence[Blocks], cold: bool) -> None:
        self._tables = tuple(tables)
        self._counts = [np.diff(table.first, append=schema.samples) for table in tables]
        self._places = BlockPlaces(schema, tables)
        self._begins = [self._places.low(table, np.arange(len(table.first))) for table in tables]
        super().__init__(schema, self._places, cold)
        mapped = GuardedMap(self._places.files, self._places.sizes)
        self._guard, self._memory = mapped.guard, mapped.bytes
        self._decoded = DecodedBlocks()
        if cold:
            mapped.advise_random()

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
        """Rows of the fields of a table, block by block; those that others are decoding come last."""
        table, asked, others = self._tables[which], list[_Asked](), list[_Asked]()
        size = sum(self._places.widths[name] for name in table.fields if name in self._specs)
        small = {name: array for name, array in out.items() if self._places.widths[name] < LARGE_ROW_BYTES}
        try:
            for number, count, whole, at, slots in _by_block(table, self._counts[which], rows):
                if whole:
                    into = slice(int(slots[0]), int(slots[0]) + count)
                    self._decode(which, number, {name: array[into] for name, array in out.items()})
                    continue
                decoding, mine = self._decoded.take((which, number), count, count * size)
                asked.append(_Asked(decoding, at, slots))
                if mine:
                    decoding.run(partial(self._fresh, which, number, count))
                    _copy(asked[-1], small)
                else:
                    others.append(asked[-1])
            for one in others:
                _copy(one, small)
            for name in out.keys() - small.keys():
                _join(asked, name, out[name])
        finally:
            for one in asked:
                self._decoded.done(one.decoding, len(one.at))

    def _fresh(self, which: int, number: int, count: int) -> Room:
        """All fields of a block of a table in memory of its own."""
        table = self._tables[which]
        room = self._decoded.room(which, count) or Room(
            {
                name: np.empty((count, *shape), dtype)
                for name, (shape, dtype) in self._specs.items()
                if name in table.fields
            }
        )
        self._decode(which, number, room.arrays)
        return room

    def _decode(self, which: int, number: int, out: Batch) -> None:
        table, low = self._tables[which], int(self._begins[which][number])
        stored = self._memory[low : low + int(table.stored[number])].data.toreadonly()
        try:
            table.decode(number, stored, out)
        except FormatError:
            self._guard.check()  # knows better what happened
            raise
        finally:
            with suppress(BufferError):  # an error's traceback would keep it, and so the map
                stored.release()
        self._guard.check()


@dataclass(frozen=True)
class _Asked:
    """Rows of a block, counted from its first, and the slots that they are for."""

    decoding: Decoding
    at: Index
    slots: Index


def _by_block(table: Blocks, counts: Index, rows: Index) -> Iterator[tuple[int, int, bool, Index, Index]]:
    """Each block's number and rows, whether these are wanted in their order, which are wanted, and slots.

    By few calls for all of them: after each, a thread waits for the interpreter's lock.
    """
    numbers = table.number(rows)
    slots = np.argsort(numbers, kind="stable")
    numbers = numbers[slots]
    at = rows[slots] - table.first[numbers]
    breaks = np.cumsum((np.diff(at, prepend=-1) != 1) | (np.diff(slots, prepend=-1) != 1))
    begins = np.flatnonzero(np.diff(numbers, prepend=-1))
    ends = np.append(begins[1:], len(rows))
    whole = (breaks[ends - 1] == breaks[begins]) & (ends - begins == counts[numbers[begins]])
    known = (numbers[begins], counts[numbers[begins]], whole, begins, ends)
    for number, count, is_whole, begin, end in zip(*(one.tolist() for one in known), strict=True):
        yield number, count, is_whole, at[begin:end], slots[begin:end]


def _copy(asked: _Asked, out: Batch) -> None:
    """Copy the rows of a block into their slots."""
    found = asked.decoding.result().arrays
    for name, target in out.items():
        rows = found[name]
        row = np.dtype((np.void, rows.nbytes // len(rows)))  # as one thing: three times as fast
        np.frombuffer(raw_bytes(target), row)[asked.slots] = np.frombuffer(raw_bytes(rows), row)[asked.at]


def _join(asked: Sequence[_Asked], name: str, target: Array) -> None:
    """Copy the large rows of a field out of all blocks at once."""
    rows: list[torch.Tensor | None] = [None] * len(target)
    for one in asked:
        views = one.decoding.result().views[name]
        for slot, place in zip(one.slots.tolist(), one.at.tolist(), strict=True):
            rows[slot] = views[place]
    into = torch.from_numpy(target.reshape(-1).view(np.uint8))
    wanted = [row for row in rows if row is not None]
    with one_thread():
        if len(wanted) == len(rows):
            torch.cat(wanted, out=into)
            return
        for place, row in zip(into.chunk(len(rows)), rows, strict=True):  # others are in their place already
            if row is not None:
                place.copy_(row)
