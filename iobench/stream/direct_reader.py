"""Read rows past the page cache, for data that would not stay in it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

import numpy as np

from iobench.base.errors import corrupt
from iobench.formats import Array, Index, Placement, Reader, Schema, raw_bytes
from iobench.formats.placement import ScatterPlan
from iobench.host.io_engines import ReadFailed, ReadQueue, open_direct
from iobench.host.memory import PAGE, Bytes, address_of, touched_array
from iobench.stream.addresses import RowAddresses
from iobench.stream.mapped_files import MAX_OPEN, descriptors, naming, open_plain, read_into

PIECE_BYTES = 1 << 20  # maximum size of one read of adjacent rows
SMALLEST_SLOT = 8 << 10
SMALL_BYTES = 32 << 20  # a field up to this size is read once and kept, because its rows share pages


class DirectReader(Reader):
    """Reads rows at their positions in the files with direct IO; each thread has its own queue.

    Raises DirectUnavailable if a file system does not support direct IO, and OSError with the file's name if
    the disk fails.
    """

    def __init__(self, schema: Schema, placements: Mapping[str, Placement]) -> None:
        super().__init__(schema)
        self._addresses = RowAddresses(schema, placements)
        self._files = descriptors(self._addresses.files, open_direct)
        self._small: dict[str, Array] = {}
        self._queues: list[ReadQueue] = []
        self._own = threading.local()
        try:
            for field in schema.fields:
                place = placements[field.name]
                if field.sample_bytes * schema.samples <= SMALL_BYTES and self._addresses.is_contiguous(
                    field.name
                ):
                    self._small[field.name] = self._whole(field.name)
                else:
                    with self._files.use(self._addresses.files.index(place.files[0])):
                        pass  # raises if it cannot be opened
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the files and the queues."""
        self._files.close()  # first: closing a queue takes a while, in which Ctrl-C may come
        self._small.clear()
        self._addresses.close()
        while self._queues:
            self._queues.pop().close()

    def page_offset(self, name: str, row: int) -> int:
        """Return the offset in its page of a row: memory with the same offset needs no extra copy."""
        first, width = self._addresses.start_if_contiguous(name), self._addresses.widths[name]
        if first is None or name in self._small:
            return 0
        start = (first + row * width) % PAGE
        return 0 if start % self._specs[name][1].itemsize else start

    def _whole(self, name: str) -> Array:
        shape, dtype = self._specs[name]
        array = np.empty((self.schema.samples, *shape), dtype)
        rows = np.frombuffer(raw_bytes(array), np.uint8).reshape(len(array), -1)
        starts, width = self._addresses.positions(name, np.arange(len(array))), rows.shape[1]
        first = np.flatnonzero(np.diff(starts, prepend=starts[0] - width - 1) != width).tolist()
        plain = descriptors(self._addresses.files, open_plain)
        try:
            for low, high in zip(first, [*first[1:], len(rows)], strict=True):
                number, offset = self._addresses.within(int(starts[low]))
                with plain.use(number) as file:
                    read_into(file, self._addresses.files[number], offset, rows[low:high].reshape(-1))
        finally:
            plain.close()
        return array

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        scattered = {}
        for name, target in out.items():
            first = self._addresses.start_if_contiguous(name)
            if name in self._small:
                target[:] = self._small[name][start:stop]
            elif first is not None:
                self._copy(first + start * self._addresses.widths[name], raw_bytes(target))
            else:
                scattered[name] = target
        self._read_scattered(np.arange(start, stop), scattered)

    def _read_rows(self, rows: Index, out: Mapping[str, Array]) -> None:
        for name in self._small.keys() & out.keys():
            np.take(self._small[name], rows, axis=0, out=out[name], mode="clip")
        self._read_scattered(rows, {n: target for n, target in out.items() if n not in self._small})

    def _read_scattered(self, rows: Index, out: Mapping[str, Array]) -> None:
        """Read rows at any positions: large ones one by one, small ones together with their neighbors."""
        together = {}
        for name, target in out.items():
            if self._addresses.widths[name] < PIECE_BYTES:
                together[name] = target
                continue
            for slot, position in enumerate(self._addresses.positions(name, rows).tolist()):
                self._copy(position, raw_bytes(target[slot]))
        if together:
            plan = ScatterPlan.of(self._addresses, rows, together)
            # not more files at a time than may be open
            files = np.searchsorted(self._addresses.starts, plan.starts, side="right")
            steps = np.flatnonzero(np.diff(files, prepend=-1))[:: MAX_OPEN // 2]
            for low, high in zip(steps.tolist(), [*steps[1:].tolist(), len(files)], strict=True):
                self._gather(plan.part(low, high))

    def _copy(self, start: int, target: memoryview) -> None:
        into = np.frombuffer(target, np.uint8)
        if len(into) >= 2 * PAGE and (address_of(into) - start) % PAGE == 0:
            self._read_into(start, into)
        else:
            self._copy_pages(start, into)

    def _read_into(self, start: int, into: Bytes) -> None:
        """Read bytes from a position on directly into memory with the same offset in its page."""
        end = start + len(into)
        low, high = -(-start // PAGE) * PAGE, end // PAGE * PAGE
        edges = touched_array(2 * PAGE)
        reads = [
            (at, into[at - start : min(at + PIECE_BYTES, high) - start])
            for at in range(low, high, PIECE_BYTES)
        ]
        reads += [(low - PAGE, edges[:PAGE])] * (start < low) + [(high, edges[PAGE:])] * (high < end)
        offsets, lengths = np.array([at for at, _ in reads]), np.array([len(place) for _, place in reads])
        places = [place for _, place in reads]
        for number, got in self._reads(offsets, lengths, places):
            at = int(offsets[number])
            self._check(min(at + int(lengths[number]), end), at + len(got))
        into[: low - start] = edges[PAGE - (low - start) : PAGE]
        into[high - start :] = edges[PAGE : PAGE + end - high]

    def _copy_pages(self, start: int, into: Bytes) -> None:
        """Read bytes from a position on by way of aligned memory."""
        end = start + len(into)
        offsets = np.arange(start // PAGE * PAGE, end, PIECE_BYTES)
        lengths = np.minimum(PIECE_BYTES, -(-end // PAGE) * PAGE - offsets)
        for number, got in self._reads(offsets, lengths):
            low = int(offsets[number]) - start
            high = min(low + PIECE_BYTES, len(into))
            self._check(start + high, int(offsets[number]) + len(got))
            into[max(low, 0) : high] = got[max(-low, 0) : high - low]

    def _gather(self, plan: ScatterPlan) -> None:
        """Read the rows of a plan, neighbors together, and copy each into its slot."""
        low, high = plan.starts // PAGE * PAGE, -(-plan.ends // PAGE) * PAGE
        first = pieces_of(low, high)
        after = np.append(first[1:], len(low))
        offsets = low[first]
        ends = np.maximum.reduceat(plan.ends, first)
        lengths = -(-ends // PAGE) * PAGE - offsets
        for number, got in self._reads(offsets, lengths):
            offset = int(offsets[number])
            self._check(int(ends[number]), offset + len(got))
            plan.take(int(first[number]), int(after[number]), got, offset)

    def _reads(
        self, positions: Index, lengths: Index, into: Sequence[Bytes] | None = None
    ) -> Iterator[tuple[int, Bytes]]:
        """Read at positions, each within one file; yield index and bytes of each in order of completion."""
        numbers = np.searchsorted(self._addresses.starts, positions, side="right") - 1
        offsets = positions - self._addresses.starts[numbers]
        files, which = np.unique(numbers, return_inverse=True)
        with ExitStack() as stack:
            opened = [stack.enter_context(self._files.use(number)) for number in files.tolist()]
            queue = self._queue(int(lengths.max()))
            try:
                yield from queue.read(np.array(opened)[which], offsets, lengths, into)
            except ReadFailed as error:
                with naming(self._addresses.files[int(numbers[error.number])]):
                    raise

    def _queue(self, most: int) -> ReadQueue:
        """Return this thread's queue for reads of at most `most` bytes."""
        size = SMALLEST_SLOT
        while size < most:
            size *= 2
        size = size * 3 // 4 if size * 3 // 4 >= most else size
        if not hasattr(self._own, "queues"):
            self._own.queues = {}
        if size not in self._own.queues:
            self._own.queues[size] = ReadQueue(size)
            self._queues.append(self._own.queues[size])
        queue: ReadQueue = self._own.queues[size]
        return queue

    def _check(self, expected: int, end: int) -> None:
        """Raise CorruptArtifact if a file ends at position `end`, before the expected one."""
        if end < expected:
            number, offset = self._addresses.within(end)
            needed = f"at least {offset + expected - end} bytes"
            raise corrupt(self._addresses.files[number], needed, f"{offset} bytes", kind="truncated")


def pieces_of(low: Index, high: Index) -> Index:
    """Return the indices of sorted page ranges where a new read begins: at gaps and at its maximum size."""
    gaps = np.flatnonzero(np.concatenate(([True], low[1:] > high[:-1])))
    since = low - np.repeat(low[gaps], np.diff(np.append(gaps, len(low))))
    cuts = np.flatnonzero(np.diff(np.maximum(since - PAGE, 0) // PIECE_BYTES, prepend=0))
    return np.union1d(gaps, cuts)
