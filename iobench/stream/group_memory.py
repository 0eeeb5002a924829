"""Reused memory for groups of batches: a slot is free when the last reference to its batches is gone."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from iobench.formats import Batch, Field, Index, Ragged, Schema, offsets_of
from iobench.host.memory import PAGE, Bytes
from iobench.loading.tensors import tensor_of
from iobench.stream.transfer import Tensors, Transfer

GROWTH = 1.1  # so that few groups need larger slots than all before
MOST_SLOTS = 256  # looked at; further ones are released instead of reused
Allocate = Callable[[int, int], list[Bytes]]  # (bytes per slot, slots) -> page-aligned slots


def _next(slots: deque[Bytes]) -> tuple[Bytes, bool]:
    """Remove the first slot, and return it with whether anything else refers to it.

    A debugger may refer to all variables of this function, so another one's references are counted, too.
    """
    slot, other = slots.popleft(), object()
    used = sys.getrefcount(slot) > sys.getrefcount(other)  # before the result refers to the slot
    return slot, used


class Ring:
    """Slots of equal size; further ones are allocated on demand, larger ones if more bytes are needed.

    A slot is an array, and each view of its bytes, and each tensor over one, refers to it. `keep` free slots
    are kept, and more are released. They are allocated together if `at_once`, otherwise each in the thread
    that needs it first. A slot that a thread looks at is in no other's reach.
    """

    def __init__(self, slot_bytes: int, keep: int, allocate: Allocate, at_once: bool = True) -> None:
        self._slot_bytes, self._keep, self._allocate = slot_bytes + PAGE, keep, allocate
        self._slots = deque(self._allocated(keep)) if at_once else deque[Bytes]()

    def take(self, count: int, page_offset: int = 0) -> Bytes:
        """Return `count` bytes of a slot, from byte `page_offset` of its first page on.

        The slot is free again when no view of these bytes is left.
        """
        needed = page_offset + count
        slot = self._free(needed)
        if slot is None:
            if needed > self._slot_bytes:
                self._slot_bytes = int(GROWTH * needed)
            (slot,) = self._allocated(1)
        taken = slot[page_offset:needed]
        if len(self._slots) < MOST_SLOTS:
            self._slots.appendleft(slot)
        return taken

    def close(self) -> None:
        """Release the free slots; slots in use are released with their last view."""
        self._slots.clear()

    def _free(self, needed: int) -> Bytes | None:
        """Return a free slot of at least `needed` bytes, if there is one; smaller ones are released."""
        free, kept = None, 1
        with suppress(IndexError):  # other threads look at the rest
            for _ in range(len(self._slots)):
                slot, used = _next(self._slots)
                if used:
                    self._slots.append(slot)
                elif len(slot) < needed:
                    continue
                elif free is None:
                    free = slot
                elif kept < self._keep:
                    kept += 1
                    self._slots.append(slot)
                if free is not None and len(self._slots) < self._keep:
                    break
        return free

    def _allocated(self, count: int) -> list[Bytes]:
        """Return new slots, whose views refer to them and not to what they are views of themselves."""
        return [np.frombuffer(one.data, np.uint8) for one in self._allocate(self._slot_bytes, count)]


SLACK = 1.25  # times the mean, for ragged fields of a group; a group that needs more gets a larger slot


@dataclass(slots=True)
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

    def _split(self, name: str, whole: Any) -> Any:
        if not isinstance(whole, Ragged):
            return whole.split_with_sizes(self.sizes)  # torch.split takes twice as long for small batches
        offsets = whole.offsets.split_with_sizes([size + 1 for size in self.sizes])
        return map(Ragged, whole.values.split_with_sizes(self.lengths[name]), offsets)


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
        tensors, lengths = dict[str, Any](), dict[str, list[int]]()
        for name, samples in slot.items():
            if not isinstance(samples, Ragged):
                tensors[name] = tensor_of(samples)
                continue
            count = len(samples.offsets) + len(sizes) - 1
            offsets = self._offsets[name].take(count * 8).view(np.int64)
            lengths[name] = _offsets_of_batches(samples.offsets, np.array(sizes), offsets)
            tensors[name] = Ragged(tensor_of(samples.values), tensor_of(offsets))
        return FilledGroup(tensors, sizes, lengths)

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
