"""Checksums of TFRecords: crc32c with TensorFlow's mask."""

from __future__ import annotations

import functools

import numpy as np

from iobench.formats import Array

POLYNOMIAL = 0x82F63B78  # Castagnoli's, reflected
MASK_DELTA = 0xA282EAD8  # TensorFlow, tsl/lib/hash/crc32c.h


def masked(crc: int) -> int:
    """Return a crc32c as TFRecords store it."""
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF


def masked_rows(rows: Array) -> Array:
    """Return the masked crc32c of each row, uint32; for uint8 (rows, bytes) with a few bytes per row."""
    table, crc = _table(), np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in rows.T:
        crc = table[(crc ^ column) & 0xFF] ^ crc >> np.uint32(8)
    crc = ~crc
    checksums: Array = (crc >> np.uint32(15) | crc << np.uint32(17)) + np.uint32(MASK_DELTA)
    return checksums


@functools.cache
def _table() -> Array:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ np.uint32(POLYNOMIAL), table >> 1).astype(np.uint32)
    return table
