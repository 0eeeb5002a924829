"""Small images in several formats and as PNG files, contenders that read them, and tests of HDF5 and LMDB."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
from torch.utils.data import DataLoader

from iobench import formats
from iobench.base.units import MIB
from iobench.dataset.manifest import Manifest
from iobench.dataset.opener import Opener
from iobench.dataset.prepare import prepare
from iobench.dataset.sources import Synthetic
from iobench.host import page_cache
from iobench.loading.loaders import Job
from iobench.loading.loaders.dataloader import TorchDataLoader
from iobench.loading.loaders.sample_datasets import SampleDataset
from iobench.loading.order import Order
from iobench.loading.portable_error import PortableError
from iobench.studies._base import StudyOptions
from iobench.studies._epochs import TrainingInParts, epochs
from iobench.studies._rounds import Contender
from iobench.studies._subprocess import Heartbeat

HEARTBEAT_SAMPLES = 100


def misread_by_forks(heartbeat: Heartbeat, opener: Opener, truth: Opener, workers: int, epochs: int) -> int:
    """Return how many samples forked workers read wrong through one handle opened before the fork."""
    dataset, field = SampleDataset(replace(opener, random=True)), opener.schema.fields[0].name
    dataset.open().sample(0)
    wrong = 0
    with truth() as reader:
        for epoch in range(epochs):
            rows = np.random.Generator(np.random.PCG64(epoch)).permutation(len(dataset))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about more workers than cores
                loader = iter(_forked(dataset, rows.tolist(), workers))
            for number, (row, sample) in enumerate(zip(rows, _unwrapped(loader), strict=True)):
                if number % HEARTBEAT_SAMPLES == 0:
                    heartbeat()
                wrong += not np.array_equal(sample[field][0].numpy(), reader.sample(int(row))[field])
    return wrong


def _unwrapped(samples: Iterator[Any]) -> Iterator[Any]:
    """Yield the samples of workers, and raise the errors of iobench as they were raised there."""
    try:
        yield from samples
    except PortableError as error:
        raise error.unwrap() from None


def _forked(dataset: Any, rows: list[int], workers: int) -> DataLoader[Any]:
    return DataLoader(dataset, sampler=rows, num_workers=workers, multiprocessing_context="fork")


def lmdb_when_full() -> tuple[bool, bool]:
    """Return whether LMDB refuses data beyond its map size, and accepts them after the map was enlarged."""
    with tempfile.TemporaryDirectory(prefix="iobench-") as folder, lmdb.open(folder, map_size=MIB) as env:
        refused = not _puts(env, 2 * MIB)
        env.set_mapsize(8 * MIB)
        return refused, _puts(env, 2 * MIB)


def hdf5_resizes() -> bool:
    """Return whether rows can be appended to an HDF5 dataset that holds data."""
    with tempfile.TemporaryDirectory(prefix="iobench-") as folder:
        with h5py.File(Path(folder) / "x.h5", "w") as file:
            rows = file.create_dataset("x", data=np.arange(10), maxshape=(None,), chunks=(4,))
            rows.resize(20, axis=0)
            rows[10:] = np.arange(10, 20)
        with h5py.File(Path(folder) / "x.h5") as file:
            return bool((file["x"][:] == np.arange(20)).all())


def _puts(env: lmdb.Environment, count: int) -> bool:
    try:
        with env.begin(write=True) as txn:
            txn.put(b"key", bytes(count))
    except lmdb.MapFullError:
        return False
    return True


FORMATS = ("npy", "hdf5", "lmdb", "lmdb:codec=lz4", "memmap")  # in addition to png
BATCHES, QUICK_BATCHES = (8, 16, 32, 64, 128), (8, 32, 128)
WORKERS, QUICK_WORKERS = (0, 2, 4, 8, 16), (0, 2)  # the last for all formats
PUBLISHED, QUICK = 8192, 256  # patches
SIDE, SMALL_SIDE, CHANNELS = 64, 16, 3  # pixels
COMPRESSIBILITY = 0.4  # about that of photographs with PNG and lz4


def sizes_of(options: StudyOptions) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Return the number of patches, the batch sizes and the numbers of workers."""
    return (QUICK, QUICK_BATCHES, QUICK_WORKERS) if options.quick else (PUBLISHED, BATCHES, WORKERS)


def contenders_of(options: StudyOptions, openers: Mapping[str, Opener]) -> dict[str, Contender]:
    """Return every format with every batch size, and PNG with fewer workers.

    The latter with the smallest and the largest batch size.
    """
    _, batches, (*fewer, most) = sizes_of(options)
    largest = {
        f"{name}, batch {batch}": _contender(opener, options, batch, most)
        for name, opener in openers.items()
        for batch in batches
    }
    return largest | {
        f"png, batch {batch}, {count} workers": _contender(openers["png"], options, batch, count)
        for batch in (batches[0], batches[-1])
        for count in fewer
    }


def pinned_contenders(options: StudyOptions, openers: Mapping[str, Opener]) -> dict[str, Contender]:
    """Return contenders with pinned and with pageable memory and few workers; none without a GPU."""
    if not options.gpu:
        return {}
    _, batches, (_, few, *_) = sizes_of(options)
    small = _prepared(options, SMALL_SIDE).opener("npy")
    return {
        pinned_name(side, batch, pinned): _contender(opener, options, batch, few, pinned)
        for side, opener in ((SMALL_SIDE, small), (SIDE, openers["npy"]))
        for batch in (batches[0], batches[-1])
        for pinned in (True, False)
    }


def pinned_name(side: int, batch: int, pinned: bool) -> str:
    """Return the name of a contender with pinned or pageable memory."""
    return f"npy, {side} pixels, batch {batch}, {'pinned' if pinned else 'pageable'}"


def _contender(
    opener: Opener, options: StudyOptions, batch: int, workers: int, pinned: bool | None = None
) -> Contender:
    fork = "fork" if workers else None  # other start methods would take up most of the time
    loader = TorchDataLoader(num_workers=workers, start_method=fork, pin_memory=pinned)
    job = Job(opener, Order("random", batch), options.device)
    return epochs(loader, job, consumer=TrainingInParts)


def _prepared(options: StudyOptions, side: int) -> Manifest:
    size = sizes_of(options)[0] * side * side * CHANNELS
    source = Synthetic(size, (side, side, CHANNELS), "uint8", compressibility=COMPRESSIBILITY)
    name = f"patches-{side}-{source.schema.samples}"
    manifest = prepare(source, FORMATS, data_dir=options.folder, name=name)[0]
    page_cache.warm([file for variant in FORMATS for file in manifest.files_of(variant)])
    return manifest


def openers_of(options: StudyOptions, folder: Path) -> dict[str, Opener]:
    """Write PNG files into an empty folder, and return the opener of every format and of these."""
    png = formats.get("images")
    options.on_status("writing patches")
    manifest = _prepared(options, SIDE)
    opener = manifest.opener("npy")
    with opener() as reader:
        png.write(
            folder / "png", opener.schema, (reader.batch(slice(row, row + 1)) for row in range(len(reader)))
        )
    return {
        "png": Opener(png, folder / "png", opener.schema),
        **{variant: manifest.opener(variant) for variant in FORMATS},
    }
