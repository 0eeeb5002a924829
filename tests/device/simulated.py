"""The simulated devices behind iobench's device interface."""

from contextlib import contextmanager

import backend
import torch
from backend import SimEvent, SimStream

from iobench.host.device import Accelerator


class Simulated(Accelerator):
    """One of the machine's devices."""

    @property
    def machine(self):
        return backend.machine()

    @property
    def index(self):
        return self.torch.index

    def use(self):
        self.machine.device = self.index

    @contextmanager
    def current(self):
        before, self.machine.device = self.machine.device, self.index
        try:
            yield
        finally:
            self.machine.device = before

    def synchronize(self):
        self.machine.synchronize(self.index)

    def memory(self, count):
        with self.current():
            self.machine.woken[self.machine.device] += 1
            return self.machine.pinned.allocate(count)

    def peak_bytes(self):
        pool = self.machine.pools[self.index]
        return pool.most_allocated, pool.most_reserved

    def reset_peak(self):
        self.machine.pools[self.index].reset_peak()

    def empty_caches(self):
        self.machine.pools[self.index].empty()

    def allocations(self):
        return self.machine.pools[self.index].allocations

    def identity(self):
        return {"name": "simulated", "memory_bytes": 1 << 30, "driver": "none"}

    def current_stream(self):
        return SimStream(self.machine.stream_of(self.index))

    def event(self):
        return SimEvent()

    def timing_event(self):
        return SimEvent(timed=True)

    def _new_stream(self):
        return SimStream(self.machine.new_stream(self.index))


def device(index):
    """Return the simulated device of that number as torch.device."""
    return torch.device(backend.NAME, index)
