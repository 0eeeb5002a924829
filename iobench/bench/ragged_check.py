"""Check of the ragged fields of batches: how they are collated, and how much of that is padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from iobench.base.errors import WrongContent
from iobench.formats import Field, Ragged, Schema
from iobench.loading.collate import COLLATED, JAGGED, LIST, Collate, Dense, SampleList
from iobench.loading.host_to_device import DeviceBatch

TYPES: dict[str, Any] = {JAGGED: Ragged, LIST: SampleList}  # of a field, by kind; others are dense


class RaggedCheck:
    """Checks how the ragged fields of batches are collated, and counts their bytes and those with padding.

    Of a jagged batch the latter are what padding to the longest sample would make of it.
    """

    def __init__(self, schema: Schema, collate: Collate) -> None:
        self._schema, self._collate = schema, collate
        self._real_bytes = self._padded_bytes = 0

    @property
    def fill(self) -> float | None:
        """Share of real elements; None without any."""
        return self._real_bytes / self._padded_bytes if self._padded_bytes else None

    def jagged(self, batch: DeviceBatch, number: int) -> DeviceBatch:
        """Return batch `number` with its ragged fields end to end.

        Raises WrongContent unless offsets divide the values into the samples, and padding is of zeros.
        """
        samples = len(batch[self._schema.fields[0].name])
        fields = {
            field.name: self._end_to_end(batch[field.name], field, samples, number)
            for field in self._schema.ragged
        }
        return {**batch, **fields}

    def _end_to_end(self, one: Any, field: Field, samples: int, number: int) -> Any:
        if not isinstance(one, TYPES.get(self._collate.kind, Dense)):
            raise WrongContent(
                f"field {field.name} of batch {number:,} is not collated as requested",
                kind="not-collated",
                expected=self._collate.kind,
                found=type(one).__name__,
            )
        values, padding = one.parted() if isinstance(one, COLLATED) else (one, None)
        offsets, total = values.offsets.cpu().numpy(), len(values.values)
        ends = tuple(offsets[[0, -1]].tolist())
        if len(offsets) != samples + 1 or ends != (0, total) or (np.diff(offsets) < 0).any():
            raise WrongContent(
                f"batch {number:,}: wrong offsets of field {field.name}",
                kind="wrong-offsets",
                expected=f"{samples + 1:,}, rising from 0 to {total:,}",
                found=f"{len(offsets):,}, from {ends[0]:,} to {ends[1]:,}",
            )
        if padding is not None and padding.contiguous().view(torch.uint8).any():
            raise WrongContent(
                f"batch {number:,}: padding of field {field.name}",
                kind="wrong-padding",
                expected="zeros",
                found="other values",
            )
        full = samples * int(np.diff(offsets).max(initial=0)) if padding is None else total + len(padding)
        self._real_bytes += total * field.sample_bytes
        self._padded_bytes += full * field.sample_bytes
        return values
