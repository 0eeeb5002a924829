"""Pipeline: threads read batches ahead of their consumer and hand them over in order.

Rows in memory are copied by the consumer's thread as well, while it would wait: to be woken by another thread
takes as long as to copy a small batch.
"""

from __future__ import annotations

import atexit
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from itertools import repeat
from queue import SimpleQueue
from typing import Any

import torch

from iobench.base.errors import LoaderFailed
from iobench.formats import Batch, Ragged, Rows, Schema
from iobench.loading.collate import COLLATED
from iobench.loading.order import Order
from iobench.loading.stages import UNTIMED, Stages
from iobench.stream.backend import Backend
from iobench.stream.batch_group import BatchGroup, Filled, grouped
from iobench.stream.group_memory import GroupMemory
from iobench.stream.transfer import Tensors, Transfer
from iobench.stream.worker_pool import WorkerPool

Transform = Callable[[Tensors], Tensors]
TENSORS = (torch.Tensor, Ragged, *COLLATED)  # types of a batch's fields
DECODED_GROUPS = 4  # groups are this much larger for random rows of encoded blocks
GROUP_BYTES = 8 << 20  # small batches share a slot of this size: each group costs 0.1 ms of Python code
PIECE_BYTES = 8 << 20  # of a larger batch, read by one thread, so that few large slots are in use at a time
GROWTH = 8  # of the first groups that are copied from memory
LEAST_SHARE = 2  # such groups shrink to this part at the end of an epoch, so that all threads end together


class Pipeline:
    """A backend opened for epochs of one order, with the threads that read it and the memory they fill."""

    def __init__(
        self,
        backend: Backend,
        schema: Schema,
        order: Order,
        transfer: Transfer,
        transform: Transform | None = None,
        stages: Stages = UNTIMED,
    ) -> None:
        self._backend, self._transfer, self._transform = backend, transfer, transform
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
        # the first batch has the disk to itself, unless it must be decoded
        self._first_alone = backend.cold and not backend.decodes and not self._window
        self._first_at_once = not backend.cold  # a warm first batch is there before others can be submitted
        samples = min(self._most * order.batch_size, schema.samples)
        self._helps = backend.in_memory and transform is None and backend.threads > 1
        self._piece_rows = max(1, PIECE_BYTES // schema.sample_bytes) if backend.in_memory else samples
        self._schema = schema
        self.completed = False  # True if the last epoch came to its end
        self._workers = self._new_workers()
        try:
            self._memory = GroupMemory(schema, samples, self._most, self._ahead + 2, transfer)
        except BaseException:
            self._workers.close()
            backend.close()
            raise

    def run(self, batches: Sequence[Rows], start: int = 0) -> Generator[Tensors, None, None]:
        """Yield an epoch's batches in order, from number `start` on; if it is not completed, the threads end.

        An error in a thread is raised when its batch is due. Raises LoaderFailed in a forked child.
        """
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
            for number, group in enumerate(grouped(remaining, self._sizes(start, len(remaining)))):
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

    def set_epoch(self, number: int, seed: int) -> None:
        """Set the epoch and the seed that random parts of samples follow from; not while an epoch runs."""
        epoch = self._backend.reader.epoch
        epoch.number, epoch.seed = number, seed

    def is_current(self) -> bool:
        """Return True if the files are those that were opened, and as much in the page cache."""
        return self._backend.is_current()

    @property
    def read_ahead(self) -> int:
        """Most batches that are read ahead of the consumer."""
        return self._most * (self._ahead + 1)

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
        if os.getpid() != process:
            raise LoaderFailed(
                f"an epoch of process {process} cannot continue in its forked child {os.getpid()}, "
                "which has none of its threads",
                kind="forked",
                hint="start a new epoch in the child",
            )
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
        raise LoaderFailed(
            "transform returned a wrong type",
            kind="invalid-transform",
            expected="a dict of tensors",
            found=_kind(made),
        )
    return made


def _kind(made: object) -> str:
    if not isinstance(made, dict):
        return type(made).__name__
    wrong = next(key for key, value in made.items() if not isinstance(value, TENSORS))
    return f"a dict whose {wrong!r} is {type(made[wrong]).__name__}"
