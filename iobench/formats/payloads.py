"""Payloads: the bytes of a sample in one piece, for samples that differ in length.

A payload holds the fixed fields in schema order, then the length of each ragged field as int64, then the
elements of each, as in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from iobench.formats._schema import Schema, raw_bytes

LENGTH = np.dtype("<i8")


def payloads(schema: Schema, batch: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the payload of each sample of a batch."""
    fixed = [(raw_bytes(batch[f.name]), f.sample_bytes) for f in schema.fixed.fields]
    ragged = [(batch[field.name], field.sample_bytes) for field in schema.ragged]
    lengths = [np.diff(field.offsets).astype(LENGTH) for field, _ in ragged]
    columns = fixed + [(raw_bytes(column), LENGTH.itemsize) for column in lengths]
    values = [(raw_bytes(field.values), (field.offsets * width).tolist()) for field, width in ragged]
    for row in range(len(batch[schema.fields[0].name])):
        parts = [column[row * width : (row + 1) * width] for column, width in columns]
        parts += [memory[edges[row] : edges[row + 1]] for memory, edges in values]
        yield b"".join(parts)
