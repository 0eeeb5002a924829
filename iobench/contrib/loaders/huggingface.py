"""Hugging Face `datasets` over Arrow files, memory-mapped in place, under torch's DataLoader.

Its documentation recommends for torch: `with_format("torch")` under a DataLoader, and for more speed whole
batches through a BatchSampler. Its torch format converts all numbers to int64 and float32 unless it is given
a dtype. Here it is given each field's own, with one view of the dataset for each dtype. `via=arrow` reads
tables instead, whose columns are arrays already.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from iobench.base.errors import InvalidSettings, IobenchError
from iobench.base.options import option
from iobench.formats import Rows, TimingWrapper, field_names
from iobench.loading.loaders import Epochs, Job
from iobench.loading.loaders.dataloader import DataLoaderEpochs
from iobench.loading.loaders.sample_datasets import SampleDataset
from iobench.loading.loaders.workers import WorkerLoader, fetch_option
from iobench.loading.portable_error import PortableError
from iobench.loading.tensors import tensor_of

if TYPE_CHECKING:
    import torch

    from iobench.dataset.opener import Opener

FILE_MAGIC = b"ARROW1"  # at the start of an Arrow IPC file; a stream has none


@dataclass(frozen=True)
class HuggingFace(WorkerLoader):
    """A map-style loader over a Hugging Face Dataset."""

    name: ClassVar[str] = "huggingface"
    summary: ClassVar[str] = "Hugging Face datasets over Arrow files, under a DataLoader"
    library: ClassVar[str] = "datasets"
    format_names: ClassVar[tuple[str, ...]] = ("arrow",)
    recommended_options: ClassVar[str] = "num_workers={cores},fetch=batch"
    modules: ClassVar[tuple[str, ...]] = ("datasets",)
    extra: ClassVar[str] = "huggingface"
    isolated: ClassVar[bool] = True

    via: str = option(
        "torch",
        "torch: with_format('torch'); arrow: tables, converted to tensors by iobench",
        choices=("torch", "arrow"),
    )
    fetch: str = fetch_option()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.via == "arrow" and self.fetch == "sample":
            raise InvalidSettings(
                "huggingface: via=arrow reads whole batches",
                kind="conflicting-options",
                hint="set fetch=batch",
            )

    def open(self, job: Job) -> Epochs:
        """Check the files; each process that reads maps them itself."""
        with job.opener():  # checks the files as every loader does
            pass
        classes = {
            ("torch", "sample"): HuggingFaceSamples,
            ("torch", "batch"): HuggingFaceBatches,
            ("arrow", "batch"): ArrowBatches,
        }
        return DataLoaderEpochs(self, job, classes[self.via, self.fetch](job.opener))


class HuggingFaceSamples(SampleDataset):
    """A Dataset of samples, which DataLoader collates."""

    def __init__(self, opener: Opener) -> None:
        super().__init__(opener)
        self._views: list[Any] = []

    def open(self) -> Any:
        """Return this process's dataset, opened on the first call: one view for each dtype."""
        if not self._views:
            try:
                self._views = list(self._formatted(_mapped(self._opener)))
            except IobenchError as error:
                raise PortableError.wrap(error) from error
        return self._views

    def open_timed(self, timed: TimingWrapper) -> None:
        """Open this process's dataset; the time that it spends decoding is unknown."""
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
        """Return the samples of these rows, as `datasets` returns them to DataLoader."""
        parts = zip(*(view.__getitems__(list(rows)) for view in self.open()), strict=True)
        return [{name: tensor for part in sample for name, tensor in part.items()} for sample in parts]

    def close(self) -> None:
        """Release this process's files, which the views refer to in cycles."""
        self._views = []
        gc.collect()


class HuggingFaceBatches(HuggingFaceSamples):
    """A Dataset of whole batches of tensors."""

    def __getitems__(self, rows: Rows | Sequence[int]) -> dict[str, torch.Tensor]:  # type: ignore[override]
        """Return the batch of these rows."""
        return {name: tensor for view in self.open() for name, tensor in view[rows].items()}


class ArrowBatches(HuggingFaceBatches):
    """A Dataset of Arrow tables, whose columns become tensors."""

    def _formatted(self, dataset: Any) -> Any:
        yield dataset.with_format("arrow")

    def __getitems__(self, rows: Rows | Sequence[int]) -> dict[str, torch.Tensor]:  # type: ignore[override]
        """Return the batch of these rows, in new memory."""
        (view,) = self.open()
        table = view[rows]
        fields = self._opener.schema.fields
        return {f.name: tensor_of_column(table[f.name].combine_chunks(), f.shape) for f in fields}


def tensor_of_column(column: Any, shape: tuple[int, ...]) -> torch.Tensor:
    """Convert an Arrow column, an array of fixed-size lists, to a tensor that does not share its memory."""
    count = len(column)
    for _ in shape:
        column = column.flatten()
    array = column.to_numpy(zero_copy_only=False).reshape(count, *shape)
    return tensor_of(array if array.flags.writeable else np.array(array))


def _mapped(opener: Opener) -> Any:
    """Return an artifact's files as one Dataset, without a copy in the library's cache.

    Columns are named as the fields. `Dataset.from_file` maps streams only; a file is mapped as a table.
    """
    import pyarrow as pa
    from datasets import Dataset, concatenate_datasets

    from iobench.contrib.formats.arrow import files_of

    parts = []
    for file in files_of(opener.path):
        with open(file, "rb") as start:
            seekable = start.read(len(FILE_MAGIC)) == FILE_MAGIC
        mapped = pa.memory_map(str(file)) if seekable else None
        parts.append(Dataset(pa.ipc.open_file(mapped).read_all()) if mapped else Dataset.from_file(str(file)))
    whole = concatenate_datasets(parts)
    others = {column: field for field, column in field_names(whole.column_names).items() if field != column}
    return whole.rename_columns(others) if others else whole
