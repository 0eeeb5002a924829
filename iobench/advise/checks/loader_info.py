"""Facts about a loader that are known without running it."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

from iobench.loading.inspection import attributes_of, is_dataloader, open_handles


@dataclass(frozen=True)
class LoaderInfo:
    """A loader's settings; those of torch's DataLoader are None for any other iterable."""

    class_name: str
    dataset: str | None = None  # name of its dataset's class
    workers: int | None = None
    batch_size: int | None = None
    prefetch_factor: int | None = None
    pin_memory: bool | None = None
    persistent_workers: bool | None = None
    by_sample: bool | None = None  # the dataset is asked for one sample at a time
    tensor_dataset: bool = False
    iterable: bool = False  # an IterableDataset
    in_order: bool = False  # samples are requested in storage order
    handles: list[str] = field(default_factory=list)  # open files, which a fork must not inherit
    chunks: list[str] = field(default_factory=list)  # HDF5 datasets whose chunks hold several samples each


def inspect_loader(loader: Any) -> LoaderInfo:
    """Return the facts about a loader."""
    if not is_dataloader(loader):
        return LoaderInfo(class_name=type(loader).__name__)
    from torch.utils.data import IterableDataset, SequentialSampler, TensorDataset

    dataset = loader.dataset
    by_sample = (
        loader.batch_sampler is not None
        and not isinstance(dataset, IterableDataset)
        and not hasattr(dataset, "__getitems__")
    )
    return LoaderInfo(
        class_name=type(loader).__name__,
        dataset=type(dataset).__name__,
        workers=loader.num_workers,
        batch_size=getattr(loader.batch_sampler, "batch_size", None),
        prefetch_factor=loader.prefetch_factor,
        pin_memory=loader.pin_memory,
        persistent_workers=loader.persistent_workers,
        by_sample=by_sample,
        tensor_dataset=isinstance(dataset, TensorDataset),
        iterable=isinstance(dataset, IterableDataset),
        in_order=isinstance(loader.sampler, SequentialSampler),
        handles=open_handles(dataset),
        chunks=chunks_of(dataset),
    )


def chunks_of(dataset: Any) -> list[str]:
    """Return a description of each open HDF5 dataset whose chunks hold several samples each."""
    h5py = sys.modules.get("h5py")
    if h5py is None:
        return []
    chunks = []
    for name, value in attributes_of(dataset):
        inside = [value] if isinstance(value, h5py.Dataset) else []
        if isinstance(value, h5py.Group) and value:
            inside = [item for item in value.values() if isinstance(item, h5py.Dataset)]
        chunked = [one for one in inside if one.chunks and one.chunks[0] > 1]
        chunks += [f"{name}: chunks of {one.chunks[0]} samples" for one in chunked]
    return chunks
