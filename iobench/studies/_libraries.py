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

from iobench.loaders.dataloader import SampleDataset
from iobench.manifest import Opener

MIB = 1 << 20


def misread_by_forks(opener: Opener, truth: Opener, workers: int, epochs: int) -> int:
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
            for row, sample in zip(rows, loader, strict=True):
                wrong += not np.array_equal(sample[field][0].numpy(), reader.sample(int(row))[field])
    return wrong


def _forked(dataset: SampleDataset, rows: list[int], workers: int) -> DataLoader[Any]:
    return DataLoader(dataset, sampler=rows, num_workers=workers, multiprocessing_context="fork")


def lmdb_refuses_more() -> bool:
    """Whether LMDB refuses what does not fit into the map that it was opened with."""
    with tempfile.TemporaryDirectory(prefix="iobench-") as folder, lmdb.open(folder, map_size=MIB) as env:
        try:
            _put(env, 2 * MIB)
        except lmdb.MapFullError:
            return True
        return False


def lmdb_grows() -> bool:
    """Whether an LMDB environment that is full takes more once its map was enlarged."""
    with tempfile.TemporaryDirectory(prefix="iobench-") as folder, lmdb.open(folder, map_size=MIB) as env:
        env.set_mapsize(8 * MIB)
        _put(env, 2 * MIB)
        return True


def hdf5_resizes() -> bool:
    """Whether a dataset in HDF5 that holds data takes more rows."""
    with tempfile.TemporaryDirectory(prefix="iobench-") as folder:
        with h5py.File(Path(folder) / "x.h5", "w") as file:
            rows = file.create_dataset("x", data=np.arange(10), maxshape=(None,), chunks=(4,))
            rows.resize(20, axis=0)
            rows[10:] = np.arange(10, 20)
        with h5py.File(Path(folder) / "x.h5") as file:
            return bool((file["x"][:] == np.arange(20)).all())


def _put(env: lmdb.Environment, count: int) -> None:
    with env.begin(write=True) as txn:
        txn.put(b"key", bytes(count))
