"""Compare iobench's cases with minimal hand-written loops over the same libraries and data.

A loop reads one epoch of batches from one format, without checks, timing or options. Loops and cases take
turns, with a warm page cache. The dataset must have one field, `x`, as the default has.
"""

from __future__ import annotations

import argparse
import struct
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import torch
from tensordict import TensorDict, tensorclass
from torch.utils.data import DataLoader

from eval import harness
from eval.harness import Row, Trials
from eval.loaders.datasets import Computed
from iobench import Manifest
from iobench.loading.order import Order

OPTIONS = {
    "name": ("", harness.NAME),
    "order": ("sequential", "sequential or random"),
    "batch_size": (256, "samples per batch"),
    "rounds": (7, harness.ROUNDS),
}
warnings.filterwarnings("ignore", message="The given NumPy array is not writ")


@tensorclass
class Samples:
    x: torch.Tensor


def npy_native(path: Path, batches: list[Any], field: Any) -> Iterator[torch.Tensor]:
    x = np.load(path / "x.npy", mmap_mode="r")
    for rows in batches:
        yield torch.from_numpy(np.array(x[rows]))


def npy_sample(path: Path, batches: list[Any], field: Any) -> Iterator[torch.Tensor]:
    x = np.asarray(np.load(path / "x.npy", mmap_mode="r"))
    yield from _dataloader(len(x), lambda row: torch.from_numpy(x[row]), batches)


def hdf5_native(path: Path, batches: list[Any], field: Any) -> Iterator[torch.Tensor]:
    with h5py.File(path / "data.h5", "r", rdcc_nbytes=_chunk_cache(batches)) as file:
        x = file["x"]
        for rows in batches:
            if isinstance(rows, slice):
                yield torch.from_numpy(x[rows])
            elif x.chunks:
                batch = np.empty((len(rows), *x.shape[1:]), x.dtype)
                for slot in np.argsort(rows):
                    batch[slot] = x[rows[slot]]
                yield torch.from_numpy(batch)
            else:
                ranks = np.argsort(rows)
                batch = np.empty((len(rows), *x.shape[1:]), x.dtype)
                batch[ranks] = x[rows[ranks]]
                yield torch.from_numpy(batch)


def hdf5_sample(path: Path, batches: list[Any], field: Any) -> Iterator[torch.Tensor]:
    with h5py.File(path / "data.h5", "r", rdcc_nbytes=_chunk_cache(batches)) as file:
        x = file["x"]
        yield from _dataloader(len(x), lambda row: torch.from_numpy(x[row]), batches)


def lmdb_native(path: Path, batches: list[Any], field: Any) -> Iterator[torch.Tensor]:
    key = struct.Struct(">Q")
    with lmdb.open(str(path), readonly=True, lock=False) as env:
        for rows in batches:
            rows = range(rows.start, rows.stop) if isinstance(rows, slice) else rows.tolist()
            batch = np.empty((len(rows), *field.shape), field.dtype)
            with env.begin(buffers=True) as txn:
                for slot, row in enumerate(rows):
                    value = np.frombuffer(txn.get(key.pack(row)), field.dtype, offset=8)
                    batch[slot] = value.reshape(field.shape)
            yield torch.from_numpy(batch)


def lmdb_sample(path: Path, batches: list[Any], field: Any) -> Iterator[torch.Tensor]:
    key = struct.Struct(">Q")
    with lmdb.open(str(path), readonly=True, lock=False) as env:

        def get(row: int) -> torch.Tensor:
            with env.begin() as txn:
                value = np.frombuffer(txn.get(key.pack(row)), field.dtype, offset=8)
            return torch.from_numpy(value.reshape(field.shape))

        yield from _dataloader(env.stat()["entries"] - 1, get, batches)


def memmap_native(path: Path, batches: list[Any], field: Any) -> Iterator[torch.Tensor]:
    samples = Samples.from_tensordict(TensorDict.load_memmap(path))
    for rows in batches:
        batch = samples[rows].clone() if isinstance(rows, slice) else samples[torch.from_numpy(rows)]
        yield batch.x


def memmap_sample(path: Path, batches: list[Any], field: Any) -> Iterator[torch.Tensor]:
    x = TensorDict.load_memmap(path)["x"]
    yield from _dataloader(len(x), lambda row: x[row], batches)


def _chunk_cache(batches: list[Any]) -> int:
    """Return the size of HDF5's chunk cache: the default in order, none at random to read single rows."""
    return 1 << 20 if isinstance(batches[0], slice) else 0


def _dataloader(count: int, get: Callable[[int], torch.Tensor], batches: list[Any]) -> Iterator[torch.Tensor]:
    sampler = [range(r.start, r.stop) if isinstance(r, slice) else r.tolist() for r in batches]
    for batch in DataLoader(Computed(count, lambda row: {"x": get(row)}), batch_sampler=sampler):
        yield batch["x"]


LOOPS = {
    "npy": (npy_native, npy_sample),
    "hdf5": (hdf5_native, hdf5_sample),
    "lmdb": (lmdb_native, lmdb_sample),
    "memmap": (memmap_native, memmap_sample),
}


def trials(options: argparse.Namespace) -> Trials:
    manifest, order = harness.dataset(options), Order(options.order, options.batch_size)
    return {
        f"{variant} {loader}": partial(compare, manifest, variant, loader, loop, order, options.rounds)
        for variant in manifest.artifacts
        if variant.partition(":")[0] in LOOPS and "codec" not in variant
        for loader, loop in zip(("native", "dataloader"), LOOPS[variant.partition(":")[0]], strict=True)
    }


def compare(
    manifest: Manifest, variant: str, loader: str, loop: Any, order: Order, rounds: int
) -> Iterator[Row]:
    """Yield the samples/s of a case and of a loop: medians over alternating warm epochs."""
    epoch, field = harness.epochs(manifest, variant, loader, order), manifest.schema.fields[0]
    samples = manifest.schema.samples

    def case_rate(number: int) -> float:
        timing = epoch(number).timing
        return timing.samples / (timing.epochs_s + timing.open_s)

    def loop_rate(number: int) -> float:
        batches = list(order.batches(samples, number))
        path = manifest.path_of(variant)
        count, elapsed_s = harness.timed(lambda: sum(map(len, loop(path, batches, field))))
        assert count == samples, count
        return count / elapsed_s

    rates = harness.medians({"case": case_rate, "loop": loop_rate}, rounds)
    yield {"order": order.kind, **harness.against(rates, "case", "loop", 1.0, 1.0)}
