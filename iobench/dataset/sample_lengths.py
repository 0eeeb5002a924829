"""Lengths of an artifact's samples, cached with its indexes: 8 bytes per sample."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from iobench.dataset.opener import Opener
from iobench.dataset.read_back import read_back
from iobench.formats import Index, Reader, Spans

NAME = "lengths"  # of the index
PIECE_ROWS = 1 << 12  # read together: of images, the header of each


def sample_lengths(opener: Opener) -> Index:
    """Return the length of each sample, int64: that of its longest ragged field.

    The first time, a format that does not say where samples lie is read as a whole; where several axes vary,
    only the fields of extents.
    """
    whole = replace(opener, schema=opener.stored_schema, stored=None)

    def build() -> Iterator[dict[str, Index]]:
        with whole.guarded() as check, whole() as reader:
            check()
            if (placed := placed_lengths(reader)) is not None:
                yield {NAME: placed}
                return
            if len(whole.schema.extents) == len(whole.schema.ragged):
                yield from _by_extents(reader)
                check()
                return
        for batch in read_back(whole):
            ragged: list[Any] = [batch[field.name] for field in whole.schema.ragged]
            yield {NAME: np.maximum.reduce([np.diff(one.offsets) for one in ragged])}

    return np.asarray(whole.index_cache(NAME, build)[NAME][: opener.schema.samples])


def _by_extents(reader: Reader) -> Iterator[dict[str, Index]]:
    """Yield the lengths by the extents of the samples, without their elements."""
    schema = reader.schema
    own = schema.chosen(schema.extents.values())
    for low in range(0, schema.samples, PIECE_ROWS):
        rows = slice(low, min(low + PIECE_ROWS, schema.samples))
        extents = own.empty(rows.stop - low)
        reader.read(rows, extents)
        yield {NAME: np.maximum.reduce([one.prod(1, dtype=np.int64) for one in extents.values()])}


def placed_lengths(reader: Reader) -> Index | None:
    """Return the lengths by the places of the samples; None if not all fields have such."""
    schema, places, lengths = reader.schema, reader.placement(), []
    for field in schema.ragged:
        place = places.get(field.name)
        if not isinstance(place, Spans):
            return None
        begins, ends = place.edges(schema.samples, np.zeros(len(place.files), np.int64))
        lengths.append((ends - begins) // field.sample_bytes)
    return np.asarray(np.maximum.reduce(lengths))
