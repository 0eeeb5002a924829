"""Generated samples of different lengths: seeded, of lengths that are drawn or read from a file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.base.errors import SourceError
from iobench.base.text import reason
from iobench.dataset.sources._source import BATCH_BYTES, Source
from iobench.dataset.sources.synthetic import noise
from iobench.formats import Array, Batch, Field, Ragged, Schema, check_sample, offsets_of

Lengths = npt.NDArray[np.int64]
DRAWN = 1 << 16  # lengths at a time
HINT = "write lognormal:512,1.2 (median, sigma), uniform:1,4096 (lowest, highest) or file:lengths.npy"


@dataclass
class GeneratedLengths(Source):
    """Random samples with one field whose samples differ in length, and any number of fixed ones.

    `lengths` are ``lognormal:MEDIAN,SIGMA``, ``uniform:LOW,HIGH`` (both included) or ``file:PATH`` of an .npy
    array. `size` is the number of elements of the ragged field: drawn samples fill it, and the last one is
    shortened to fit; lengths from a file are taken as they are. `seed` is that of lengths and values.

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
            raise SourceError("--fields", kind="invalid-fields", expected=expected, found=found)
        (field,) = ragged
        self._lengths = _lengths(self.lengths, self.size // field.elements, self.seed)
        longest = int(self._lengths.argmax())
        check_sample(f"sample {longest:,}", (), int(self._lengths[longest]) * field.sample_bytes)
        totals = {field.name: int(self._lengths.sum())}
        self.schema = Schema(len(self._lengths), tuple(self.fields), totals=totals)
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
            yield {field.name: _values(generator, field, lengths) for field in self.fields}


def _values(generator: np.random.Generator, field: Field, lengths: Lengths) -> Any:
    count = int(lengths.sum()) if field.is_ragged else len(lengths)
    values: Array = noise(generator, (count, field.elements), np.dtype(field.dtype))
    values = values.reshape(count, *field.inner)
    return Ragged(values, offsets_of(lengths)) if field.is_ragged else values


def _lengths(text: str, total: int, seed: int) -> Lengths:
    """Return the lengths that `text` describes, of samples that together have `total` units of length."""
    kind, _, rest = text.partition(":")
    if kind == "file":
        return _from_file(Path(rest))
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 0])))
    try:
        first, second = (float(number) for number in rest.split(","))
    except ValueError:
        raise _invalid(text) from None
    if kind == "lognormal" and 1 <= first < math.inf and 0 <= second < 10:
        return _drawn(lambda: np.maximum(1, first * generator.lognormal(0, second, DRAWN)), total)
    if kind == "uniform" and first.is_integer() and second.is_integer() and 0 <= first <= second > 0:
        return _drawn(lambda: generator.integers(int(first), int(second), DRAWN, endpoint=True), total)
    raise _invalid(text)


def _drawn(draw: Callable[[], npt.NDArray[Any]], total: int) -> Lengths:
    """Draw lengths until they make `total`; the last one is shortened."""
    if total < 1:
        raise SourceError("--size", kind="out-of-range", expected="at least one element", found=total)
    drawn, left = [], total
    while left > 0:
        lengths = np.rint(np.clip(draw(), 0, total)).astype(np.int64)
        drawn.append(lengths)
        left -= int(lengths.sum())
    lengths = np.concatenate(drawn)
    ends = np.cumsum(lengths)
    count = int(np.searchsorted(ends, total)) + 1
    lengths = lengths[:count]
    lengths[-1] -= ends[count - 1] - total
    return lengths


def _from_file(path: Path) -> Lengths:
    try:
        lengths = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise SourceError(
            "--lengths: not readable as .npy", kind="invalid-lengths", path=path, found=reason(error)
        ) from None
    if not isinstance(lengths, np.ndarray) or lengths.ndim != 1 or lengths.dtype.kind not in "iu":
        found = f"{lengths.dtype} {lengths.shape}" if isinstance(lengths, np.ndarray) else "an archive"
        expected = "one axis of integers"
        raise SourceError("--lengths", kind="invalid-lengths", path=path, expected=expected, found=found)
    wrong = np.flatnonzero(lengths < 0)
    if wrong.size or not lengths.any():
        found = f"{lengths[wrong[0]]} of sample {wrong[0]:,}" if wrong.size else "no length above 0"
        raise SourceError(
            "--lengths",
            kind="invalid-lengths",
            path=path,
            expected="lengths of 0 or more, not all 0",
            found=found,
        )
    return lengths.astype(np.int64)


def _invalid(text: str) -> SourceError:
    return SourceError(f"--lengths {text!r} is no distribution", kind="invalid-lengths", hint=HINT)
