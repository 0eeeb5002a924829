"""Reused memory for the samples of groups of batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from iobench.formats import Array, Batch, Field, Index, Ragged, Schema
from iobench.stream.ring import Ring
from iobench.stream.transfer import Transfer

SLACK = 1.25  # times the mean, for ragged fields of a group; a group that needs more gets a larger slot


class GroupMemory:
    """A ring of slots per field, because a label that the user keeps must not keep an image.

    A ragged field has a second ring, for the offsets of its batches.

    Parameters
    ----------
    schema : Schema
        The fields.
    samples, batches : int
        Most samples and batches of a group.
    keep : int
        Number of slots of a ring.
    transfer : Transfer
        Allocates them.
    """

    def __init__(self, schema: Schema, samples: int, batches: int, keep: int, transfer: Transfer) -> None:
        def ring(slot_bytes: int) -> Ring:
            return Ring(slot_bytes, keep, transfer.allocate, transfer.at_once)

        self._fields = schema.fields
        self._values = {f.name: ring(_slot_bytes(schema, f, samples)) for f in schema.fields}
        self._offsets = {f.name: ring((samples + batches) * 8) for f in schema.ragged}

    def take(self, samples: int, offsets: Mapping[str, Index], begins: Mapping[str, int]) -> Batch:
        """Return memory for a group.

        Parameters
        ----------
        samples : int
            Samples of the group.
        offsets : mapping of str to int64 array
            Offsets of each ragged field's samples.
        begins : mapping of str to int
            Offset in a page at which a field's memory begins, 0 by default.
        """
        slot: dict[str, Any] = {}
        for f in self._fields:
            count = int(offsets[f.name][-1]) if f.is_ragged else samples
            memory = self._values[f.name].take(count * f.sample_bytes, begins.get(f.name, 0))
            values = memory.view(f.dtype).reshape(count, *f.inner)
            slot[f.name] = Ragged(values, offsets[f.name]) if f.is_ragged else values
        return slot

    def batches(self, slot: Batch, sizes: Sequence[int]) -> Iterator[Batch]:
        """Yield the batches of a group as views of its memory, with offsets of their own."""
        memory = {name: ring.take((sum(sizes) + len(sizes)) * 8) for name, ring in self._offsets.items()}
        offsets = {name: one.view(np.int64) for name, one in memory.items()}
        for number, (start, size) in enumerate(zip(accumulate(sizes, initial=0), sizes, strict=False)):
            batch: dict[str, Any] = {name: array[start : start + size] for name, array in slot.items()}
            for name, whole in offsets.items():
                own: Array = whole[start + number : start + number + size + 1]
                own[:] = batch[name].offsets
                batch[name] = Ragged(batch[name].values, own)
            yield batch

    def close(self) -> None:
        """Release all memory except that of batches in use."""
        for ring in (*self._values.values(), *self._offsets.values()):
            ring.close()


def _slot_bytes(schema: Schema, f: Field, samples: int) -> int:
    if not f.is_ragged:
        return samples * f.sample_bytes
    return int(SLACK * samples * schema.rows(f) / schema.samples) * f.sample_bytes
