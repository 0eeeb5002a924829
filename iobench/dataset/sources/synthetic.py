"""Generated data: seeded, identical on every machine, of a given compressibility."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from iobench.base.errors import CorruptArtifact, SourceError
from iobench.dataset.sources._source import BATCH_BYTES, Source
from iobench.formats import DTYPES, Batch, Field, Schema, check_sample

BLOCKS_IN_FLIGHT = 3
MAX_SEED = 1 << 63


@dataclass
class Synthetic(Source):
    """Generated data with one field `x`.

    Floats, and both parts of complex numbers, are uniform in [0, 1); integers have their whole range.

    Parameters
    ----------
    size : int
        Number of elements; a remainder that does not fill a sample is dropped.
    sample_shape : tuple of int
        Shape of one sample.
    dtype : str
        Dtype of the elements.
    seed : int
        Seed of the generator, from 0 to 2^63 - 1.
    compressibility : float
        Fraction, from 0 to 1, of each sample's elements, at its end, that repeat one value. The rest is noise
        that codecs hardly compress.

    Raises
    ------
    SourceError
        If a value is `out-of-range`, the dtype is unknown (`unknown-dtype`), or a sample is too large
        (`sample-too-large`, `too-many-axes`).
    """

    size: int
    sample_shape: tuple[int, ...] = (128,)
    dtype: str = "float32"
    seed: int = 0
    compressibility: float = 0.0

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            known = f"one of {', '.join(DTYPES)}"
            raise SourceError("dtype", kind="unknown-dtype", expected=known, found=repr(self.dtype))
        shape, elements = "x".join(map(str, self.sample_shape)), math.prod(self.sample_shape)
        if not self.sample_shape or min(self.sample_shape) < 1:
            raise SourceError(f"sample shape {self.sample_shape} has no element", kind="invalid-shape")
        if not 0 <= self.compressibility <= 1:
            raise _out_of_range("compressibility", "0 to 1", self.compressibility)
        if not 0 <= self.seed < MAX_SEED:
            raise _out_of_range("seed", "0 to 2^63 - 1", self.seed)
        if self.size < elements:
            raise _out_of_range("size", f"at least one sample of {elements:,} elements", self.size)
        try:
            check_sample(f"sample shape {shape}", self.sample_shape, elements * np.dtype(self.dtype).itemsize)
        except CorruptArtifact as error:
            raise error.converted(SourceError) from None
        samples = self.size // elements
        self.schema = Schema(samples, (Field("x", self.sample_shape, self.dtype),))
        self.name = f"{self.dtype}-{shape}-{samples}"

    @property
    def description(self) -> dict[str, Any]:
        """Kind, generator, seed and compressibility."""
        return {
            "kind": "generated",
            "generator": "PCG64",
            "seed": self.seed,
            "compressibility": self.compressibility,
        }

    def batches(self) -> Iterator[Batch]:
        """Yield blocks in order; two threads make them, each block with a generator of its own."""
        count = -(-self.schema.samples // self._block_rows)
        with ThreadPoolExecutor(max_workers=2) as pool:
            ahead = [pool.submit(self._block, i) for i in range(min(count, BLOCKS_IN_FLIGHT))]
            for index in range(count):
                block = ahead.pop(0).result()
                if index + BLOCKS_IN_FLIGHT < count:
                    ahead.append(pool.submit(self._block, index + BLOCKS_IN_FLIGHT))
                yield {"x": block}

    @cached_property
    def _block_rows(self) -> int:
        return self.schema.batch_rows(BATCH_BYTES)

    def _block(self, index: int) -> np.ndarray[Any, Any]:
        rows = min(self._block_rows, self.schema.samples - index * self._block_rows)
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, index])))
        block = noise(generator, (rows, math.prod(self.sample_shape)), np.dtype(self.dtype))
        repeated = round(self.compressibility * block.shape[1])
        if repeated:
            block[:, -repeated:] = block[:, :1]
        return block.reshape(rows, *self.sample_shape)


def _out_of_range(what: str, expected: str, value: float) -> SourceError:
    return SourceError(what, kind="out-of-range", expected=expected, found=value)


def noise(
    generator: np.random.Generator, shape: tuple[int, int], dtype: np.dtype[Any]
) -> np.ndarray[Any, Any]:
    """Return random values: floats and both parts of complex ones in [0, 1), integers of the whole range."""
    if dtype in (np.float32, np.float64):
        return generator.random(shape, dtype.type)
    if dtype.kind == "c":
        parts = np.dtype(f"float{4 * dtype.itemsize}")
        return noise(generator, (shape[0], 2 * shape[1]), parts).view(dtype)
    if dtype in ("float16", "bfloat16"):
        return generator.random(shape, np.float32).astype(dtype)
    if dtype == np.bool_:
        return generator.integers(0, 2, shape, dtype=np.bool_, endpoint=False)
    words = -(-math.prod(shape) * dtype.itemsize // 8)
    raw = generator.integers(0, 1 << 64, words, dtype=np.uint64)
    return raw.view(dtype)[: math.prod(shape)].reshape(shape)
