"""Generated samples: of one shape, or of lengths that are drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from iobench import formats
from iobench.base.errors import CorruptArtifact, SourceError
from iobench.base.text import reason
from iobench.dataset.sources.source import BATCH_BYTES, Source
from iobench.formats import DTYPES, Array, Batch, Field, Index, Ragged, Schema, check_sample, offsets_of

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
            raise SourceError("dtype", "unknown-dtype", expected=known, found=repr(self.dtype))
        shape, elements = "x".join(map(str, self.sample_shape)), math.prod(self.sample_shape)
        if not self.sample_shape or min(self.sample_shape) < 1:
            raise SourceError(f"sample shape {self.sample_shape} has no element", "invalid-shape")
        if not 0 <= self.compressibility <= 1:
            raise _out_of_range("compressibility", "0 to 1", self.compressibility)
        if not 0 <= self.seed < MAX_SEED:
            raise _out_of_range("seed", "0 to 2^63 - 1", self.seed)
        if self.size < elements:
            raise _out_of_range("size", f"at least one sample of {elements:,} elements", self.size)
        try:
            field = Field("x", self.sample_shape, self.dtype)
            check_sample(f"sample shape {shape}", self.sample_shape, field.sample_bytes)
        except CorruptArtifact as error:
            raise error.converted(SourceError) from None
        samples = self.size // elements
        self.schema = Schema(samples, (field,))
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
    return SourceError(what, "out-of-range", expected=expected, found=value)


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


Extents = npt.NDArray[np.int64]  # sizes of the samples along each axis that varies: (samples, axes)
DRAWN = 1 << 16  # samples at a time
MOST = np.iinfo(np.int32).max  # along an axis: the dtype of extents
HINT = "write lognormal:512,1.2 (median, sigma), uniform:1,4096 (lowest, highest) or file:lengths.npy"


@dataclass
class GeneratedLengths(Source):
    """Random samples with one field whose samples differ in length, and any number of fixed ones.

    `lengths` are ``lognormal:MEDIAN,SIGMA``, ``uniform:LOW,HIGH`` (both included) or ``file:PATH`` of an .npy
    array. `size` is the number of elements of the ragged field: drawn samples fill it, and the last one is
    shortened to fit; lengths from a file are taken as they are. `seed` is that of lengths and values. If
    several axes of the field vary, each has sizes of its own; a file holds an axis of them.

    SourceError of kind ``invalid-lengths``, ``invalid-fields`` or ``sample-too-large``.
    """

    fields: Sequence[Field]
    lengths: str
    size: int
    seed: int = 0

    def __post_init__(self) -> None:
        ragged = [field for field in self.fields if field.is_ragged]
        if len(ragged) != 1:
            found = ", ".join(field.typed for field in self.fields)
            expected = "exactly one field whose samples differ in length, like tokens=uint16[*]"
            raise SourceError("--fields", "invalid-fields", expected=expected, found=found)
        (field,) = ragged
        self._extents = _extents(self.lengths, self.size // field.elements, self.seed, field.varying)
        self._lengths = self._extents.prod(1)
        longest = int(self._lengths.argmax())
        check_sample(f"sample {longest:,}", (), int(self._lengths[longest]) * field.sample_bytes)
        totals = {field.name: int(self._lengths.sum())}
        try:
            self.schema = Schema(len(self._lengths), formats.with_extents(self.fields), totals=totals)
        except ValueError as error:
            raise SourceError(f"--fields: {error}", "invalid-fields") from None
        self._own = field.extents
        self.name = f"{field.name}-{field.dtype}-{self.schema.samples}"

    @property
    def description(self) -> dict[str, Any]:
        """Kind, generator, seed and distribution of the lengths."""
        return {"kind": "generated", "generator": "PCG64", "seed": self.seed, "lengths": self.lengths}

    def batches(self) -> Iterator[Batch]:
        """Yield batches in order, each with a generator of its own."""
        rows = self.schema.batch_rows(BATCH_BYTES)
        for low in range(0, self.schema.samples, rows):
            lengths = self._lengths[low : low + rows]
            generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, 1, low])))
            batch = {field.name: _values(generator, field, lengths) for field in self.fields}
            if self._own:
                batch[self._own.name] = self._extents[low : low + rows].astype(self._own.dtype)
            yield {field.name: batch[field.name] for field in self.schema.fields}


def _values(generator: np.random.Generator, field: Field, lengths: Index) -> Any:
    count = int(lengths.sum()) if field.is_ragged else len(lengths)
    values: Array = noise(generator, (count, field.elements), np.dtype(field.dtype))
    values = values.reshape(count, *field.inner)
    return Ragged(values, offsets_of(lengths)) if field.is_ragged else values


def _extents(text: str, total: int, seed: int, axes: int) -> Extents:
    """Return the extents that `text` describes, of samples that together have `total` units of length."""
    kind, _, rest = text.partition(":")
    if kind == "file":
        return _from_file(Path(rest), axes)
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 0])))
    try:
        first, second = (float(number) for number in rest.split(","))
    except ValueError:
        raise _invalid(text) from None
    shape = DRAWN, axes
    if kind == "lognormal" and 1 <= first < math.inf and 0 <= second < 10:
        return _drawn(lambda: np.maximum(1, first * generator.lognormal(0, second, shape)), total, axes)
    if kind == "uniform" and first.is_integer() and second.is_integer() and 0 <= first <= second > 0:
        return _drawn(lambda: generator.integers(int(first), int(second), shape, endpoint=True), total, axes)
    raise _invalid(text)


def _drawn(draw: Callable[[], npt.NDArray[Any]], total: int, axes: int) -> Extents:
    """Draw extents until their products make `total`; the last sample is shortened along its first axis."""
    if total < 1:
        raise SourceError("--size", "out-of-range", expected="at least one element", found=total)
    drawn, left = [], total
    while left > 0:
        extents = np.rint(np.clip(draw(), 0, math.floor(total ** (1 / axes)))).astype(np.int64)
        drawn.append(extents)
        left -= int(extents.prod(1).sum())
    extents = np.concatenate(drawn)
    ends = np.cumsum(extents.prod(1))
    count = int(np.searchsorted(ends, total)) + 1
    extents = extents[:count]
    extents[-1, 0] -= (ends[count - 1] - total) // extents[-1, 1:].prod()
    return extents


def _from_file(path: Path, axes: int) -> Extents:
    try:
        lengths = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise SourceError(
            "--lengths: not readable as .npy", kind="invalid-lengths", path=path, found=reason(error)
        ) from None
    shape = () if axes == 1 else (axes,)
    array = isinstance(lengths, np.ndarray)
    if not array or lengths.dtype.kind not in "iu" or not lengths.ndim or lengths.shape[1:] != shape:
        found = f"{lengths.dtype} {lengths.shape}" if array else "an archive"
        expected = f"integers of shape (samples, {axes})" if shape else "one axis of integers"
        raise SourceError("--lengths", "invalid-lengths", path, expected=expected, found=found)
    extents = lengths.reshape(-1, axes)
    wrong = np.flatnonzero(((extents < 0) | (extents > MOST)).any(1))
    if wrong.size or not extents.all(1).any():
        found = f"{lengths[wrong[0]]} of sample {wrong[0]:,}" if wrong.size else "no length above 0"
        raise SourceError(
            "--lengths", "invalid-lengths", path, expected="lengths of 0 or more, not all 0", found=found
        )
    checked: Extents = extents.astype(np.int64)
    return checked


def _invalid(text: str) -> SourceError:
    return SourceError(f"--lengths {text!r} is no distribution", "invalid-lengths", hint=HINT)
