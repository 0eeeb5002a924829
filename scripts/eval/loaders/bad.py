"""Loaders with one common problem each, and the kinds of advice that count as a hit (any of several)."""

from __future__ import annotations

import time
from pathlib import Path

import h5py
import lmdb
import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, TensorDataset

from eval.loaders.data import IMAGES, ROWS, WIDE, lengths
from eval.loaders.datasets import Augmented, Computed

TWO = {"num_workers": 2, "multiprocessing_context": "fork"}


def tensor_dataset(folder: Path):
    return DataLoader(TensorDataset(torch.randn(30_000, 16), torch.arange(30_000)), 256, shuffle=True)


def lists_in_collate(folder: Path):
    rows = [[float(n + k) for k in range(256)] for n in range(2000)]
    return DataLoader(Computed(2000, rows.__getitem__), 64, collate_fn=lambda batch: torch.tensor(batch))


def lists_of_hugging_face(folder: Path):
    import datasets

    rows = np.random.default_rng(0).integers(0, 30_000, (1500, 256))
    data = datasets.Dataset.from_dict({"ids": rows.tolist()})

    def collate(batch):
        return torch.tensor([one["ids"] for one in batch])

    return DataLoader(data, 32, collate_fn=collate)


def threads_of_svd(folder: Path):
    noise = np.random.default_rng(0).random((64, 100, 100))

    def whiten(row):
        left, _, right = np.linalg.svd(noise[row])
        return torch.from_numpy(left @ right)

    return DataLoader(Computed(64, whiten), 4, num_workers=4, multiprocessing_context="fork")


def decoding(folder: Path):
    paths = sorted((folder / "images").glob("*.jpg"))

    def decode(row):
        with Image.open(paths[row]) as image:
            return torch.from_numpy(np.array(image.convert("RGB")))

    return DataLoader(Computed(IMAGES, decode), 32, shuffle=True)


def decoding_and_transforms(folder: Path):
    paths = sorted((folder / "images").glob("*.jpg"))

    def transform(row):
        with Image.open(paths[row]) as image:
            left, top = np.random.default_rng().integers(0, 32, 2).tolist()
            image = image.convert("RGB").crop((left, top, left + 128, top + 128)).resize((112, 112))
            return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255

    return DataLoader(Computed(IMAGES, transform), 32, shuffle=True, num_workers=4, persistent_workers=True)


class Hdf5Rows(Dataset):
    """Rows of a file that the constructor opens, as in most examples."""

    def __init__(self, path):
        self.x = h5py.File(path)["x"]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        return torch.from_numpy(self.x[row])


def chunks(folder: Path):
    return DataLoader(Hdf5Rows(folder / "gzip.h5"), 32, shuffle=True)


def shared_hdf5(folder: Path):
    return DataLoader(Hdf5Rows(folder / "plain.h5"), 64, shuffle=True, **TWO)


class LmdbRows(Dataset):
    def __init__(self, path):
        self.env = lmdb.open(str(path), readonly=True, lock=False)

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        with self.env.begin() as transaction:
            return torch.frombuffer(bytearray(transaction.get(row.to_bytes(4, "big"))), dtype=torch.float32)


def shared_lmdb(folder: Path):
    return DataLoader(LmdbRows(folder / "lmdb"), 64, shuffle=True, **TWO)


def padding(folder: Path):
    long, rng = lengths(), np.random.default_rng(2)
    rows = torch.zeros(len(long), 512, dtype=torch.int64)
    for number, length in enumerate(long):
        rows[number, :length] = torch.from_numpy(rng.integers(1, 30_000, length))
    return DataLoader(Computed(len(rows), rows.__getitem__), 32, shuffle=True)


def many_tensors(folder: Path):
    sample = {f"f{number}": torch.zeros(2) for number in range(40)}
    return DataLoader(Computed(1500, lambda row: sample), 32)


def workers_for_nothing(folder: Path):
    rows = torch.zeros(8000, 16)
    return DataLoader(Computed(8000, rows.__getitem__), 16, **TWO)


def slow_disk_far_away(folder: Path):
    def fetch(row):
        time.sleep(3e-3)
        return torch.zeros(WIDE)

    return DataLoader(Computed(256, fetch), 16)


def augmentation_without_workers(folder: Path):
    return DataLoader(Augmented(200), 16, shuffle=True)


def workers_that_start_slowly(folder: Path):
    late = {"worker_init_fn": lambda number: time.sleep(0.4)}
    return DataLoader(Augmented(200), 16, num_workers=4, multiprocessing_context="fork", **late)


LOADERS = {
    tensor_dataset: ("tensor-dataset",),
    lists_in_collate: ("python-lists",),
    lists_of_hugging_face: ("python-lists",),
    threads_of_svd: ("threads",),
    decoding: ("decoding",),
    decoding_and_transforms: ("decoding",),
    chunks: ("hdf5-chunks",),
    shared_hdf5: ("open-handles",),
    shared_lmdb: ("open-handles",),
    padding: ("padding",),
    many_tensors: ("collate",),
    workers_for_nothing: ("workers-cost", "per-sample"),
    slow_disk_far_away: ("too-few-workers",),
    augmentation_without_workers: ("too-few-workers",),
    workers_that_start_slowly: ("first-batch", "workers-cost"),
}
LOADERS = {one.__name__: (one, kinds) for one, kinds in LOADERS.items()}
