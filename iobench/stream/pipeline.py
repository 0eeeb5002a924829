"""Pipeline: threads read batches ahead of their consumer and hand them over in order.

Rows in memory are copied by the consumer's thread as well, while it would wait: to be woken by another thread
takes as long as to copy a small batch.
"""

from __future__ import annotations

import atexit
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import repeat
from queue import SimpleQueue
from typing import Any, TypeAlias

import numpy as np
import torch

from iobench.base.errors import LoaderFailed
from iobench.formats import Batch, Ragged, Rows, Schema, index_of
from iobench.loading.collate import COLLATED
from iobench.loading.order import Batches, Order, row_count
from iobench.loading.stages import UNTIMED, Stages
from iobench.stream.backend import Backend
from iobench.stream.delivery import BatchDelivery, refuse_child
from iobench.stream.group_memory import GroupMemory
from iobench.stream.transfer import Tensors, Transfer
from iobench.stream.worker_pool import WorkerPool

# batches, and the error that kept the next from being made
Filled: TypeAlias = "tuple[list[Tensors], Exception | None]"


class BatchGroup:
    """Consecutive batches of an epoch, read piece by piece; each piece is claimed by one thread.

    `rows` are those of all batches, `sizes` the samples of each. `slot` is the memory of all batches, from
    `divide` on; the thread that finishes the group takes it away. `error` is one while a piece was read.
    `result` receives the batches, or an error, when the group is finished.
    """

    def __init__(self, rows: Rows, sizes: list[int]) -> None:
        self.rows, self.sizes = rows, sizes
        self.slot: Batch = {}
        self.error: BaseException | None = None
        self.result: SimpleQueue[Filled | BaseException] = SimpleQueue()
        # queues without locks, so that Ctrl-C at any moment leaves none held
        self._unclaimed: deque[slice] = deque([slice(0, sum(sizes))])
        self._unread = [0]  # as many numbers from 0 on as there are pieces

    def claim(self) -> slice | None:
        """Return a piece, as a slice of `rows`, that no other thread reads; None if there is none.

        The first piece is the whole group, without memory yet: see `divide`.
        """
        with suppress(IndexError):
            return self._unclaimed.popleft()
        return None

    @property
    def unclaimed(self) -> int:
        """Number of pieces that no thread has claimed yet."""
        return len(self._unclaimed)

    def divide(self, slot: Batch, piece_rows: int) -> slice:
        """Set the memory, and divide the group evenly; the caller reads the piece that is returned."""
        self.slot, count = slot, sum(self.sizes)
        pieces = -(-count // piece_rows) or 1
        first, *others = (
            slice(count * number // pieces, count * (number + 1) // pieces) for number in range(pieces)
        )
        self._unread = list(range(pieces))
        self._unclaimed.extend(others)
        return first

    def part(self, piece: slice) -> tuple[Rows, Batch]:
        """Return the rows of a piece and their memory."""
        rows, out = self.rows, {name: array[piece] for name, array in self.slot.items()}
        if isinstance(rows, slice):
            return slice(rows.start + piece.start, rows.start + piece.stop), out
        return rows[piece], out

    def is_last(self) -> bool:
        """Count a piece as read; return True if it was the last one. Called once for each piece."""
        return self._unread.pop() == 0


def grouped(batches: Sequence[Rows], sizes: Iterator[int]) -> Iterator[tuple[Rows, list[int]]]:
    """Yield the batches in groups of these sizes, as `_joined`; rows are drawn as far as they are needed."""
    first = 0
    while first < len(batches):
        last = min(first + next(sizes), len(batches))
        yield _joined(batches, first, last)
        first = last


def _joined(batches: Sequence[Rows], first: int, last: int) -> tuple[Rows, list[int]]:
    """Return the rows of the batches `first` to `last` - 1 in one piece, and the samples of each."""
    if isinstance(batches, Batches) and batches.are_adjacent:
        return batches.joined(first, last)
    group = [batches[number] for number in range(first, last)]
    return joined(group), [row_count(rows) for rows in group]


def joined(group: list[Rows]) -> Rows:
    """Return the rows of batches in one piece."""
    first, last = group[0], group[-1]
    if isinstance(first, slice) and isinstance(last, slice):
        whole = slice(first.start, last.stop)
        if row_count(whole) == sum(map(row_count, group)):
            return whole
    return np.concatenate([index_of(rows) for rows in group])


Transform = Callable[[Tensors], Tensors]
TENSORS = (torch.Tensor, Ragged, *COLLATED)  # types of a batch's fields
DECODED_GROUPS = 4  # groups are this much larger for random rows of encoded blocks
GROUP_BYTES = 8 << 20  # small batches share a slot of this size: each group costs 0.1 ms of Python code
PIECE_BYTES = 8 << 20  # of a larger batch, read by one thread, so that few large slots are in use at a time
GROWTH = 8  # of the first groups that are copied from memory
LEAST_SHARE = 2  # such groups shrink to this part at the end of an epoch, so that all threads end together


class Pipeline(BatchDelivery):
    """Threads that read groups of batches into reused memory."""

    def __init__(
        self,
        backend: Backend,
        schema: Schema,
        order: Order,
        transfer: Transfer,
        transform: Transform | None = None,
        stages: Stages = UNTIMED,
    ) -> None:
        super().__init__(backend)
        self._transfer, self._transform = transfer, transform
        self._read = stages.timed_in_background(backend.read)
        self._read_batch = stages.timed_in_background(backend.batch)
        # past the page cache a window is read as a whole, so that no block is read twice
        self._window = order.window_batches if backend.direct and order.kind == "block" else None
        batch_bytes = min(order.batch_size, schema.samples) * schema.sample_bytes
        # a block is decoded for each group with rows in it, which in random order is nearly every group
        group_bytes = GROUP_BYTES * (DECODED_GROUPS if backend.decodes and order.kind == "random" else 1)
        # each sample of a parallel reader takes as long as a group's Python code, or longer
        self._most = self._window or (1 if backend.parallel else max(1, group_bytes // batch_bytes))
        self._ahead = 1 if self._window else backend.threads + 1
        self.read_ahead = self._most * (self._ahead + 1)
        # the first batch has the disk to itself, unless it must be decoded
        self._first_alone = backend.cold and not backend.decodes and not self._window
        self._first_at_once = not backend.cold  # a warm first batch is there before others can be submitted
        samples = min(self._most * order.batch_size, schema.samples)
        self._helps = backend.in_memory and transform is None and backend.threads > 1
        self._piece_rows = max(1, PIECE_BYTES // schema.sample_bytes) if backend.in_memory else samples
        self._schema = schema
        self._workers = self._new_workers()
        try:
            self._memory = GroupMemory(schema, samples, self._most, self._ahead + 2, transfer)
        except BaseException:
            self._workers.close()
            backend.close()
            raise

    def run(self, batches: Sequence[Rows], start: int = 0) -> Generator[Tensors, None, None]:
        """Yield an epoch's batches in order; if it is not completed, the threads end."""
        self.completed = False
        process, pending = os.getpid(), deque[BatchGroup]()
        if not self._workers.is_alive():
            self._workers = self._new_workers()
        workers = self._workers
        end = partial(self._end, workers, process)
        # a thread that outlives the interpreter is killed inside torch, which aborts the process
        atexit.register(end)
        try:
            workers.start()
            remaining = batches[start:] if start else batches
            self._backend.start(remaining)
            for number, joint in enumerate(grouped(remaining, self._sizes(start, len(remaining)))):
                group = BatchGroup(*joint)
                pending.append(group)
                if number or not self._helps:
                    submitted = workers.submit(group)
                    if not number and self._first_alone:
                        submitted.wait()
                while len(pending) > self._limit(number):
                    yield from self._hand_over(pending, process)
            while pending:
                yield from self._hand_over(pending, process)
            self.completed = True
        finally:
            atexit.unregister(end)
            end()

    def _limit(self, number: int) -> int:
        """Return the most groups that wait for the consumer when group `number` has been added."""
        if not number and self._helps:
            return 0
        return 1 if number == 1 and self._first_at_once else self._ahead

    def close(self) -> None:
        """End the threads, close the backend, and release all memory except that of batches in use."""
        self._workers.close()
        self._backend.close()
        self._memory.close()

    def _end(self, workers: WorkerPool[BatchGroup, None], process: int) -> None:
        if os.getpid() == process:  # a forked child has none of these threads
            self._backend.stop()
            if not self.completed:
                workers.close()

    def _new_workers(self) -> WorkerPool[BatchGroup, None]:
        return WorkerPool(self._read_group, self._backend.threads - self._helps)

    def _sizes(self, start: int, count: int) -> Iterator[int]:
        """Yield the batches per group: whole windows, or else one first, so that it comes soon."""
        if self._window:
            yield self._window - start % self._window
            yield from repeat(self._window)
        memory, size, left = self._backend.in_memory, 1, count
        least = max(1, self._most // LEAST_SHARE) if memory else self._most
        while True:
            yield size
            left -= size
            share = left // (2 * self._backend.threads)
            size = min((GROWTH if memory else 2) * size, self._most, max(share, least))

    def _hand_over(self, pending: deque[BatchGroup], process: int) -> Iterator[Tensors]:
        """Yield the batches of the first pending group, which is removed."""
        refuse_child(process)
        result = self._help(pending).get()
        if isinstance(result, BaseException):
            raise result
        batches, failed = result
        for batch in batches:
            self._transfer.hand_over(batch)
            yield batch
        if failed is not None:
            raise failed

    def _help(self, pending: deque[BatchGroup]) -> SimpleQueue[Filled | BaseException]:
        """Remove the first group; until it is finished, read pieces in the consumer's thread."""
        due = pending[0].result
        for group in pending if self._helps else ():
            while due.empty() and self._read_piece(group):
                pass
        pending.popleft()
        return due

    def _read_group(self, group: BatchGroup) -> None:
        """Read all pieces that no other thread reads; runs in a thread."""
        while self._read_piece(group):
            pass

    def _read_piece(self, group: BatchGroup) -> bool:
        """Read the next piece of a group; return False if no piece is left."""
        piece = group.claim()
        if piece is None:
            return False
        try:
            if not group.slot and self._schema.ragged and not self._backend.knows_lengths:
                group.divide(self._copied(group), sum(group.sizes))
            else:
                piece = piece if group.slot else self._divided(group)
                self._read(*group.part(piece))
        except BaseException as error:
            group.error = error
            if isinstance(error, KeyboardInterrupt):  # in the consumer's thread
                raise
        finally:
            if group.is_last():
                self._finish(group)
        return True

    def _divided(self, group: BatchGroup) -> slice:
        """Divide a group into pieces, which idle threads may read as well; return the first."""
        first = group.divide(self._take(group), self._piece_rows)
        for _ in range(min(group.unclaimed, self._backend.threads)):
            self._workers.submit(group)
        return first

    def _finish(self, group: BatchGroup) -> None:
        """Make the batches of a group that was read, and start their transfer."""
        slot, group.slot = group.slot, {}
        try:
            group.result.put(group.error or self._made(slot, group.sizes))
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            group.result.put(error)

    def _made(self, slot: Batch, sizes: list[int]) -> Filled:
        group = self._memory.filled(slot, sizes)
        if self._transform is None:
            return group.split(self._transfer.send([group.tensors])[0]), None
        made, failed = self._transformed(group.split(group.tensors))
        return self._transfer.send(made), failed

    def _take(self, group: BatchGroup) -> Batch:
        """Return memory for a group's samples, with the offsets of ragged fields."""
        offsets = {f.name: self._backend.offsets(f.name, group.rows) for f in self._schema.ragged}
        begins = {f.name: self._backend.page_offset(f.name, group.rows) for f in self._schema.fields}
        return self._memory.take(sum(group.sizes), offsets, begins)

    def _copied(self, group: BatchGroup) -> Batch:
        """Return memory with a group's samples, of which the format's reader alone knows the lengths."""
        batch: dict[str, Any] = self._read_batch(group.rows)
        offsets = {f.name: batch[f.name].offsets for f in self._schema.ragged}
        slot: dict[str, Any] = self._memory.take(sum(group.sizes), offsets, {})
        for f in self._schema.fields:
            values, read = (getattr(one[f.name], "values", one[f.name]) for one in (slot, batch))
            values[...] = read
        return slot

    def _transformed(self, batches: list[Tensors]) -> Filled:
        """Transform batches up to the first that fails; return them and its error."""
        assert self._transform is not None
        made: list[Tensors] = []
        try:
            for batch in batches:
                made.append(_checked(self._transform(batch)))  # noqa: PERF401 - keep those before a failure
        except Exception as error:  # noqa: BLE001 - an error of the user's code, raised when its batch is due
            return made, error
        return made, None


def _checked(made: Tensors) -> Tensors:
    if not isinstance(made, dict) or not all(isinstance(value, TENSORS) for value in made.values()):
        problem = "transform returned a wrong type"
        raise LoaderFailed(problem, "invalid-transform", expected="a dict of tensors", found=_kind(made))
    return made


def _kind(made: object) -> str:
    if not isinstance(made, dict):
        return type(made).__name__
    wrong = next(key for key, value in made.items() if not isinstance(value, TENSORS))
    return f"a dict whose {wrong!r} is {type(made[wrong]).__name__}"
