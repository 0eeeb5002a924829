"""Compare iobench's cases with minimal hand-written loops over the same libraries and data.

    .venv/bin/python scripts/minimal_loops.py [--order random] [--data-dir data] [--name NAME]

Takes about two minutes for 40 MB in four formats. A loop reads one epoch of batches from one format, without
checks, timing or options. Loops and cases take turns, with a warm page cache. The table has the samples/s of
both and the case's as a fraction of the loop's (medians). The dataset must have one field, `x`, as the
default has.
"""

from __future__ import annotations

import argparse
import statistics
import struct
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import torch
from tensordict import TensorDict, tensorclass
from torch.utils.data import DataLoader, Dataset

from iobench import find_dataset
from iobench.bench.epoch import RoundSpec, epoch_request, measure
from iobench.dataset.manifest import Manifest
from iobench.host import page_cache
from iobench.loading import loaders
from iobench.loading.host_to_device import HostToDevice
from iobench.loading.loaders import Job
from iobench.loading.order import Order

warnings.filterwarnings("ignore", message="The given NumPy array is not writ")


@tensorclass
class Samples:
    x: torch.Tensor


class Rows(Dataset[torch.Tensor]):
    """A map-style Dataset over a function that returns a sample."""

    def __init__(self, count: int, get: Callable[[int], torch.Tensor]) -> None:
        self.count, self.get = count, get

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return {"x": self.get(row)}


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
    for batch in DataLoader(Rows(count, get), batch_sampler=sampler):
        yield batch["x"]


def loop_rate(loop: Any, manifest: Manifest, variant: str, batches: list[Any]) -> float:
    """Return the samples/s of one epoch of a minimal loop."""
    field = manifest.schema.fields[0]
    started = time.perf_counter()
    count = sum(len(batch) for batch in loop(manifest.path_of(variant), batches, field))
    return count / (time.perf_counter() - started)


def compare(manifest: Manifest, variant: str, loader: str, order: Order, rounds: int) -> float:
    """Return the case's samples/s relative to the loop's: medians over alternating warm epochs."""
    suffix = "native" if loader == "native" else "sample"
    loop = globals()[f"{variant.partition(':')[0]}_{suffix}"]
    one, transfer = loaders.get(loader).on("cpu"), HostToDevice(torch.device("cpu"), False)
    job = Job(manifest.opener(variant), order)
    rates: dict[str, list[float]] = {"loop": [], "case": []}
    for number in range(rounds + 1):
        page_cache.warm(manifest.files_of(variant))
        measured = measure(one, job, transfer, RoundSpec(number, lambda batch: None, seconds=0.0)).timing
        if number:  # the first epoch is a warm-up
            rates["loop"].append(loop_rate(loop, manifest, variant, epoch_request(one, job, number)))
            rates["case"].append(measured.samples / (measured.epochs_s + measured.open_s))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    ratio = medians["case"] / medians["loop"]
    print(
        f"{variant:24} {loader:10} {order.kind:10} loop {medians['loop']:12,.0f}/s  "
        f"case {medians['case']:12,.0f}/s  {ratio:5.2f}"
    )
    return ratio


def main() -> None:
    """Compare every prepared variant."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="the data folder")
    parser.add_argument("--name", help="the dataset; default: the only one")
    parser.add_argument("--order", choices=("sequential", "random"), default="sequential")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each contender")
    parser.add_argument("--format", action="append", help="a prepared variant; default: all")
    options = parser.parse_args()
    manifest = find_dataset(options.data_dir, options.name)
    order = Order(options.order, options.batch_size)
    for variant in options.format or [v for v in manifest.artifacts if "codec" not in v]:
        for loader in ("native", "dataloader"):
            compare(manifest, variant, loader, order, options.rounds)


if __name__ == "__main__":
    main()
