"""Experiments with the libraries of HDF5 and LMDB."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
from torch.utils.data import DataLoader

from iobench.base.units import MIB
from iobench.dataset.manifest import Opener
from iobench.loading.loaders.dataloader import SampleDataset
from iobench.loading.portable_error import PortableError
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
