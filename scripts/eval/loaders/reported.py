"""Loaders as people reported them in issue trackers, each with its repaired twin.

The first line of each states its cause; `LOADERS` has the kinds of advice that count as a hit.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import time
import zlib
from functools import cache, partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from eval.loaders.data import RECORD, RECORDS, SMALL_FILES
from eval.loaders.datasets import Computed

FORK = {"multiprocessing_context": "fork"}
CORES = len(os.sched_getaffinity(0))


def small_files(folder: Path, repaired: bool = False):
    """One .npy file per sample (ruotianluo/ImageCaptioning.pytorch#22)."""
    paths = [str(path) for path in sorted((folder / "small").glob("*.npy"))]
    packed = torch.from_numpy(np.stack([np.load(path) for path in paths])) if repaired else None

    def load(row):
        return packed[row] if repaired else torch.from_numpy(np.load(paths[row]))

    return DataLoader(Computed(SMALL_FILES, load), 32, shuffle=True)


def rows_of_a_table(folder: Path, repaired: bool = False):
    """DataFrame.iloc in __getitem__ (braindecode/braindecode#89)."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({f"c{number}": rng.random(4000, np.float32) for number in range(20)})
    table["label"] = rng.integers(0, 10, 4000)
    x, y = torch.from_numpy(table.iloc[:, :-1].to_numpy()), table["label"].tolist()

    def take(row):
        if repaired:
            return x[row], y[row]
        values = table.iloc[row]
        return torch.from_numpy(values.iloc[:-1].to_numpy(np.float32)), int(values["label"])

    return DataLoader(Computed(4000, take), 64, shuffle=True)


def photos_made_small(folder: Path, repaired: bool = False):
    """JPEG decoded whole, then resized to an eighth of its pixels and less (roboflow/rf-detr#1389)."""
    paths = sorted((folder / "photos").glob("*.jpg"))

    def transform(row):
        with Image.open(paths[row]) as image:
            if repaired:
                image.draft(None, (224, 224))
            small = image.convert("RGB").resize((224, 224))
        pixels = np.asarray(small)
        flipped = pixels[:, ::-1] if np.random.default_rng().random() < 0.5 else pixels
        return torch.from_numpy(np.ascontiguousarray(flipped))

    return DataLoader(Computed(len(paths), transform), 8, shuffle=True)


def tokenising(folder: Path, repaired: bool = False):
    """A tokenizer in Python, again in each epoch (bentrevett/pytorch-sentiment-analysis#6)."""
    rng = np.random.default_rng(0)
    words = [f"word{number}" for number in range(5000)]
    texts = [
        " ".join(words[n] for n in rng.integers(0, 5000, count)) + "." for count in rng.integers(60, 90, 1500)
    ]
    known, pattern = {word: number + 2 for number, word in enumerate(words)}, re.compile(r"\w+|[^\w\s]")

    def tokens(row):
        ids = [known.get(word.lower(), 1) for word in pattern.findall(texts[row])][:64]
        return torch.from_numpy(np.array(ids + [0] * (64 - len(ids))))

    ready = torch.stack([tokens(row) for row in range(len(texts))])
    return DataLoader(Computed(len(texts), ready.__getitem__ if repaired else tokens), 32, shuffle=True)


def locked_file(folder: Path, repaired: bool = False):
    """One file for all workers, behind a lock (pytorch/pytorch#41064)."""
    path, lock, opened = folder / "records.bin", multiprocessing.get_context("fork").Lock(), {}

    def unpacked(file, row):
        file.seek(row * RECORD)
        size = int.from_bytes(file.read(4), "big")
        return torch.frombuffer(bytearray(zlib.decompress(file.read(size))), dtype=torch.float32)

    def read(row):
        file = opened.setdefault(os.getpid(), None) or path.open("rb")
        opened[os.getpid()] = file
        if repaired:
            return unpacked(file, row)
        with lock:
            return unpacked(file, row)

    return DataLoader(Computed(RECORDS, read), 16, shuffle=True, num_workers=4, **FORK)


def manager_dict(folder: Path, repaired: bool = False):
    """Samples in a Manager's dict (ptrblck/pytorch_misc#14)."""
    samples, manager = np.random.default_rng(0).random((1500, 64), np.float32), multiprocessing.Manager()
    shared = samples if repaired else manager.dict(enumerate(samples))

    def take(row):
        return torch.from_numpy(shared[row])

    data = Computed(len(samples), take)
    data.manager = manager  # which ends when nothing refers to it
    return DataLoader(data, 32, shuffle=True)


def too_many_workers(folder: Path, repaired: bool = False):
    """Eight workers per core, started in each epoch (AILab-CVC/YOLO-World#413)."""
    rows = torch.zeros(3000, 256)

    def take(row):
        return rows[row].sort().values

    workers = 0 if repaired else 8 * CORES
    options = {"num_workers": workers, **(FORK if workers else {})}
    return DataLoader(Computed(len(rows), take), 32, shuffle=True, **options)


def long_queue(folder: Path, repaired: bool = False):
    """Gigabytes of batches fetched ahead (pytorch/pytorch#97432)."""
    image = torch.zeros(3, 1024, 1024)
    ahead = {"prefetch_factor": 2 if repaired else 32, "num_workers": 2, **FORK}
    return DataLoader(Computed(256, lambda row: image + row), 4, **ahead)


def far_files(folder: Path, repaired: bool = False):
    """Files of a network file system, each opened after a round trip (pytorch/pytorch#158218)."""
    paths = [str(path) for path in sorted((folder / "small").glob("*.npy"))]

    def load(row):
        time.sleep(5e-3)
        return torch.from_numpy(np.load(paths[row])) + torch.rand(1)

    workers = {"num_workers": 16, "persistent_workers": True} if repaired else {"num_workers": 1}
    return DataLoader(Computed(256, load), 16, shuffle=True, **workers, **FORK)


def list_of_arrays(folder: Path, repaired: bool = False):
    """torch.tensor() of a list of arrays (pytorch/pytorch#13918)."""
    rows = np.random.default_rng(0).random((2000, 512), np.float32)
    collate = None if repaired else torch.tensor
    return DataLoader(Computed(len(rows), rows.__getitem__), 64, collate_fn=collate)


def element_by_element(folder: Path, repaired: bool = False):
    """Numbers copied out of a tensor by .item() (pytorch/pytorch#43116)."""
    rows = torch.randn(1000, 64)

    def take(row):
        return rows[row] if repaired else torch.tensor([rows[row, k].item() for k in range(64)])

    return DataLoader(Computed(len(rows), take), 32, shuffle=True)


class Stream(IterableDataset):
    """Numbered samples; `shared` among workers."""

    def __init__(self, count, shared):
        self.count, self.shared = count, shared

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if self.shared and info else (0, 1)
        for row in range(first, self.count, step):
            time.sleep(2e-4)
            yield torch.full((64,), float(row))


def repeated_stream(folder: Path, repaired: bool = False):
    """An IterableDataset that each worker yields as a whole (pytorch/pytorch#30599)."""
    return DataLoader(Stream(1500, repaired), 32, num_workers=2, **FORK)


def pinned_without_a_device(folder: Path, repaired: bool = False):
    """pin_memory=True on a machine without a device (conservationtechlab/animl-py#209)."""
    rows = np.random.default_rng(0).integers(0, 255, (2000, 3072), np.uint8)
    return DataLoader(rows, batch_size=64, shuffle=True, pin_memory=not repaired)


def copied_twice(folder: Path, repaired: bool = False):
    """A collate function that joins halves of a batch it has stacked (lightly-ai/lightly#8)."""
    images = torch.rand(300, 3, 96, 96)

    def collate(samples):
        half = len(samples) // 2
        halves = [torch.cat([one.unsqueeze(0) for one in part]) for part in (samples[:half], samples[half:])]
        return torch.cat(halves).clone().contiguous()

    options = {} if repaired else {"collate_fn": collate}
    return DataLoader(Computed(len(images), images.__getitem__), 32, shuffle=True, **options)


class Frozen:
    """A loader whose loops begin with gc.freeze()."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        gc.freeze()
        yield from self.loader
        gc.unfreeze()


@cache
def annotations():
    return [{"box": [[float(n)] * 4 for _ in range(4)], "of": [n] * 4} for n in range(40_000)]


def many_objects(folder: Path, repaired: bool = False):
    """Annotations as Python objects, which the collector looks at again and again (karpathy/nanochat#477)."""
    held = annotations()

    def take(row):
        box, of = held[row]["box"], held[row]["of"]
        return [{"box": [[x + view for x in one] for one in box], "of": list(of)} for view in range(4)]

    def collate(samples):
        return torch.tensor([len(views) for views in samples])

    loader = DataLoader(Computed(len(held), take), 256, shuffle=True, collate_fn=collate)
    return Frozen(loader) if repaired else loader


KINDS = {
    small_files: ("file-per-sample",),
    rows_of_a_table: ("dataframe-rows",),
    photos_made_small: ("jpeg-draft",),
    tokenising: ("repeated-work",),
    locked_file: ("lock",),
    manager_dict: ("manager-proxy",),
    too_many_workers: ("workers-cost", "first-batch"),
    long_queue: ("queue-memory",),
    far_files: ("too-few-workers",),
    list_of_arrays: ("python-lists", "default-collate"),
    element_by_element: ("single-elements",),
    repeated_stream: ("repeated-samples",),
    pinned_without_a_device: ("pinned-without-device",),
    copied_twice: ("default-collate",),
    many_objects: ("garbage-collection",),
}
LOADERS = {one.__name__: (one, kinds) for one, kinds in KINDS.items()}
TWINS = {one.__name__: partial(one, repaired=True) for one in KINDS}
