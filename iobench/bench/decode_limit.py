"""Limit of cases whose samples are decoded one by one: all cores decode samples that are in memory."""

from __future__ import annotations

import os
from functools import cached_property

from iobench.base.units import counted
from iobench.dataset.opener import Opener
from iobench.formats import Reader
from iobench.host.hardware_limits import Limit
from iobench.host.memory_limits import calls_per_s
from iobench.results.parts import DECODING

GOLDEN = (5**0.5 - 1) / 2  # multiples of it, modulo 1, are spread evenly, however many there are


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
        """Decode for `seconds` with one thread per core, the same samples each time."""
        schema, threads = self._opener.schema, len(os.sched_getaffinity(0))

        def decode(number: int) -> None:
            row = int(number * GOLDEN % 1 * schema.samples)
            self._reader.batch(slice(row, row + 1))

        rate = calls_per_s(decode, threads, seconds)
        sample_bytes = schema.logical_bytes / schema.samples
        return Limit(DECODING, f"one by one, {counted(threads, 'thread')}", rate * sample_bytes)
