"""Reused memory for groups of batches: a slot is free when the last reference to its batches is gone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import ref

import numpy as np
import torch

from iobench.formats import Batch, Field, Index, Ragged, Schema, offsets_of
from iobench.host.memory import PAGE, Bytes
from iobench.loading.tensors import tensors_of
from iobench.stream.transfer import Tensors, Transfer

GROWTH = 1.1  # so that few groups need larger slots than all before
Allocate = Callable[[int, int], list[Bytes]]  # (bytes per slot, slots) -> page-aligned slots


class Ring:
    """Slots of equal size; further ones are allocated on demand, larger ones if more bytes are needed.

    `keep` free slots are kept, and more are released. They are allocated together if `at_once`, otherwise
    each in the thread that needs it first.
    """

    def __init__(self, slot_bytes: int, keep: int, allocate: Allocate, at_once: bool = True) -> None:
        self._slot_bytes, self._keep, self._allocate = slot_bytes + PAGE, keep, allocate
        self._fresh = allocate(self._slot_bytes, keep) if at_once else []
        self._out: set[_Held] = set()
        self._back: deque[_Held] = deque()  # appended to by the thread that drops the last reference

    def take(self, count: int, page_offset: int = 0) -> Bytes:
        """Return `count` bytes of a slot, from byte `page_offset` of its first page on.

        The slot is free again when no view of these bytes is left.
        """
        needed = page_offset + count
        if needed > self._slot_bytes:
            self._slot_bytes = int(GROWTH * needed)
        lease = _Lease(self._memory(needed))
        # the callback is not Python code: an exception from a signal handler in it would be lost
        self._out.add(_Held(lease, self._back.append))
        return np.asarray(lease)[page_offset : page_offset + count]

    def close(self) -> None:
        """Release the free slots; slots in use are released with their last view."""
        self._fresh.clear()
        self._out.clear()
        self._back.clear()

    def _memory(self, needed: int) -> Bytes:
        """Return a free slot of at least `needed` bytes; smaller ones are released."""
        while len(self._back) > self._keep:
            self._out.discard(self._back.pop())
        with suppress(IndexError):
            while True:
                held = self._back.pop()
                self._out.discard(held)
                if len(held.memory) >= needed:
                    return held.memory
        with suppress(IndexError):
            while len(memory := self._fresh.pop()) < needed:
                pass
            return memory
        return self._allocate(self._slot_bytes, 1)[0]


class _Lease:
    """The base object of the arrays over a slot, deleted with the last of them."""

    __slots__ = ("__array_interface__", "__weakref__", "memory")

    def __init__(self, memory: Bytes) -> None:
        self.memory = memory
        self.__array_interface__: dict[str, Any] = memory.__array_interface__


class _Held(ref["_Lease"]):
    """Weak reference to a lease; its callback returns the slot."""

    __slots__ = ("memory",)

    def __init__(self, lease: _Lease, give_back: Callable[[Any], None]) -> None:
        self.memory = lease.memory

    def __new__(cls, lease: _Lease, give_back: Callable[[Any], None]) -> _Held:
        """Make a weak reference to the lease."""
        return super().__new__(cls, lease, give_back)

    __hash__ = object.__hash__  # a weak reference's own hash is lost with its referent
    __eq__ = object.__eq__


SLACK = 1.25  # times the mean, for ragged fields of a group; a group that needs more gets a larger slot


@dataclass(frozen=True)
class FilledGroup:
    """The samples of consecutive batches.

    `tensors` has one per field: of a ragged field the values of all batches, and the offsets of one batch
    after the other, each from 0 on. `sizes` are the samples of each batch, `lengths` the length of each
    batch's values, by ragged field.
    """

    tensors: Tensors
    sizes: list[int]
    lengths: Mapping[str, list[int]]

    def split(self, tensors: Tensors) -> list[Tensors]:
        """Return the batches as views of the group's tensors, which may have been moved to a device."""
        if len(self.sizes) == 1:
            return [tensors]
        columns = [self._split(name, whole) for name, whole in tensors.items()]
        return [dict(zip(tensors, parts, strict=True)) for parts in zip(*columns, strict=True)]

    def _split(self, name: str, whole: Any) -> Iterable[Any]:
        if not isinstance(whole, Ragged):
            return torch.split(whole, self.sizes)
        offsets = torch.split(whole.offsets, [size + 1 for size in self.sizes])
        return map(Ragged, torch.split(whole.values, self.lengths[name]), offsets)


class GroupMemory:
    """A ring of slots per field, because a label that the user keeps must not keep an image.

    A ragged field has a second ring, for the offsets of its batches. A group has at most this many `samples`
    and `batches`; each ring keeps `keep` slots, which `transfer` allocates.
    """

    def __init__(self, schema: Schema, samples: int, batches: int, keep: int, transfer: Transfer) -> None:
        def ring(slot_bytes: int) -> Ring:
            return Ring(slot_bytes, keep, transfer.allocate, transfer.at_once)

        self._fields = schema.fields
        self._values = {f.name: ring(_slot_bytes(schema, f, samples)) for f in schema.fields}
        self._offsets = {f.name: ring((samples + batches) * 8) for f in schema.ragged}

    def take(self, samples: int, offsets: Mapping[str, Index], begins: Mapping[str, int]) -> Batch:
        """Return memory for a group, given the offsets of each ragged field's samples.

        A field's memory begins at its offset in a page in `begins`, 0 by default.
        """
        slot: dict[str, Any] = {}
        for f in self._fields:
            count = int(offsets[f.name][-1]) if f.is_ragged else samples
            memory = self._values[f.name].take(count * f.sample_bytes, begins.get(f.name, 0))
            values = memory.view(f.dtype).reshape(count, *f.inner)
            slot[f.name] = Ragged(values, offsets[f.name]) if f.is_ragged else values
        return slot

    def filled(self, slot: Batch, sizes: list[int]) -> FilledGroup:
        """Return the group whose samples were read into its memory; `sizes` are samples per batch."""
        tensors, lengths = dict[str, Any](slot), dict[str, list[int]]()
        for name, ring in self._offsets.items():
            values, offsets = tensors[name].values, tensors[name].offsets
            memory = ring.take((len(offsets) + len(sizes) - 1) * 8).view(np.int64)
            lengths[name] = _offsets_of_batches(offsets, np.array(sizes), memory)
            tensors[name] = Ragged(values, memory)
        return FilledGroup(tensors_of(tensors), sizes, lengths)

    def close(self) -> None:
        """Release all memory except that of batches in use."""
        for ring in (*self._values.values(), *self._offsets.values()):
            ring.close()


def _offsets_of_batches(offsets: Index, sizes: Index, out: Index) -> list[int]:
    """Fill `out` with the offsets of one batch after the other, each from 0 on; return their lengths."""
    if len(sizes) == 1:  # as in every group of large batches
        out[:] = offsets
        return [int(offsets[-1])]
    starts = offsets_of(sizes)
    batch = np.repeat(np.arange(len(sizes)), sizes + 1)  # of each of the offsets
    np.subtract(offsets[np.arange(len(batch)) - batch], offsets[starts[batch]], out=out)
    lengths: list[int] = np.diff(offsets[starts]).tolist()
    return lengths


def _slot_bytes(schema: Schema, f: Field, samples: int) -> int:
    if not f.is_ragged:
        return samples * f.sample_bytes
    return int(SLACK * samples * schema.rows(f) / schema.samples) * f.sample_bytes
