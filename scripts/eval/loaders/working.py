"""Loaders as found in the wild with slow samplers, workers, code or settings, and the right answers."""

from __future__ import annotations

import multiprocessing
import re
import time
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from eval.loaders.answers import CORES, FORK, Answer, Augmented, Computed
from eval.loaders.data import lengths

TWO = {"num_workers": 2, **FORK}


def weighted_rows(folder: Path):
    """A weight for each of many rows: torch.multinomial takes seconds in the main process."""
    rows = Computed(1 << 24, lambda row: torch.full((64,), float(row)))
    return DataLoader(rows, 256, sampler=WeightedRandomSampler(torch.ones(len(rows)), 20_000), **TWO)


def few_of_many_rows(folder: Path):
    """A sampler that permutes all rows for some of them."""
    rows = Computed(20_000_000, lambda row: torch.full((64,), float(row)))
    return DataLoader(rows, 256, sampler=RandomSampler(rows, num_samples=20_000), **TWO)


def spawned_arrays(folder: Path):
    """Many arrays that are pickled for each spawned worker."""
    held = [np.full(64, number, np.float32) for number in range(150_000)]
    return DataLoader(Held(held), 256, shuffle=True, num_workers=2, multiprocessing_context="spawn")


class Held(Dataset):
    def __init__(self, arrays):
        self.arrays = arrays

    def __len__(self):
        return len(self.arrays) // 10

    def __getitem__(self, row):
        return torch.from_numpy(self.arrays[row])


def too_many_workers(folder: Path):
    rows = torch.zeros(3000, 256)
    return DataLoader(Computed(3000, lambda row: rows[row].sort().values), 32, num_workers=8 * CORES, **FORK)


def workers_for_nothing(folder: Path):
    rows = torch.zeros(8000, 16)
    return DataLoader(Computed(8000, rows.__getitem__), 16, **TWO)


def workers_that_start_slowly(folder: Path):
    late = {"worker_init_fn": lambda number: time.sleep(0.4)}
    return DataLoader(Augmented(200), 16, num_workers=4, **FORK, **late)


def augmentation_without_workers(folder: Path):
    return DataLoader(Augmented(200), 16, shuffle=True)


def far_away(folder: Path):
    """Each sample waits for a network."""

    def fetch(row):
        time.sleep(4e-3)
        return torch.rand(512)

    return DataLoader(Computed(512, fetch), 16, shuffle=True)


def many_strings(folder: Path):
    """A list of strings that workers copy by counting references."""
    held = [f"a sentence of some words with the number {number}" for number in range(3_000_000)]

    def lengths_of(row):
        return torch.tensor([len(text) for text in held[row * 5000 : (row + 1) * 5000]])

    return DataLoader(Computed(600, lengths_of), 4, shuffle=True, **TWO)


def pinned_for_nothing(folder: Path):
    rows = np.random.default_rng(0).integers(0, 255, (2000, 3072), np.uint8)
    return DataLoader(rows, batch_size=64, shuffle=True, pin_memory=True)


def copied_twice(folder: Path):
    """A collate function that joins halves of a batch it has stacked."""
    images = torch.rand(300, 3, 96, 96)

    def collate(samples):
        half = len(samples) // 2
        halves = [torch.cat([one.unsqueeze(0) for one in part]) for part in (samples[:half], samples[half:])]
        return torch.cat(halves).clone().contiguous()

    return DataLoader(Computed(len(images), images.__getitem__), 32, shuffle=True, collate_fn=collate)


def many_tensors(folder: Path):
    sample = {f"f{number}": torch.zeros(2) for number in range(40)}
    return DataLoader(Computed(1500, lambda row: sample), 32)


def tensor_dataset(folder: Path):
    return DataLoader(TensorDataset(torch.randn(30_000, 16), torch.arange(30_000)), 256, shuffle=True)


def lists_in_collate(folder: Path):
    rows = [[float(n + k) for k in range(256)] for n in range(2000)]
    return DataLoader(Computed(2000, rows.__getitem__), 64, collate_fn=torch.tensor)


def threads_of_svd(folder: Path):
    """Matrices that differ each time, so that no cache helps."""

    def whiten(row):
        left, _, right = np.linalg.svd(np.random.default_rng().random((100, 100)))
        return torch.from_numpy(left @ right)

    return DataLoader(Computed(64, whiten), 4, num_workers=4, **FORK)


def padding(folder: Path):
    long, rng = lengths(), np.random.default_rng(2)
    rows = torch.zeros(len(long), 512, dtype=torch.int64)
    for number, length in enumerate(long):
        rows[number, :length] = torch.from_numpy(rng.integers(1, 30_000, length))
    return DataLoader(Computed(len(rows), rows.__getitem__), 32, shuffle=True)


def searched(folder: Path):
    """A list that is searched for each sample, which differs in each epoch."""
    names = [f"{number}.jpg" for number in range(200_000)]
    rows = Computed(4000, lambda row: torch.randn(256) + names.index(names[-1 - row]))
    return DataLoader(rows, 64, shuffle=True)


def rows_of_a_table(folder: Path):
    import pandas as pd

    table = pd.DataFrame(np.random.default_rng(0).random((4000, 20), np.float32))
    return DataLoader(
        Computed(4000, lambda row: torch.from_numpy(table.iloc[row].to_numpy())), 64, shuffle=True
    )


def tokenizing(folder: Path):
    """A tokenizer in Python, again in each epoch."""
    rng, words, pattern = (
        np.random.default_rng(0),
        [f"word{n}" for n in range(5000)],
        re.compile(r"\w+|[^\w\s]"),
    )
    texts = [" ".join(words[n] for n in rng.integers(0, 5000, 80)) for _ in range(1500)]
    known = {word: number + 2 for number, word in enumerate(words)}

    def tokens(row):
        return torch.from_numpy(
            np.array([known.get(word.lower(), 1) for word in pattern.findall(texts[row])][:64])
        )

    return DataLoader(Computed(len(texts), tokens), 32, shuffle=True)


def locked_file(folder: Path):
    """One file for all workers, behind a lock."""
    lock, packed = multiprocessing.get_context("fork").Lock(), zlib.compress(np.arange(1 << 18).tobytes(), 1)

    def read(row):
        with lock:
            return torch.frombuffer(bytearray(zlib.decompress(packed)), dtype=torch.int64)[:64] + row

    return DataLoader(Computed(600, read), 16, shuffle=True, num_workers=4, **FORK)


def manager_dict(folder: Path):
    samples, manager = np.random.default_rng(0).random((1500, 64), np.float32), multiprocessing.Manager()
    shared = manager.dict(enumerate(samples))
    # the manager ends when nothing refers to it
    data = Computed(len(samples), lambda row: torch.from_numpy(shared[row]), manager=manager)
    return DataLoader(data, 32, shuffle=True)


def long_queue(folder: Path):
    image = torch.zeros(3, 1024, 1024)
    return DataLoader(Computed(256, lambda row: image + row), 4, prefetch_factor=32, **TWO)


def element_by_element(folder: Path):
    rows = torch.randn(1000, 64)

    def take(row):
        return torch.tensor([rows[row, k].item() for k in range(64)])

    return DataLoader(Computed(len(rows), take), 32, shuffle=True)


class Stream(IterableDataset):
    """Numbered samples that each worker yields as a whole."""

    def __iter__(self):
        for row in range(1500):
            time.sleep(2e-4)
            yield torch.full((64,), float(row))


def repeated_stream(folder: Path):
    return DataLoader(Stream(), 32, **TWO)


@cache
def annotations():
    return [{"box": [[float(n)] * 4 for _ in range(4)], "of": [n] * 4} for n in range(40_000)]


def many_objects(folder: Path):
    """Annotations as Python objects, copies of which the collector looks at again and again."""
    held = annotations()

    def take(row):
        box, of = held[row]["box"], held[row]["of"]
        return [{"box": [[x + view for x in one] for one in box], "of": list(of)} for view in range(4)]

    def collate(samples):
        return torch.tensor([len(views) for views in samples])

    return DataLoader(Computed(len(held), take), 256, shuffle=True, collate_fn=collate)


def innocent_objects(folder: Path):
    """As many objects, which no collection looks at: samples make hardly any."""
    held = annotations()

    def take(row):
        noise = np.random.default_rng(row).random(100_000)
        return torch.from_numpy(np.sort(noise)[:64]) + held[row]["of"][0]

    return DataLoader(Computed(1000, take), 16, shuffle=True)


GC, THREADS = ("garbage-collection",), ("threads",)
ANSWERS = {
    weighted_rows: Answer(
        "sampler", "workers-cost", second=("sampler",), false=(*THREADS, *GC, "first-batch")
    ),
    few_of_many_rows: Answer("sampler", false=(*THREADS, *GC, "first-batch")),
    spawned_arrays: Answer("pickling", also=("first-batch", "workers-cost"), false=GC),
    too_many_workers: Answer("per-sample", "repeated-work", second=("workers-cost",), also=("first-batch",)),
    workers_for_nothing: Answer("workers-cost", "per-sample", also=("first-batch",)),
    workers_that_start_slowly: Answer("first-batch", "workers-cost"),
    augmentation_without_workers: Answer("too-few-workers", false=GC),
    far_away: Answer("too-few-workers", false=GC),
    many_strings: Answer(
        "memory-growth", "python-lists", "repeated-work", also=("workers-cost", "first-batch")
    ),
    pinned_for_nothing: Answer("per-sample", second=("pinned-without-device",)),
    copied_twice: Answer("default-collate"),
    many_tensors: Answer("collate", also=("per-sample", "default-collate")),
    tensor_dataset: Answer("per-sample"),
    lists_in_collate: Answer("python-lists"),
    threads_of_svd: Answer("threads", "workers-cost", second=("threads",)),
    padding: Answer("padding", "per-sample", second=("padding",)),
    searched: Answer("list-searched", also=("too-few-workers",)),
    rows_of_a_table: Answer("dataframe-rows"),
    tokenizing: Answer("repeated-work", also=("too-few-workers",), false=GC),
    locked_file: Answer("lock", also=("decoding", "workers-cost")),
    manager_dict: Answer("manager-proxy"),
    long_queue: Answer("queue-memory", "workers-cost", second=("queue-memory",)),
    element_by_element: Answer("single-elements"),
    repeated_stream: Answer("repeated-samples"),
    many_objects: Answer("garbage-collection", also=("repeated-work", "too-few-workers")),
    innocent_objects: Answer("repeated-work", "too-few-workers", false=GC),
}
