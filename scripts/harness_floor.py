"""Measure the overhead of the harness per batch, over a format that reads nothing. Takes about 20 seconds.

    .venv/bin/python scripts/harness_floor.py

All of the time is that of iobench (native, stream), or of iobench and torch's DataLoader (dataloader).
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import torch

from iobench.bench.epoch import RoundSpec, measure
from iobench.dataset.manifest import Opener
from iobench.formats import Batch, Field, Format, Reader, Rows, Schema
from iobench.loading import loaders
from iobench.loading.host_to_device import HostToDevice
from iobench.loading.loaders import Job
from iobench.loading.order import Order

BATCH_SIZE, BATCHES, ROUNDS = 256, 20_000, 7


class NullReader(Reader):
    """Returns the same memory for every batch and fills no buffer."""

    def __init__(self, schema: Schema) -> None:
        super().__init__(schema)
        self._whole = schema.empty(BATCH_SIZE)

    def batch(self, rows: Rows) -> Batch:
        """Return the same batch."""
        return self._whole

    def sample(self, row: int, convert: Callable[[Any], Any]) -> dict[str, Any]:
        """Return the first row of the batch."""
        return {name: convert(array[0]) for name, array in self._whole.items()}

    def close(self) -> None:
        """Do nothing."""

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Any]) -> None:
        """Leave the buffers unchanged."""

    def _read_rows(self, rows: Any, out: Mapping[str, Any]) -> None:
        """Leave the buffers unchanged."""


@dataclass(frozen=True)
class Null(Format):
    """A format that stores nothing."""

    name: ClassVar[str] = "null"
    summary: ClassVar[str] = "stores nothing"
    library: ClassVar[str] = "numpy"

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write nothing."""

    def open(self, path: Path, schema: Schema, random: bool = False) -> Reader:
        """Return a reader that fills nothing."""
        return NullReader(schema)


def floor_us(loader: str) -> float:
    """Return the microseconds per batch of a loader, median over the rounds."""
    schema = Schema(BATCH_SIZE * BATCHES, (Field("x", (128,), "float32"),))
    one, transfer = loaders.parse(loader).on("cpu"), HostToDevice(torch.device("cpu"), False)
    epochs_s = []
    with TemporaryDirectory() as folder:
        job = Job(Opener(Null(), Path(folder), schema), Order(batch_size=BATCH_SIZE))
        for number in range(ROUNDS):
            measured = measure(one, job, transfer, RoundSpec(number, lambda batch: None, seconds=0.0))
            epochs_s.append(measured.timing.epochs_s)
    return statistics.median(epochs_s) / BATCHES * 1e6


def main() -> None:
    """Measure three loaders and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    for word in ("native", "stream", "dataloader:fetch=batch"):
        print(f"{word:24} {floor_us(word):6.2f} µs per batch")


if __name__ == "__main__":
    main()
