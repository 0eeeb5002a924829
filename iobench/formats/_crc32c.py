"""Checksums of TFRecords: crc32c, masked as TensorFlow masks it."""

from __future__ import annotations

import functools

import numpy as np

from iobench.formats._schema import Array

POLYNOMIAL = 0x82F63B78  # Castagnoli's, reflected
MASK_DELTA = 0xA282EAD8


def masked(crc: int) -> int:
    """A crc32c as it is stored."""
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF


def masked_rows(rows: Array) -> Array:
    """The masked crc32c of each row of uint8 (rows, bytes), uint32; meant for a few bytes a row."""
    table, crc = _table(), np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in rows.T:
        crc = table[(crc ^ column) & 0xFF] ^ crc >> np.uint32(8)
    crc = ~crc
    found: Array = (crc >> np.uint32(15) | crc << np.uint32(17)) + np.uint32(MASK_DELTA)
    return found


@functools.cache
def _table() -> Array:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ np.uint32(POLYNOMIAL), table >> 1).astype(np.uint32)
    return table
