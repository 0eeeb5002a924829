"""Deliver rows in memory as copies that the consumer's own thread gathers when a batch is due.

What another thread gathered lies in another core's cache, which a consumer that touches it waits for. So the
consumer's thread gathers, by the threads of torch that will work on the batch, into the memory that was
released last. Only while the consumer sleeps, as it does while a device computes, a thread gathers ahead.

Where other work keeps the cores busy, torch's threads wait for each other at every gather, and one alone is
many times as fast. Now and then the way that is not in use is tried, and the faster one stays.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Generator, Sequence
from contextlib import nullcontext
from itertools import chain, repeat

from iobench.formats import Rows, Schema, index_of
from iobench.loading.order import Order
from iobench.stream.backend import CachedBackend
from iobench.stream.cached_reader import CachedReader
from iobench.stream.delivery import BatchDelivery, refuse_child
from iobench.stream.gather import one_thread
from iobench.stream.group_memory import GroupMemory
from iobench.stream.pipeline import grouped
from iobench.stream.transfer import Tensors, Transfer
from iobench.stream.worker_pool import Pending, WorkerPool

GROUP_BYTES = 1 << 20  # gathered together: fits into a core's cache, and takes longer than the code around it
SLOTS = 4  # free ones that are kept
CHECK_BYTES = 32 << 20  # of batches, after which the files are looked at again
SLEEP_NS = 100_000  # of the consumer, for which it is worth waking a thread
TRY_EVERY = 64  # groups, and more the slower the other way was: to try it takes 1 % of the time

IMPORTED_BY = os.getpid()  # OpenMP's threads are those of this process; a forked child would wait for them

Group = tuple[Rows, list[int]]  # rows of consecutive batches, and the samples of each batch


class GatherDelivery(BatchDelivery):
    """Rows of maps of the files, gathered by the consumer's thread, or ahead of it while it sleeps."""

    def __init__(self, backend: CachedBackend, reader: CachedReader, schema: Schema, order: Order) -> None:
        super().__init__(backend)
        self._cached, self._reader = backend, reader
        batch_bytes = min(order.batch_size, schema.samples) * schema.sample_bytes
        self._most = max(1, GROUP_BYTES // batch_bytes)
        self.read_ahead = 2 * self._most
        self._check_every = max(1, CHECK_BYTES // (batch_bytes * self._most))  # groups
        samples = min(self._most * order.batch_size, schema.samples)
        self._memory = GroupMemory(schema, samples, self._most, SLOTS, Transfer())
        self._worker = self._new_worker()
        # ns per row of the ways to gather: by torch's threads, and by the consumer's thread alone
        self._costs, self._until_try = [0.0, 0.0], 4

    def run(self, batches: Sequence[Rows], start: int = 0) -> Generator[Tensors, None, None]:
        """Yield an epoch's batches in order; if it is not completed, the thread ends."""
        self.completed, process = False, os.getpid()
        if not self._worker.is_alive():
            self._worker = self._new_worker()
        worker = self._worker
        groups = grouped(batches[start:] if start else batches, chain((1,), repeat(self._most)))
        ahead: Pending[list[Tensors]] | None = None
        atexit.register(worker.close)
        try:
            worker.start()
            due, number, sleeps = next(groups, None), 0, False
            while due is not None:
                made = ahead.result() if ahead else self._gathered_now(due, number)
                number, ahead = number + 1, None
                if sleeps and (due := next(groups, None)) is not None:
                    ahead = worker.submit(due)
                since, worked = time.perf_counter_ns(), time.thread_time_ns()
                for batch in made:
                    refuse_child(process)
                    yield batch
                    del batch
                del made  # so that its memory is the next to be used
                away = time.perf_counter_ns() - since
                worked = time.thread_time_ns() - worked
                due = due if ahead else next(groups, None)
                sleeps = away > SLEEP_NS and worked < away // 2
            self.completed = True
        finally:
            atexit.unregister(worker.close)
            if os.getpid() == process and not self.completed:
                worker.close()

    def close(self) -> None:
        """End the thread, close the files, and release all memory except that of batches in use."""
        self._worker.close()
        super().close()
        self._memory.close()

    def _new_worker(self) -> WorkerPool[Group, list[Tensors]]:
        return WorkerPool(self._gathered_ahead, 1)

    def _gathered_ahead(self, group: Group) -> list[Tensors]:
        with one_thread():
            return self._gathered(group, look=True)

    def _gathered_now(self, group: Group, number: int) -> list[Tensors]:
        """Gather by the way that took less time lately, or try the other one."""
        alone = self._costs[1] < self._costs[0]
        self._until_try -= 1
        if tries := self._until_try <= 0:
            alone = not alone
        since = time.perf_counter_ns()
        with one_thread() if alone or os.getpid() != IMPORTED_BY else nullcontext():
            made = self._gathered(group, look=number % self._check_every == 0)
        cost, before = (time.perf_counter_ns() - since) / sum(group[1]), self._costs[alone]
        self._costs[alone] = min(cost, (3 * before + cost) / 4) if before else cost
        if tries:
            self._until_try = int(TRY_EVERY * max(1, cost / self._costs[not alone]))
        return made

    def _gathered(self, group: Group, look: bool) -> list[Tensors]:
        """Return the batches of a group; `look` at the files afterwards."""
        rows, sizes = group
        slot = self._memory.take(sum(sizes), {}, {})
        with self._cached.checked(look):
            self._reader.gather(index_of(rows), slot)
        filled = self._memory.filled(slot, sizes)
        return filled.split(filled.tensors)
