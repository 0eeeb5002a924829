"""Well-built loaders: no setting would help much."""

from __future__ import annotations

import time
from pathlib import Path

import h5py
import lmdb
import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    get_worker_info,
)

from eval.loaders.answers import CORES, Answer, Augmented, Computed
from eval.loaders.data import ROWS, WIDE, lengths


class WholeBatches(Dataset):
    """Arrays, indexed once per batch."""

    def __init__(self, arrays):
        self.arrays = arrays

    def __len__(self):
        return len(next(iter(self.arrays.values())))

    def __getitem__(self, rows):
        return {name: torch.from_numpy(array[rows]) for name, array in self.arrays.items()}


def whole(dataset, size, **options):
    """Return a DataLoader that reads whole batches in random order."""
    sampler = BatchSampler(RandomSampler(dataset), size, drop_last=False)
    return DataLoader(dataset, batch_size=None, sampler=sampler, **options)


def arrays(folder: Path):
    return whole(WholeBatches({"x": np.random.default_rng(0).random((60_000, 64), np.float32)}), 512)


def many_fields(folder: Path):
    rng = np.random.default_rng(0)
    return whole(WholeBatches({f"f{n}": rng.random((20_000, 4), np.float32) for n in range(30)}), 256)


def memmapped_images(folder: Path):
    path = folder / "images.npy"
    if not path.exists():
        np.save(path, np.random.default_rng(0).integers(0, 255, (2000, 64, 64, 3), np.uint8))
    return whole(WholeBatches({"x": np.load(path, mmap_mode="r")}), 64)


class Tokens(Dataset):
    def __init__(self, path, length=256):
        self.tokens, self.length = np.memmap(path, np.uint16, "r"), length

    def __len__(self):
        return len(self.tokens) // self.length

    def __getitem__(self, rows):
        rows = np.asarray(rows)[:, None] * self.length + np.arange(self.length)
        return torch.from_numpy(self.tokens[rows].astype(np.int64))


def tokens(folder: Path):
    return whole(Tokens(folder / "tokens.bin"), 32)


class Hdf5Batches(Dataset):
    """Rows of a file that the first read opens; each batch is read in file order."""

    def __init__(self, path):
        self.path, self.file = path, None

    def __len__(self):
        return ROWS

    def __getitem__(self, rows):
        self.file = self.file or h5py.File(self.path)
        order = np.argsort(rows)
        return torch.from_numpy(self.file["x"][np.asarray(rows)[order]][np.argsort(order)])


def hdf5(folder: Path):
    return whole(Hdf5Batches(folder / "plain.h5"), 64)


class LmdbBatches(Dataset):
    def __init__(self, path):
        self.path, self.env = str(path), None

    def __len__(self):
        return ROWS

    def __getitem__(self, rows):
        self.env = self.env or lmdb.open(self.path, readonly=True, lock=False)
        with self.env.begin(buffers=True) as transaction:
            values = [np.frombuffer(transaction.get(row.to_bytes(4, "big")), np.float32) for row in rows]
            return torch.from_numpy(np.stack(values))


def lmdb_batches(folder: Path):
    return whole(LmdbBatches(folder / "lmdb"), 64)


def augmented(folder: Path):
    return DataLoader(Augmented(600), 32, shuffle=True, num_workers=CORES, persistent_workers=True)


def remote(folder: Path):
    """A random crop of each object, as if of more objects than memory holds."""

    def fetch(row):
        time.sleep(4e-3)
        return torch.rand(WIDE)

    return DataLoader(Computed(2000, fetch), 16, num_workers=16, persistent_workers=True, prefetch_factor=4)


def padded(rows):
    return pad_sequence(rows, batch_first=True)


class ByLength:
    """Batches of sequences of similar length."""

    def __init__(self, lengths, size):
        order = np.argsort(lengths, kind="stable")
        self.batches = [order[i : i + size].tolist() for i in range(0, len(order), size)]

    def __iter__(self):
        shuffled = np.random.default_rng().permutation(len(self.batches))
        return iter([self.batches[number] for number in shuffled])

    def __len__(self):
        return len(self.batches)


def bucketed(folder: Path):
    long = lengths()
    rng = np.random.default_rng(2)
    rows = [torch.from_numpy(rng.integers(1, 30_000, n)) for n in long]
    return DataLoader(
        Computed(len(rows), rows.__getitem__), batch_sampler=ByLength(long, 32), collate_fn=padded
    )


def web_dataset(folder: Path):
    import webdataset

    def decode(sample):
        return torch.frombuffer(bytearray(sample["jpg"]), dtype=torch.uint8)[:1024], int(sample["cls"])

    data = webdataset.WebDataset(str(folder / "shard.tar"), shardshuffle=False, empty_check=False)
    return data.shuffle(100).map(decode).batched(32)


def hugging_face(folder: Path):
    import datasets

    rows = np.random.default_rng(0).random((4000, 64), np.float32)
    data = datasets.Dataset.from_dict({"x": rows}).with_format("numpy")
    return whole(_Rows(data), 256)


class _Rows(Dataset):
    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, rows):
        return torch.from_numpy(self.data[rows]["x"])


class Share(IterableDataset):
    """Numbers of a range, in blocks that workers share among them."""

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for block in range(first, 400, step):
            numbers = np.random.default_rng(block).random(400_000, np.float32)
            yield torch.from_numpy(np.sort(numbers)[:6400].reshape(64, 100))


def shared_stream(folder: Path):
    return DataLoader(Share(), batch_size=None, num_workers=CORES, persistent_workers=True)


def crops(folder: Path):
    """Random crops of images that were decoded once, in a memory-mapped file."""
    images = memmapped_images(folder).dataset.arrays["x"]

    def crop(row):
        top, left = np.random.default_rng().integers(0, 8, 2)
        return torch.from_numpy(np.array(images[row, top : top + 56, left : left + 56]))

    return DataLoader(Computed(len(images), crop), 64, shuffle=True)


def table(folder: Path):
    """Columns of a table as arrays, indexed once per batch."""
    rng = np.random.default_rng(0)
    columns = {"x": rng.random((50_000, 41), np.float32), "label": rng.integers(0, 10, 50_000)}
    return whole(WholeBatches(columns), 1024)


def pairs(folder: Path):
    """Two views of each image, joined by a collate function that torch's own is no substitute for."""
    rows = torch.rand(512, 3, 64, 64)

    def views(indices):
        batch = rows[torch.as_tensor(indices)]
        return torch.cat([batch + torch.rand(len(indices), 1, 1, 1), batch.flip(3)])

    return whole(Computed(512, views), 32)


ANSWERS = dict.fromkeys(
    (
        *(arrays, many_fields, memmapped_images, tokens, hdf5, lmdb_batches),
        *(augmented, remote, bucketed, web_dataset, hugging_face),
        *(shared_stream, crops, table, pairs),
    ),
    Answer(),
)
