"""Limit of cases whose samples are decoded one by one: all cores decode samples that are in memory."""

from __future__ import annotations

import os
from functools import cached_property

from iobench.base.units import counted
from iobench.dataset.manifest import Opener
from iobench.formats import Reader
from iobench.host.hardware_limits import Limit
from iobench.host.memory_limits import calls_per_s

SAMPLES = 64  # decoded in turn, evenly spread over the data, so that all have as many pixels on average


class DecodeLimit:
    """Measures how fast the samples of an artifact can be decoded, without a loader.

    The reader stays open, because it may take seconds to list a million files.
    """

    def __init__(self, opener: Opener) -> None:
        self._opener = opener

    @cached_property
    def _reader(self) -> Reader:
        return self._opener()

    def __call__(self, seconds: float) -> Limit:
        """Decode for `seconds` with one thread per core; the files are read into the page cache meanwhile."""
        schema, threads = self._opener.schema, len(os.sched_getaffinity(0))
        step = max(1, schema.samples // SAMPLES)

        def decode(number: int) -> None:
            row = number % SAMPLES * step % schema.samples
            self._reader.batch(slice(row, row + 1))

        rate = calls_per_s(decode, threads, seconds)
        sample_bytes = schema.logical_bytes / schema.samples
        return Limit("decoding", f"one by one, {counted(threads, 'thread')}", rate * sample_bytes)
