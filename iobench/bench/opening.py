"""Opening of a case's loader, and requests for its epochs."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import torch

from iobench.base.errors import IobenchError, LoaderFailed
from iobench.base.files import system_errors_as
from iobench.bench.part import WindowTimer
from iobench.loading.loaders import EpochRequest, Epochs, Job, Loader, failure
from iobench.loading.order import Batches


def disk_errors(path: Path) -> AbstractContextManager[None]:
    """Convert an OSError of the disk or of missing files into LoaderFailed."""
    return system_errors_as(LoaderFailed, "cannot be read", path, kind="read-error")


def opened(loader: Loader, job: Job) -> Epochs:
    """Open the loader, with a reader that knows whether the order is sequential."""
    opener = replace(job.opener, random=job.order.kind != "sequential")
    try:
        return loader.open(replace(job, opener=opener))
    except (IobenchError, torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except Exception as error:  # a loader of another package may fail in any way
        raise failure(loader, opener, error) from error


def epoch_request(loader: Loader, job: Job, number: int, window: WindowTimer | None = None) -> EpochRequest:
    """Return the request for an epoch: the rows of its batches (map-style) or its number (iterable-style).

    With a window it is one for the part of the epoch around it. An iterable-style loader begins at its head.
    The first piece of the order is drawn before timing starts, unless the loader draws it.
    """
    if loader.iterable_style:
        return number
    rows = loader.rows(job.order, job.opener.schema.samples, number)
    if window is not None:
        rows = window.part_of(rows, job.order, number)
    if isinstance(rows, Batches) and not loader.draws:
        rows.draw()
    return rows
