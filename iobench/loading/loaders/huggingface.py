"""Hugging Face `datasets` over Arrow files, mapped where they lie, under torch's DataLoader.

As its documentation advises for torch: `with_format("torch")` under a DataLoader, and, to be faster, whole
batches through a BatchSampler. Its torch format makes int64 and float32 of all numbers unless it is told
a dtype: here it is told each field's own, a view of the dataset for each dtype. `via=arrow` takes tables
instead, whose columns are arrays already.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from iobench.base.errors import (
    InvalidSettings,
)
from iobench.formats import Format, Rows, TimingWrapper, field_name, option
from iobench.loading.loaders._loader import Epochs, Job
from iobench.loading.loaders._workers import WorkerLoader, fetch_option
from iobench.loading.loaders.dataloader import (
    BatchDataset,
    DataLoaderEpochs,
    SampleDataset,
    TorchDataLoader,
)
from iobench.loading.tensors import tensor_of

if TYPE_CHECKING:
    import torch

    from iobench.dataset.manifest import Opener

FILE_MAGIC = b"ARROW1"  # of Arrow's IPC files; its streams have none


@dataclass(frozen=True)
class HuggingFace(WorkerLoader):
    """A map-style Dataset, told the rows of each batch."""

    name: ClassVar[str] = "huggingface"
    summary: ClassVar[str] = "Hugging Face datasets over Arrow files, under a DataLoader"
    library: ClassVar[str] = "datasets"
    advised: ClassVar[str] = "num_workers={cores},fetch=batch"
    modules: ClassVar[tuple[str, ...]] = ("datasets",)
    extra: ClassVar[str] = "huggingface"
    isolated: ClassVar[bool] = True

    via: str = option(
        "torch", "torch: with_format('torch'); arrow: tables, made tensors here", choices=("torch", "arrow")
    )
    fetch: str = fetch_option()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.via == "arrow" and self.fetch == "sample":
            raise InvalidSettings("huggingface: via=arrow takes whole batches: set fetch=batch")

    def reads(self, format: Format) -> bool:
        """Arrow files."""
        return format.name == "arrow"

    def open(self, job: Job) -> Epochs:
        """Files that are mapped by whichever process reads."""
        with job.opener():  # files that hold something else are told as everywhere
            pass
        same = TorchDataLoader(
            fetch=self.fetch,
            num_workers=self.num_workers,
            prefetch_factor=self.prefetch_factor,
            pin_memory=self.pin_memory,
        )
        by_name = {("torch", "sample"): Samples, ("torch", "batch"): Batches, ("arrow", "batch"): Tables}
        epochs = DataLoaderEpochs(same, job, by_name[self.via, self.fetch](job.opener))
        epochs.loader = self
        return epochs


class Samples(SampleDataset):
    """Samples for DataLoader to collate, in the batches that it asks for."""

    def __init__(self, opener: Opener) -> None:
        super().__init__(opener)
        self._views: list[Any] = []

    def open(self) -> Any:
        """This process's dataset, opened on the first call: a view for each dtype."""
        if not self._views:
            self._views = list(self._formatted(_mapped(self._opener)))
        return self._views

    def open_timed(self, timed: TimingWrapper) -> None:
        """Open this process's dataset; nobody can tell what of its time is decoding."""
        self.open()

    def _formatted(self, dataset: Any) -> Any:
        import torch

        fields = self._opener.schema.fields
        for dtype in dict.fromkeys(field.dtype for field in fields):
            columns = [field.name for field in fields if field.dtype == dtype]
            yield dataset.with_format("torch", columns=columns, dtype=getattr(torch, dtype))

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return {name: tensor for view in self.open() for name, tensor in view[row].items()}

    def __getitems__(self, rows: Sequence[int]) -> list[dict[str, torch.Tensor]]:
        """The samples of these rows, as datasets gives them to DataLoader."""
        parts = zip(*(view.__getitems__(list(rows)) for view in self.open()), strict=True)
        return [{name: tensor for part in sample for name, tensor in part.items()} for sample in parts]

    def close(self) -> None:
        """Let go of the files of this process, which views of each other hold."""
        self._views = []
        gc.collect()


class Batches(Samples, BatchDataset):
    """Whole batches as tensors."""

    def __getitems__(self, rows: Rows) -> dict[str, torch.Tensor]:  # type: ignore[override]
        """The batch of these rows."""
        return {name: tensor for view in self.open() for name, tensor in view[rows].items()}


class Tables(Batches):
    """Whole batches as tables of Arrow, whose columns become tensors."""

    def _formatted(self, dataset: Any) -> Any:
        yield dataset.with_format("arrow")

    def __getitems__(self, rows: Rows) -> dict[str, torch.Tensor]:  # type: ignore[override]
        """The batch of these rows, in memory of its own."""
        (view,) = self.open()
        table = view[rows]
        fields = self._opener.schema.fields
        return {f.name: tensor_of_column(table[f.name].combine_chunks(), f.shape) for f in fields}


def tensor_of_column(column: Any, shape: tuple[int, ...]) -> torch.Tensor:
    """A column of Arrow, an array of fixed-size lists, as a tensor in memory of its own."""
    count = len(column)
    for _ in shape:
        column = column.flatten()
    array = column.to_numpy(zero_copy_only=False).reshape(count, *shape)
    return tensor_of(array if array.flags.writeable else np.array(array))


def _mapped(opener: Opener) -> Any:
    """The files of an artifact as one Dataset, columns named as the fields, without a copy in its cache.

    `Dataset.from_file` maps streams alone; a table over a mapped file is the same without that limit.
    """
    import pyarrow as pa
    from datasets import Dataset, concatenate_datasets

    from iobench.formats.arrow import files_of

    parts = []
    for file in files_of(opener.path):
        with open(file, "rb") as start:
            seekable = start.read(len(FILE_MAGIC)) == FILE_MAGIC
        mapped = pa.memory_map(str(file)) if seekable else None
        parts.append(Dataset(pa.ipc.open_file(mapped).read_all()) if mapped else Dataset.from_file(str(file)))
    whole = concatenate_datasets(parts)
    others = {column: field_name(column) for column in whole.column_names if field_name(column) != column}
    return whole.rename_columns(others) if others else whole
