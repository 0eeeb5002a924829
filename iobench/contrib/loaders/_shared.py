"""Shared by loaders of other projects: where the samples lie, options and seeds of shuffling, columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.base.errors import LoaderFailed
from iobench.base.options import option
from iobench.formats import Placement, Reader
from iobench.loading.loaders import Job
from iobench.loading.order import Order
from iobench.loading.tensors import tensor_of

if TYPE_CHECKING:
    import torch


def shuffle_buffer_option(help: str = "samples in the buffer that random order shuffles") -> Any:
    """Return the option `shuffle_buffer`."""
    return option(1000, help, minimum=1, maximum=1 << 30)


def epoch_seeds(order: Order, epoch: int) -> tuple[int, int]:
    """Return seeds to shuffle files and samples of an epoch with."""
    first, second = np.random.SeedSequence([order.seed, epoch]).generate_state(2).tolist()
    return first, second


def data_files(reader: Reader) -> list[str]:
    """Return the files that hold the samples of an artifact, in order and without duplicates."""
    placed = [path for one in reader.placement().values() for path in one.files]
    encoded = [path for one in reader.blocks() for path in one.files]
    return [str(path) for path in dict.fromkeys(placed + encoded)]


def placements(job: Job, loader: str, **refusal: str) -> dict[str, Placement]:
    """Return where the fields lie, after the checks of every loader.

    LoaderFailed (``encoded-values``), with what the caller says of it, if a field is encoded.
    """
    with job.opener() as reader:
        placed = dict(reader.placement())
    if encoded := [field.name for field in job.opener.schema.fields if field.name not in placed]:
        problem = f"loader {loader}: {', '.join(encoded)} of {job.opener.format.variant}"
        raise LoaderFailed(problem, "encoded-values", job.opener.path, **refusal)
    return placed


def tensor_of_column(column: Any, shape: tuple[int, ...]) -> torch.Tensor:
    """Convert an Arrow column, an array of fixed-size lists, to a tensor that does not share its memory."""
    count = len(column)
    for _ in shape:
        column = column.flatten()
    array = column.to_numpy(zero_copy_only=False).reshape(count, *shape)
    return tensor_of(array if array.flags.writeable else np.array(array))
