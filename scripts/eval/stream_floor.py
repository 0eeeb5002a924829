"""Compare StreamLoader from warm memory with the plainest loop over the same rows, in MB/s.

Prepares rows of 512 B and 4 KiB (200 MB each) and of 150 KB (600 MB at scale 1) in the data folder. The loop
is what a careful person writes: slices of a private map in order, otherwise torch.index_select of it into
four buffers in turn. Both draw their rows within the epoch, and their consumer copies each batch out.

Each row has the time to the first batch and the minor page faults of StreamLoader's later epochs, as medians.
`huge` measures these for 20 GB: a sparse file, of which one rank of many reads its share.
"""

from __future__ import annotations

import argparse
import resource
import statistics
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from time import perf_counter
from typing import Any
from unittest import mock

import numpy as np
import torch

import iobench
from eval import harness
from eval.harness import Rate, Row, Trials
from iobench import Manifest, StreamLoader, formats
from iobench.dataset.opener import Opener
from iobench.formats import Field, Rows, Schema
from iobench.host import page_cache
from iobench.loading.batching import Batching
from iobench.loading.order import ORDERS
from iobench.stream.backend_selection import select_backend
from iobench.stream.options import ReadOptions
from iobench.stream.pipeline import Pipeline
from iobench.stream.transfer import transfer_to

OPTIONS = {"rounds": (9, harness.ROUNDS), "scale": (1.0, "of the datasets' size")}
SAMPLES = {  # bytes of a sample, of all samples, and batch size
    "512B": (512, 2e8, 1024),
    "4KiB": (4 << 10, 2e8, 256),
    "150KB": (3 * 224 * 224, 6e8, 128),
}
HUGE_ROWS, HUGE_RANKS = 40_000_000, 2000  # of 512 bytes
EXPECTED = 1.0

Epochs = Callable[[], Iterator[Any]]


def trials(options: argparse.Namespace) -> Trials:
    shown = {
        f"{size}-{order}": partial(compare, options, size, order) for size in SAMPLES for order in ORDERS
    }
    return {**shown, "huge": partial(huge, options)}


def compare(options: argparse.Namespace, size: str, order: str) -> Iterator[Row]:
    """Compare StreamLoader with every loop for rows of one size in one order."""
    manifest, batch_size = dataset(options, size)
    page_cache.warm(manifest.files_of("npy"))
    batching = Batching(order, batch_size)
    loader = StreamLoader(manifest.root, format="npy", batch_size=batch_size, order=order)
    size, copied = manifest.schema.logical_bytes, consumer(manifest.schema, batch_size)
    later = LaterEpochs(lambda: copied(batch["x"] for batch in loader), options.rounds)
    contenders: dict[str, Rate] = {
        "stream": lambda _: size / later.measure(),
        "plain": lambda _: size / harness.timed(lambda: list(copied(plain(manifest, batching))))[1],
    }
    rates = harness.medians(contenders, options.rounds)
    loader.close()
    yield {**harness.against(rates, "stream", "plain", EXPECTED), **later.medians}


def consumer(schema: Schema, batch_size: int) -> Callable[[Iterator[torch.Tensor]], Iterator[None]]:
    """Return a consumer that copies each batch into one tensor, as one does that touches it."""
    into = torch.empty((batch_size, *schema.fields[0].shape), dtype=torch.uint8)

    def copied(batches: Iterator[torch.Tensor]) -> Iterator[None]:
        for batch in batches:
            into[: len(batch)].copy_(batch)
            yield

    return copied


def dataset(options: argparse.Namespace, size: str) -> tuple[Manifest, int]:
    """Prepare the rows of one size, unless they are there; return them and the batch size."""
    sample_bytes, total, batch_size = SAMPLES[size]
    source = iobench.Synthetic(int(total * options.scale), (sample_bytes,), dtype="uint8")
    name = f"floor-{size}-{options.scale}"
    return iobench.prepare(source, ["npy"], data_dir=options.data_dir, name=name)[0], batch_size


def plain(manifest: Manifest, batching: Batching) -> Iterator[torch.Tensor]:
    """Yield the batches of an epoch as a loop by hand does."""
    memory = torch.from_numpy(np.load(manifest.files_of("npy")[0], mmap_mode="c"))
    buffers = [torch.empty((batching.batch_size, *memory.shape[1:]), dtype=memory.dtype) for _ in range(4)]
    samples, size = len(memory), batching.batch_size
    rows: Iterator[Rows | torch.Tensor] = iter(batching.row_order(manifest.schema).batches(samples, 0))
    if batching.order == "random":
        rows = iter(torch.randperm(samples).split(size))
    for number, some in enumerate(rows):
        if isinstance(some, slice):
            yield memory[some]
        else:
            index = torch.as_tensor(some)
            yield torch.index_select(memory, 0, index, out=buffers[number % 4][: len(index)])


def huge(options: argparse.Namespace) -> Iterator[Row]:
    """Measure the start of later epochs of 20 GB in random order."""
    schema = Schema(HUGE_ROWS, (Field("x", (512,), "uint8"),))
    folder = options.folder / "npy"
    folder.mkdir()
    np.lib.format.open_memmap(folder / "x.npy", "w+", np.uint8, (HUGE_ROWS, 512))
    order = Batching("random", 1024).row_order(schema, 0, HUGE_RANKS)
    with mock.patch.object(page_cache, "residency", return_value=1.0):  # holes are in no page cache
        opener = Opener(formats.parse("npy"), folder, schema)
        backend = select_backend(opener, schema, ReadOptions(direct=False), 1024)
        with closing(Pipeline(backend, schema, order, transfer_to(torch.device("cpu")))) as pipeline:

            def epoch(number: int) -> Iterator[Any]:
                assert pipeline.is_current()
                yield from pipeline.run(order.batches(HUGE_ROWS, number))

            later = LaterEpochs(partial(epoch, 0), options.rounds)
            yield {"contender": "stream", **later.medians}


class LaterEpochs:
    """Epochs of one loader, and the medians of some that follow each other, without the first one.

    Other contenders between these would change what is in the CPU caches.
    """

    def __init__(self, epochs: Epochs, count: int) -> None:
        self._epochs = epochs
        self._first_s, self._faults = list[float](), list[int]()
        for _ in range(1 + count):
            self.measure()
        first_ms = 1e3 * statistics.median(self._first_s[1:])
        self.medians = {"first batch ms": first_ms, "minor faults": statistics.median(self._faults[1:])}

    def measure(self) -> float:
        """Read one epoch and return its seconds."""
        faults, began = minor_faults(), perf_counter()
        batches = self._epochs()
        next(batches)
        self._first_s.append(perf_counter() - began)
        for _ in batches:
            pass
        elapsed_s = perf_counter() - began
        self._faults.append(minor_faults() - faults)
        return elapsed_s


def minor_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
