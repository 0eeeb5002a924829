"""Zarr chunks that are not stored, which is legal: they read as the fill value."""

from __future__ import annotations

import itertools
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from iobench.contrib.formats.zarr.placement import INDEX_CODECS, MISSING, read_index


def missing_chunks(array: zarr.Array[Any], folder: Path) -> tuple[int, int]:
    """Return the number of chunks of an array in `folder` that are not stored, and of all its chunks.

    Checks each file, and in shards their indexes if they are encoded as zarr writes them.
    """
    whole = array.shards or array.chunks
    counts = [math.ceil(size / step) for size, step in zip(array.shape, whole, strict=True)]
    total = math.prod(math.ceil(n / step) for n, step in zip(array.shape, array.chunks, strict=True))
    missing = 0
    for place in itertools.product(*map(range, counts)):
        file = folder / array.metadata.encode_chunk_key(place)
        if not os.path.isfile(file):
            missing += int(_held(array, place).sum())
        elif array.shards is not None:
            missing += _missing_in_shard(array, file, place)
    return missing, total


def _held(array: zarr.Array[Any], place: tuple[int, ...]) -> Any:
    """Return a bool array of the shard's chunks (or the only chunk) that lie within the array."""
    within = np.ones((), bool)
    for size, whole, step, number in zip(
        array.shape, array.shards or array.chunks, array.chunks, place, strict=True
    ):
        begins = number * whole + np.arange(0, whole, step) < size
        within = within[..., None] & begins
    return within


def _missing_in_shard(array: zarr.Array[Any], file: Path, place: tuple[int, ...]) -> int:
    metadata: Any = array.metadata.to_dict()
    codec = dict(metadata["codecs"][0])
    known = [dict(one) for one in codec["configuration"]["index_codecs"]] == INDEX_CODECS
    if not known or codec["configuration"].get("index_location", "end") != "end":
        return 0
    held = _held(array, place)
    entries = read_index(file, held.size)[:, 0].reshape(held.shape)
    return int((held & (entries == MISSING)).sum())
