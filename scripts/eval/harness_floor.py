"""Measure the overhead of iobench per batch, over a format that reads nothing.

All of the time is that of iobench (native, stream), or of iobench and torch's DataLoader (dataloader).
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from eval import harness
from eval.harness import Row, Trials
from iobench.dataset.opener import Opener
from iobench.formats import Batch, Field, Format, Reader, Rows, Schema
from iobench.loading import loaders
from iobench.loading.loaders import Job
from iobench.loading.order import Order

OPTIONS = {"rounds": (7, harness.ROUNDS), "batches": (20_000, "batches of an epoch")}
BATCH_SIZE = 256


class NullReader(Reader):
    """Returns the same memory for every batch and fills no buffer."""

    def __init__(self, schema: Schema) -> None:
        super().__init__(schema)
        self._whole = schema.empty(BATCH_SIZE)

    def batch(self, rows: Rows) -> Batch:
        return self._whole

    def sample(self, row: int, convert: Callable[[Any], Any]) -> dict[str, Any]:
        return {name: convert(array[0]) for name, array in self._whole.items()}

    def close(self) -> None:
        pass

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Any]) -> None:
        pass

    def _read_rows(self, rows: Any, out: Mapping[str, Any]) -> None:
        pass


@dataclass(frozen=True)
class Null(Format):
    """A format that stores nothing."""

    name: ClassVar[str] = "null"
    summary: ClassVar[str] = "stores nothing"
    library: ClassVar[str] = "numpy"

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        pass

    def open(self, path: Path, schema: Schema, random: bool = False) -> Reader:
        return NullReader(schema)


def trials(options: argparse.Namespace) -> Trials:
    words = ("native", "stream", "dataloader:fetch=batch")
    return {word: partial(floor, word, options.batches, options.rounds, options.folder) for word in words}


def floor(loader: str, batches: int, rounds: int, folder: Path) -> Iterator[Row]:
    """Yield the median microseconds per batch of a loader."""
    schema = Schema(BATCH_SIZE * batches, (Field("x", (128,), "float32"),))
    job = Job(Opener(Null(), folder, schema), Order(batch_size=BATCH_SIZE))
    epoch = harness.epochs_of(loaders.parse(loader).on("cpu"), job)
    yield {"µs per batch": statistics.median(epoch(n).timing.epochs_s for n in range(rounds)) / batches * 1e6}
