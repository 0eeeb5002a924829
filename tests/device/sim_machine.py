"""Two simulated devices with late streams, poisoned memory and their own clock.

Streams run as late as a schedule allows, freed memory is poisoned and reused at once, pinned memory is
checked, and only the devices' work advances the clock. The module does not depend on torch.accelerator or
iobench: `backend` makes a torch backend of it, and `simulated` a device of iobench.
"""

import ctypes
import threading
import weakref
from collections import Counter, defaultdict, deque
from functools import partial
from random import Random

import numpy as np
import torch

POISON = 0xA5
DEFAULT = 0  # number of each device's default stream, the consumer's
FINEST = 512  # bytes: device memory comes in multiples of it
PAGE = 4096
DEVICES = 2


class Schedule:
    """Streams that run by themselves; the work of the others runs when it is awaited."""

    def __init__(self, default, side, seed=None):
        self.default, self.side, self.random = default, side, Random(seed) if seed is not None else None

    def steps(self, stream):
        """Return the number of operations that a stream may do now without being awaited."""
        prompt = self.default if stream.number == DEFAULT else self.side
        if self.random is not None:
            return self.random.choice((0, 0, 1, 3))
        return 1 << 30 if prompt else 0


SCHEDULES = {
    "everything late": lambda: Schedule(default=False, side=False),
    "copies late": lambda: Schedule(default=True, side=False),
    "consumer late": lambda: Schedule(default=False, side=True),
    "out of step": lambda: Schedule(default=False, side=False, seed=0),
}


class Operation:
    """Work of a stream: a function and its duration, or an event to wait for."""

    def __init__(self, asked_at, run=None, seconds=0.0, after=None):
        self.asked_at, self.run, self.seconds, self.after = asked_at, run, seconds, after


class Moment:
    """Recording of an event: a position in a stream, and the time at which the stream reached it."""

    def __init__(self, stream, position):
        self.stream, self.position, self.at = stream, position, None


class Stream:
    """Operations of one device, run in the order of their submission."""

    def __init__(self, machine, device, number):
        self.machine, self.device, self.number = machine, device, number
        self.waiting, self.done, self.clock = deque(), 0, 0.0

    @property
    def asked(self):
        return self.done + len(self.waiting)

    def ask(self, run=None, seconds=0.0, after=None):
        with self.machine.lock:
            self.waiting.append(Operation(self.machine.now, run, seconds, after))
            self.machine.get_on()

    def record(self):
        with self.machine.lock:
            moment = Moment(self, self.asked + 1)
            self.ask(lambda: setattr(moment, "at", self.clock))
            return moment

    def step(self, forced):
        """Do the next operation, unless it waits for an event that is not forced to happen."""
        operation = self.waiting[0]
        if operation.after is not None and operation.after.at is None:
            if not forced:
                return False
            operation.after.stream.run_to(operation.after.position)
        self.waiting.popleft()
        after = operation.after.at if operation.after is not None else 0.0
        self.clock = max(self.clock, operation.asked_at, after) + operation.seconds
        self.done += 1
        if operation.run is not None:
            operation.run()
        return True

    def run_to(self, position):
        with self.machine.lock:
            while self.done < position:
                self.step(forced=True)

    def synchronize(self):
        """Run the stream to its end, and advance the waiting host's clock to it."""
        with self.machine.lock:
            self.run_to(self.asked)
            self.machine.now = max(self.machine.now, self.clock)


class Block:
    """Device memory; free for reuse in its stream as soon as no reference is left."""

    def __init__(self, pool, stream, memory):
        self.pool, self.stream, self.memory, self.users = pool, stream, memory, set()

    def __del__(self):  # wherever the last reference goes: the pool looks after it later
        self.pool.let_go.append((self.stream, self.memory, self.users))


class Pool:
    """One device's memory, cached by stream like that of torch's caching allocator."""

    def __init__(self, machine):
        self.machine, self.let_go = machine, deque()
        self.free = defaultdict(list)  # (stream, bytes) -> memory
        self.held_back = []  # freed, but other streams were not through with it
        self.allocated = self.reserved = self.most_allocated = self.most_reserved = self.allocations = 0

    def allocate(self, count, stream):
        """Return a block for a stream, one freed there if there is one of the size; poison it in its turn."""
        with self.machine.lock:
            size = -(-max(count, 1) // FINEST) * FINEST
            self.collect()
            if self.free[stream, size]:
                memory = self.free[stream, size].pop()
                if stream.waiting:  # what was asked before may read it still
                    stream.ask(lambda: memory.fill_(POISON))
                else:
                    memory.fill_(POISON)
            else:
                memory = torch.full((size,), POISON, dtype=torch.uint8)
                self.allocations += 1
                self.reserved += size
            self.allocated += size
            self.most_allocated = max(self.most_allocated, self.allocated)
            self.most_reserved = max(self.most_reserved, self.reserved)
            return Block(self, stream, memory)

    def collect(self):
        """Collect freed blocks; blocks used by other streams follow when these have finished with them."""
        while self.let_go:
            stream, memory, users = self.let_go.popleft()
            self.allocated -= len(memory)
            self.held_back.append((stream, memory, [user.record() for user in users]))
        still = []
        for stream, memory, moments in self.held_back:
            if all(moment.at is not None for moment in moments):
                self.free[stream, len(memory)].append(memory)
            else:
                still.append((stream, memory, moments))
        self.held_back = still

    def empty(self):
        """Release unused memory after all pending work, as torch does."""
        with self.machine.lock:
            self.collect()
            for _, _, moments in self.held_back:
                for moment in moments:
                    moment.stream.run_to(moment.position)
            self.collect()
            self.reserved -= sum(size * len(blocks) for (_, size), blocks in self.free.items())
            self.free.clear()

    def reset_peak(self):
        with self.machine.lock:
            self.collect()
            self.most_allocated, self.most_reserved = self.allocated, self.reserved


class Pinned:
    """Pinned host memory in powers of two, never unmapped, because copies know addresses only.

    Unreferenced memory is poisoned at once and reused. Memory pinned `by_torch` is kept until the copies
    that torch knows of have ended.
    """

    def __init__(self, machine):
        self.machine, self.owned, self.free = machine, {}, defaultdict(list)
        self.refuse = False
        self.bytes = 0

    def allocate(self, count, by_torch=False):
        if self.refuse:
            raise RuntimeError("CUDA error: out of memory (made up)\nand more lines of it")
        size = 1 << (count - 1).bit_length() if count else 1
        with self.machine.lock:
            if self.free[size]:
                address, memory = self.free[size].pop()
            else:
                memory = np.full(size + PAGE, POISON, np.uint8)
                address = memory.ctypes.data + (-memory.ctypes.data) % PAGE
                self.bytes += size
            self.owned[address] = (size, by_torch)
        held = memory[address - memory.ctypes.data :][:count]
        keeper = _Keeper(held.__array_interface__)
        weakref.finalize(keeper, self._give_back, address, memory).atexit = False
        return np.asarray(keeper)

    def _give_back(self, address, memory):
        with self.machine.lock:
            size, _ = self.owned.pop(address)
            memory.fill(POISON)
            self.free[size].append((address, memory))

    def owner(self, address):
        """Return size and owner (True for torch) of the pinned memory at an address, or None."""
        for start, (size, by_torch) in list(self.owned.items()):
            if start <= address < start + size:
                return size, by_torch
        return None


class _Keeper:
    """Base object of the arrays over pinned memory, deleted with the last of them."""

    def __init__(self, interface):
        self.__array_interface__ = interface


class Machine:
    """Two devices, the clocks of the host's threads, and the faults that were detected."""

    def __init__(self, schedule, copy_bytes_per_s=1e9):
        self.lock, self.schedule = threading.RLock(), schedule
        self.copy_bytes_per_s = copy_bytes_per_s
        self.streams, self.pools = {}, [Pool(self) for _ in range(DEVICES)]
        self.pinned, self.faults = Pinned(self), []
        self.woken = Counter()  # by device: how often a thread asked something of the one that it had
        self._own = threading.local()
        for device in range(DEVICES):
            self.new_stream(device)

    def new_stream(self, device):
        with self.lock:
            number = sum(key[0] == device for key in self.streams)
            self.streams[device, number] = Stream(self, device, number)
            return self.streams[device, number]

    def get_on(self):
        """Let each stream do what the schedule allows it to do by itself."""
        for stream in list(self.streams.values()):
            left = self.schedule.steps(stream)
            while left and stream.waiting and stream.step(forced=False):
                left -= 1

    def synchronize(self, device):
        """Run the consumer's stream first, so that late work is as late as possible."""
        for (index, _), stream in sorted(self.streams.items()):
            if index == device:
                stream.synchronize()

    def unfinished(self):
        """Return the number of operations that were submitted and not done."""
        return sum(len(stream.waiting) for stream in self.streams.values())

    @property
    def now(self):
        """The calling thread's clock in seconds, advanced only by the devices' work.

        Each thread has its own: a wait of one does not delay another.
        """
        return getattr(self._own, "now", 0.0)

    @now.setter
    def now(self, seconds):
        self._own.now = seconds

    @property
    def device(self):
        """The calling thread's current device; device 0 in a new thread."""
        return getattr(self._own, "device", 0)

    @device.setter
    def device(self, index):
        self._own.device = index

    def stream_of(self, device):
        """Return the calling thread's current stream of a device."""
        return self._streams().get(device, self.streams[device, DEFAULT])

    def set_stream(self, device, stream):
        self._streams()[device] = stream

    def _streams(self):
        if not hasattr(self._own, "streams"):
            self._own.streams = {}
        return self._own.streams

    def work(self, device, seconds):
        """Keep the current stream of a device busy."""
        self.stream_of(device).ask(seconds=seconds)

    def reading(self, tensor):
        """Return a function that reads host memory: pinned memory as it is at the time of the call.

        Memory pinned by torch is kept until it was read; other memory is staged at once.
        """
        address = tensor.data_ptr()
        owner = self.pinned.owner(address)
        if owner is None:
            staged = tensor.clone()
            return lambda: staged
        held = tensor if owner[1] else None
        return partial(self._read_at, address, torch.empty_like(tensor, device="meta"), held)

    def _read_at(self, address, meta, held):
        if not meta.numel():
            return torch.empty(meta.shape, dtype=meta.dtype)
        if self.pinned.owner(address) is None:
            self.faults.append("a copy read pinned memory that was given back")
        extent = 1 + sum((n - 1) * step for n, step in zip(meta.shape, meta.stride(), strict=True))
        raw = (ctypes.c_char * (extent * meta.element_size())).from_address(address)
        return torch.frombuffer(raw, dtype=meta.dtype).as_strided(meta.shape, meta.stride())
