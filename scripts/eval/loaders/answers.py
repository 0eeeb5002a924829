"""Right answers of a diagnosis, and datasets that loaders share."""

from __future__ import annotations

import os

import numpy as np
import torch
from torch.utils.data import Dataset

CORES = len(os.sched_getaffinity(0))
FORK = {"multiprocessing_context": "fork"}


class Answer:
    """The right answer: kinds of advice of which one must come first, `second` ones, others, and false ones.

    None is right for a loader without a problem. A loader with two problems must have `second` named as well.
    Other advice is false unless it makes the loader faster.
    """

    def __init__(
        self,
        *first: str,
        second: tuple[str, ...] = (),
        also: tuple[str, ...] = (),
        false: tuple[str, ...] = (),
    ) -> None:
        self.first, self.second, self.also, self.false = first, second, also, false


class Computed(Dataset):
    """Samples computed by a function of the row; `attributes` are kept with them."""

    def __init__(self, length, make, **attributes):
        self.length, self.make = length, make
        vars(self).update(attributes)

    def __len__(self):
        return self.length

    def __getitem__(self, row):
        return self.make(row)


class Augmented(Dataset):
    """Images in memory, augmented by NumPy in each epoch: milliseconds of one core."""

    def __init__(self, length):
        self.images = np.random.default_rng(0).integers(0, 255, (length, 96, 96, 3), np.uint8)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, row):
        rng = np.random.default_rng()
        image = self.images[row].astype(np.float32) / 255
        image = image[:, ::-1] if rng.random() < 0.5 else image
        for _ in range(6):
            image = np.clip(image * rng.uniform(0.9, 1.1) + rng.normal(0, 0.02, image.shape), 0, 1)
        return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1), np.float32))
