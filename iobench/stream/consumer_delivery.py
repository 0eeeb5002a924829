"""Deliver batches in the consumer's own thread: views of the files, or copies gathered when a batch is due.

Batches in stored order are slices of a private copy-on-write map, so that no row is copied. The map is
another one in each epoch, so that what a consumer writes into a batch is in that batch alone. Cold files are
read ahead into the page cache, where the next epoch finds them.

Other rows in memory are gathered. What another thread gathered lies in another core's cache, which a consumer
that touches it waits for. So the consumer's thread gathers, by the threads of torch that will work on the
batch, into the memory that was released last. Only while the consumer sleeps, as it does while a device
computes, a thread gathers ahead. Where other work keeps the cores busy, torch's threads wait for each other
at every gather, and one alone is many times as fast. Now and then the way that is not in use is tried, and
the faster one stays.
"""

from __future__ import annotations

import atexit
import math
import os
import time
from bisect import bisect
from collections.abc import Generator, Sequence
from functools import partial
from itertools import accumulate, chain, repeat

import numpy as np
import torch

from iobench.formats import Array, Rows, Schema, index_of
from iobench.host.maps import GuardedMap
from iobench.loading.order import Order, row_count
from iobench.loading.tensors import tensor_of, tensors_of
from iobench.stream.addresses import RowAddresses
from iobench.stream.backend import CachedBackend
from iobench.stream.cached_reader import CachedReader
from iobench.stream.delivery import BatchDelivery, refuse_child
from iobench.stream.group_memory import GroupMemory
from iobench.stream.pipeline import grouped
from iobench.stream.transfer import Tensors, Transfer
from iobench.stream.worker_pool import Pending, WorkerPool

CHECK_BYTES = 32 << 20  # of batches, after which the files are looked at again
VIEW_SLOTS = 2  # of batches whose rows lie apart
LEAST_BATCHES = 4  # per segment: of shorter ones, too many batches would be copied, by one thread

Segments = dict[str, list[tuple[int, int]]]  # position and rows of each run of adjacent rows, by field


def segments_of(addresses: RowAddresses, schema: Schema, order: Order) -> Segments | None:
    """Return the runs of adjacent rows of each field; None if batches are better copied."""
    most = max(1, schema.samples // (order.batch_size * LEAST_BATCHES))
    segments: Segments = {}
    for f in schema.fields:
        runs = addresses.runs(f.name, 0, schema.samples, most)
        if runs is None or any(position % np.dtype(f.dtype).itemsize for position, _ in runs):
            return None
        segments[f.name] = runs
    return segments


class ViewDelivery(BatchDelivery):
    """Slices of maps of the files, made in the consumer's thread.

    If a file is cut short while a batch is held, what was lost becomes zeros, and the next batch raises the
    error. Batches whose rows lie apart are copied. All stay valid when the delivery is closed.
    """

    def __init__(
        self,
        backend: CachedBackend,
        addresses: RowAddresses,
        segments: Segments,
        schema: Schema,
        order: Order,
    ) -> None:
        super().__init__(backend)
        self._cached, self._addresses, self._schema, self._segments = backend, addresses, schema, segments
        batch_size = order.batch_size
        self._firsts = {
            name: list(accumulate((count for _, count in runs[:-1]), initial=0))
            for name, runs in segments.items()
        }
        self._check_every = max(1, CHECK_BYTES // (batch_size * schema.sample_bytes))
        self._memory = GroupMemory(schema, batch_size, 1, VIEW_SLOTS, Transfer())

    def run(self, batches: Sequence[Rows], start: int = 0) -> Generator[Tensors, None, None]:
        """Yield an epoch's batches in order; see `BatchDelivery.run`."""
        self.completed, process, cached = False, os.getpid(), self._cached
        remaining = batches[start:] if start else batches
        fields: dict[str, list[torch.Tensor]] = {}
        atexit.register(cached.stop)
        try:
            with cached.checked():
                mapped = GuardedMap(self._addresses.files, self._addresses.sizes, private=True)
            guard = mapped.guard
            fields.update(self._runs(mapped.bytes))
            del mapped
            cached.start(remaining)
            for number, rows in enumerate(remaining):
                refuse_child(process)
                if cached.cold or guard.lost or number % self._check_every == 0:
                    with cached.checked():
                        guard.check()
                        cached.wait_for(rows)
                yield self._views(rows, fields) or self._copied(rows)
            with cached.checked():
                guard.check()
            self.completed = True
        finally:
            fields.clear()  # which an error's frames would keep
            atexit.unregister(cached.stop)
            if os.getpid() == process:
                cached.stop()

    def close(self) -> None:
        """Close the files and release all memory except that of batches in use."""
        super().close()
        self._memory.close()

    def _runs(self, memory: Array) -> dict[str, list[torch.Tensor]]:
        """Return each field's runs of adjacent rows as tensors over a map."""
        return {
            f.name: [
                tensor_of(memory[low : low + count * f.sample_bytes].view(f.dtype).reshape(count, *f.shape))
                for low, count in self._segments[f.name]
            ]
            for f in self._schema.fields
        }

    def _views(self, rows: Rows, fields: dict[str, list[torch.Tensor]]) -> Tensors | None:
        """Return slices of the runs in which these rows lie; None if they lie in more than one."""
        if not isinstance(rows, slice):
            return None
        batch = {}
        for name, runs in fields.items():
            firsts = self._firsts[name]
            number = bisect(firsts, rows.start) - 1 if len(firsts) > 1 else 0
            first, run = firsts[number], runs[number]
            if rows.stop - first > len(run):
                return None
            batch[name] = run[rows.start - first : rows.stop - first]
        return batch

    def _copied(self, rows: Rows) -> Tensors:
        slot = self._memory.take(row_count(rows), {}, {})
        self._cached.read(rows, slot)
        return tensors_of(slot)


GROUP_BYTES = 1 << 20  # gathered together: fits into a core's cache, and takes longer than the code around it
SLOTS = 4  # free ones that are kept
SLEEP_NS = 100_000  # of the consumer, for which it is worth waking a thread
TRIES = 4  # groups in a row by the other way: the first wakes torch's threads
WORSE = 4  # times the present way's cost, from which on one group is enough
TRY_EVERY = 256  # groups, and more the slower the other way was: to try it takes 1 % of the time

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
        # whether the consumer's thread gathers alone or torch's threads do; ns per row, and those of a trial
        self._alone, self._cost, self._trial = False, 0.0, math.inf
        self._until_try = 2 * TRIES  # groups, the last ones of which are the trial

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
        return WorkerPool(partial(self._gathered, alone=True, look=True), 1)

    def _gathered_now(self, group: Group, number: int) -> list[Tensors]:
        """Gather by the way that took less time lately; now and then try the other one for some groups."""
        self._until_try -= 1
        tries = self._until_try < TRIES
        alone = self._alone != tries
        since = time.perf_counter_ns()
        made = self._gathered(group, alone or os.getpid() != IMPORTED_BY, number % self._check_every == 0)
        cost = (time.perf_counter_ns() - since) / sum(group[1])
        if not tries:
            self._cost = min(cost, (3 * self._cost + cost) / 4) if self._cost else cost
            return made
        self._trial = min(self._trial, cost)
        if not self._until_try or cost > WORSE * self._cost:
            self._until_try = TRIES + int(TRY_EVERY * max(1, self._trial / self._cost))
            if self._trial < self._cost:
                self._alone, self._cost = alone, self._trial
            self._trial = math.inf
        return made

    def _gathered(self, group: Group, alone: bool, look: bool) -> list[Tensors]:
        """Return the batches of a group, gathered in this thread `alone`; `look` at the files afterwards."""
        rows, sizes = group
        slot = self._memory.take(sum(sizes), {}, {})
        with self._cached.checked(look):
            self._reader.gather(index_of(rows), slot, alone)
        filled = self._memory.filled(slot, sizes)
        return filled.split(filled.tensors)
