"""Datasets for tests of workers, and failures that they cause."""

import os
import random
import signal
import time

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

RAISED = "row 6 is unreadable"


class Augmented(Dataset):
    """Rows with a random number of each generator, and the worker that made them."""

    def __init__(self, rows=37, columns=3):
        self.rows, self.columns = rows, columns

    def __len__(self):
        return self.rows

    def __getitem__(self, row):
        info = get_worker_info()
        return {
            "x": torch.full((self.columns,), float(row)) + torch.rand(self.columns),
            "python": random.random(),
            "numpy": np.random.rand(2),
            "worker": (info.id, info.num_workers, info.seed, len(info.dataset)),
        }


class Troubled(Dataset):
    """Rows that hold the pid of the process that made them; one row calls `trouble`."""

    def __init__(self, trouble, at, rows=12):
        self.trouble, self.at, self.rows = trouble, at, rows

    def __len__(self):
        return self.rows

    def __getitem__(self, row):
        if row == self.at:
            self.trouble()
        return os.getpid()


class Once:
    """Sends a signal to its process, but not to the one that replaces it."""

    def __init__(self, number, marker):
        self.number, self.marker = number, marker

    def __call__(self):
        if not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), self.number)


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def raising():
    raise ZeroDivisionError(RAISED)


def sleeping():
    time.sleep(30)


def noted(worker):
    """Draw a random number, as a worker_init_fn."""
    torch.rand(worker + 1)
