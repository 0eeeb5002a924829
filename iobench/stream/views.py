"""Deliver batches in stored order as views: slices of a private copy-on-write map, so that no row is copied.

The map is another one in each epoch, so that what a consumer writes into a batch is in that batch alone.
Cold files are read ahead into the page cache, where the next epoch finds them.
"""

from __future__ import annotations

import atexit
import os
from bisect import bisect
from collections.abc import Generator, Sequence

import numpy as np
import torch

from iobench.formats import Array, Rows, Schema
from iobench.host.maps import GuardedMap
from iobench.loading.order import Order, row_count
from iobench.loading.tensors import tensor_of, tensors_of
from iobench.stream.addresses import RowAddresses
from iobench.stream.backend import CachedBackend
from iobench.stream.delivery import BatchDelivery, refuse_child
from iobench.stream.group_memory import GroupMemory
from iobench.stream.transfer import Tensors, Transfer

CHECK_BYTES = 32 << 20  # of batches, after which the files are looked at again
SLOTS = 2  # of batches whose rows lie apart
LEAST_BATCHES = 4  # per segment: of shorter ones, too many batches would be copied, by one thread

Segments = dict[str, list[tuple[int, int]]]  # first row and position of each run of adjacent rows, by field


def segments_of(addresses: RowAddresses, schema: Schema, order: Order) -> Segments | None:
    """Return the runs of adjacent rows of each field; None if batches are better copied."""
    most = max(1, schema.samples // (order.batch_size * LEAST_BATCHES))
    segments: Segments = {}
    for f in schema.fields:
        runs = addresses.segments(f.name, most)
        if runs is None or any(position % np.dtype(f.dtype).itemsize for _, position in runs):
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
        self._firsts = {name: [row for row, _ in runs] for name, runs in segments.items()}
        self._check_every = max(1, CHECK_BYTES // (batch_size * schema.sample_bytes))
        self._memory = GroupMemory(schema, batch_size, 1, SLOTS, Transfer())

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
        fields = {}
        for f in self._schema.fields:
            tensors, ends = [], [*self._firsts[f.name][1:], self._schema.samples]
            for (row, position), end in zip(self._segments[f.name], ends, strict=True):
                stored = memory[position : position + (end - row) * f.sample_bytes]
                tensors.append(tensor_of(stored.view(f.dtype).reshape(end - row, *f.shape)))
            fields[f.name] = tensors
        return fields

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
        """Return a copy of these rows in reused memory."""
        slot = self._memory.take(row_count(rows), {}, {})
        self._cached.read(rows, slot)
        return tensors_of(slot)
