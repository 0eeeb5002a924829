"""Datasets of the tests that diagnose, tune and watch a loader."""

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from iobench.advise.diagnose import diagnose

FORK = {"num_workers": 2, "multiprocessing_context": "fork"}


class Samples(Dataset):
    """As many samples as there are rows, made by a function of the row."""

    def __init__(self, length, make=lambda row: torch.zeros(4), **attributes):
        self.length, self.make = length, make
        vars(self).update(attributes)

    def __len__(self):
        return self.length

    def __getitem__(self, row):
        return self.make(row)


class Batches(Samples):
    """The same, asked for whole batches."""

    def __getitems__(self, rows):
        return self.make(rows)


class Stream(IterableDataset):
    """Yields all of its samples in every worker, or only the worker's share."""

    def __init__(self, shared=False, numbers=lambda row: torch.full((4,), row)):
        self.shared, self.numbers = shared, numbers

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if self.shared else (0, 1)
        return map(self.numbers, range(first, 160, step))


def until(kind, make):
    """Diagnose with more and more time until that kind is measured: other tests use the cores as well."""
    found = None
    for seconds in (4.0, 12.0, 30.0, 60.0):  # which it keeps to
        found = diagnose(make(), max_time_s=seconds, batches=200)
        if any(one.kind == kind and one.gain for one in found.advice):
            break
    return found
