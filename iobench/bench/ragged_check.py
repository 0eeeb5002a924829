"""Check of the ragged fields of batches: how they are collated, their padding and lengths."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from iobench.base.errors import WrongContent
from iobench.formats import Field, Index, Ragged, Schema
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
        self._lengths: list[Index] = []  # 8 bytes per sample

    @property
    def figures(self) -> dict[str, Any]:
        """Fields of ContentCheckPart: share of real elements, quantiles of lengths; none without elements."""
        if not self._padded_bytes:
            return {}
        median, high = np.quantile(np.concatenate(self._lengths), (0.5, 0.99)).tolist()
        return {"fill": self._real_bytes / self._padded_bytes, "length_p50": median, "length_p99": high}

    def jagged(self, batch: DeviceBatch, number: int) -> DeviceBatch:
        """Return batch `number` with its ragged fields end to end.

        Raises WrongContent unless offsets divide the values into the samples, samples have the shapes of
        their extents, and padding is of zeros.
        """
        values, lengths = {}, []
        for field in self._schema.ragged:
            values[field.name], own = self._end_to_end(batch, field, number)
            lengths.append(own)
        if lengths:
            self._lengths.append(np.maximum.reduce(lengths))
        return {**batch, **values}

    def _end_to_end(self, batch: DeviceBatch, field: Field, number: int) -> tuple[Any, Index]:
        """Return the values of a field of a batch, end to end, and the lengths of its samples."""
        one, samples = batch[field.name], len(batch[self._schema.fields[0].name])
        self._check_kind(one, field, number)
        values, padding = one.parted() if isinstance(one, COLLATED) else (one, None)
        lengths = _lengths(values, field, samples, number)
        extents = lengths[:, None]
        if own := field.extents:
            extents = _extents(one, batch[own.name], field, lengths, number)
        total, padded = len(values.values), samples * math.prod(extents.max(0, initial=0).tolist())
        if padding is not None:
            _check_padding(padding, field, number)
            padded = total + len(padding)
        self._real_bytes += total * field.sample_bytes
        self._padded_bytes += padded * field.sample_bytes
        return values, lengths

    def _check_kind(self, one: Any, field: Field, number: int) -> None:
        if not isinstance(one, TYPES.get(self._collate.kind, Dense)):
            raise WrongContent(
                f"field {field.name} of batch {number:,} is not collated as requested",
                kind="not-collated",
                expected=self._collate.kind,
                found=type(one).__name__,
            )


def _lengths(one: Ragged, field: Field, samples: int, number: int) -> Index:
    """Return the lengths of the samples; WrongContent unless offsets divide the values into them."""
    offsets, total = one.offsets.cpu().numpy(), len(one.values)
    lengths: Index = np.diff(offsets)
    ends = tuple(offsets[[0, -1]].tolist())
    if len(offsets) != samples + 1 or ends != (0, total) or (lengths < 0).any():
        raise WrongContent(
            f"batch {number:,}: wrong offsets of field {field.name}",
            kind="wrong-offsets",
            expected=f"{samples + 1:,}, rising from 0 to {total:,}",
            found=f"{len(offsets):,}, from {ends[0]:,} to {ends[1]:,}",
        )
    return lengths


def _extents(one: Any, own: torch.Tensor, field: Field, lengths: Index, number: int) -> Index:
    """Return the extents `own` of the samples; WrongContent unless they have these shapes and lengths."""
    extents: Index = own.cpu().numpy()
    shapes = one.extents.cpu().numpy() if isinstance(one, COLLATED) else extents
    if not np.array_equal(shapes, extents) or not np.array_equal(extents.prod(1), lengths):
        raise WrongContent(
            f"batch {number:,}: samples of field {field.name} have other shapes than their extents",
            kind="wrong-extents",
        )
    return extents


def _check_padding(padding: torch.Tensor, field: Field, number: int) -> None:
    """Raise WrongContent unless padding is of zeros."""
    if padding.contiguous().view(torch.uint8).any():
        raise WrongContent(
            f"batch {number:,}: padding of field {field.name}",
            kind="wrong-padding",
            expected="zeros",
            found="other values",
        )
