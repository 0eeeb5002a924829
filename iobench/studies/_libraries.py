"""What is said of HDF5 and LMDB as such, tried out."""

from __future__ import annotations

import tempfile
import warnings
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
from iobench.studies._apart import Heartbeat

ALIVE_EVERY = 100  # samples


def misread_by_forks(heartbeat: Heartbeat, opener: Opener, truth: Opener, workers: int, epochs: int) -> int:
    """How many samples forked workers got wrong through one handle, opened before, that all share."""
    dataset, field = SampleDataset(replace(opener, random=True)), opener.schema.fields[0].name
    dataset.open().sample(0)
    wrong = 0
    with truth() as reader:
        for epoch in range(epochs):
            rows = np.random.Generator(np.random.PCG64(epoch)).permutation(len(dataset))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of more workers than cores
                loader = iter(_forked(dataset, rows.tolist(), workers))
            for number, (row, sample) in enumerate(zip(rows, loader, strict=True)):
                if number % ALIVE_EVERY == 0:
                    heartbeat()
                wrong += not np.array_equal(sample[field][0].numpy(), reader.sample(int(row))[field])
    return wrong


def _forked(dataset: Any, rows: list[int], workers: int) -> DataLoader[Any]:
    return DataLoader(dataset, sampler=rows, num_workers=workers, multiprocessing_context="fork")


def lmdb_when_full() -> tuple[bool, bool]:
    """Whether LMDB refuses what does not fit into its map, and takes it once the map was enlarged."""
    with tempfile.TemporaryDirectory(prefix="iobench-") as folder, lmdb.open(folder, map_size=MIB) as env:
        refused = not _puts(env, 2 * MIB)
        env.set_mapsize(8 * MIB)
        return refused, _puts(env, 2 * MIB)


def hdf5_resizes() -> bool:
    """Whether a dataset in HDF5 that holds data takes more rows."""
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
