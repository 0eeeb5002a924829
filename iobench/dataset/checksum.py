"""Content checksums: the sum modulo 2^64 of one 64-bit hash per sample over all its fields.

A sample's hash is mix(sum of the words of all fields); `iobench.dataset.word_sums` defines it. Each field is
padded with zeros to whole words. mix is the finalizer of SplitMix64 (Steele, Lea, Flood 2014). The sum of the
hashes does not depend on the order of the samples. The non-linear mix ties the fields of a sample together: a
label that moves to another sample changes the sum. `ordered` also mixes in each row number, which detects
swapped samples.

A field whose samples differ in length has words and weights of its own, and adds
mix((2f + 1) · its sum + (bytes + f) · m) to the sum: f is the number of the field.

The same arithmetic runs on NumPy arrays and on torch tensors on any device, since int64 wraps in both. CPU
tensors are hashed as arrays, which takes a tenth of torch's time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.dataset.word_sums import GOLDEN, fixed_sums, mix, ragged_sums, signed, weights
from iobench.formats import Ragged, Schema, array_of, map_arrays

MASK = (1 << 64) - 1
_LENGTH = signed(0xD1B54A32D192ED03)  # of the R2 sequence: independent of the golden section


class Checksum:
    """Running content checksum of batches of NumPy arrays or torch tensors, in any order."""

    def __init__(self, schema: Schema) -> None:
        # of each field in each sample: none of a ragged one
        self._words = {one.name: 0 if one.is_ragged else -(-one.sample_bytes // 8) for one in schema.fields}
        self._weights = weights(sum(self._words.values()))
        self._on_device: dict[Any, Any] = {}  # the weights, copied to each device once
        self._content: Any = 0
        self._ordered: Any = 0
        self.samples = 0

    @property
    def content(self) -> int:
        """Sum of the hashes so far, as an unsigned 64-bit number."""
        return int(self._content) & MASK

    @property
    def ordered(self) -> int:
        """Sum of the hashes mixed with row numbers, over the samples added with their rows."""
        return int(self._ordered) & MASK

    def add(self, batch: Mapping[str, Any], rows: npt.NDArray[np.int64] | None = None) -> None:
        """Add every sample of a batch, on the device where its arrays are.

        `rows`, int64 of shape ``(samples,)``, are their rows in the dataset, if known.
        """
        self.add_hashes(self.hashes(batch), rows)

    def add_in_order(self, batch: Mapping[str, npt.NDArray[Any]]) -> None:
        """Add every sample of a NumPy batch that follows the previous one in the dataset."""
        hashes = self.hashes(batch)
        self.add_hashes(hashes, np.arange(self.samples, self.samples + len(hashes), dtype=np.int64))

    def add_hashes(self, hashes: Any, rows: npt.NDArray[np.int64] | None = None) -> None:
        """Add samples by their hashes, with their rows in the dataset if known."""
        self.samples += len(hashes)
        self._content = self._content + _plain(hashes.sum())
        if rows is not None:
            self._ordered = self._ordered + _plain(mix(hashes ^ _like(hashes, rows + 1) * GOLDEN).sum())

    def hashes(self, batch: Mapping[str, Any]) -> Any:
        """Return the int64 hash of each sample, as an array or tensor on the batch's device."""
        total: Any = 0
        first = 0
        for number, (name, count) in enumerate(self._words.items()):
            field = map_arrays(_on_host, batch[name])
            if isinstance(field, Ragged):
                total = total + _ragged_hashes(field, number)
                continue
            part = slice(first, first + count)
            first = part.stop
            total = total + fixed_sums(field, self._weights_for(field)[part])
        one = batch[name]
        return _like(one.values if isinstance(one, Ragged) else one, mix(total))

    def _weights_for(self, array: Any) -> Any:
        """Return the weights on an array's device, which a copy for each batch would stall."""
        if isinstance(array, np.ndarray):
            return self._weights
        import torch

        if array.device not in self._on_device:
            self._on_device[array.device] = torch.from_numpy(self._weights).to(array.device)
        return self._on_device[array.device]


def _plain(total: Any) -> Any:
    return int(total) if isinstance(total, np.integer) else total


def _on_host(array: Any) -> Any:
    """Return a CPU tensor as an array over its memory."""
    return array if isinstance(array, np.ndarray) or array.device.type != "cpu" else array_of(array)


def _like(array: Any, hashes: Any) -> Any:
    """Return int64 values as an array or tensor, where an array or tensor is."""
    if isinstance(array, np.ndarray) or not isinstance(hashes, np.ndarray):
        return hashes
    import torch

    return torch.from_numpy(hashes).to(array.device)


def _ragged_hashes(field: Ragged, number: int) -> Any:
    """Return what each sample of ragged field `number` adds to the sum of its sample."""
    values = field.values
    edges = field.offsets * (math.prod(values.shape[1:]) * values.dtype.itemsize)
    sums = ragged_sums(values, edges)
    return mix(sums * (2 * number + 1) + (edges[1:] - edges[:-1] + number) * _LENGTH)
