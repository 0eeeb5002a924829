"""Hugging Face `datasets` over Arrow files, memory-mapped in place, under torch's DataLoader.

Its documentation recommends for torch: `with_format("torch")` under a DataLoader, and for more speed whole
batches through a BatchSampler. Its torch format converts all numbers to int64 and float32 unless it is given
a dtype. Here it is given each field's own, with one view of the dataset for each dtype. `via=arrow` reads
tables instead, whose columns are arrays already.

With `streaming` it does as `load_dataset(…, streaming=True)` is documented: fsspec reads files through,
from a disk, a web server or S3; they are shuffled, samples within a buffer, and split among the workers.
"""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from iobench.base.errors import InvalidSettings, IobenchError, needing
from iobench.base.files import begins_with
from iobench.base.options import option
from iobench.contrib.formats.shared.table_format import TableFormat
from iobench.contrib.loaders._shared import shuffle_buffer_option, tensor_of_column
from iobench.formats import Field, Rows, TimingWrapper, field_names
from iobench.loading.loaders import Epochs, Job, WorkerLoader, fetch_option
from iobench.loading.loaders.dataloader import DataLoaderEpochs, started
from iobench.loading.loaders.sample_datasets import SampleDataset
from iobench.loading.tensors import HostBatch
from iobench.loading.user_errors import PortableError
from iobench.objects.url import s3_options

if TYPE_CHECKING:
    import torch

    from iobench.dataset.opener import Opener

FILE_MAGIC = b"ARROW1"  # at the start of an Arrow IPC file; a stream has none
NARROWED = ("float64", "uint64")  # dtypes of which its torch format does not keep all values, when streaming
ADDRESSES = ("http", "https", "s3")
STREAMING = {  # what is different of a loader that streams
    "format_names": ("arrow", "parquet"),
    "orders": ("sequential", "random"),
    "schemes": ADDRESSES,
    "unpinned": ADDRESSES,
    "iterable_style": True,
}


@dataclass(frozen=True)
class HuggingFace(WorkerLoader):
    """A map-style loader over a Dataset; with `streaming` an iterable-style one over an IterableDataset."""

    name: ClassVar[str] = "huggingface"
    summary: ClassVar[str] = "Hugging Face datasets under a DataLoader: Arrow files mapped, or files streamed"
    library: ClassVar[str] = "datasets"
    format_names: ClassVar[tuple[str, ...]] = ("arrow",)
    recommended_options: ClassVar[str] = "num_workers={cores},fetch=batch"
    modules: ClassVar[tuple[str, ...]] = ("datasets",)

    via: str = option(
        "torch",
        "torch: with_format('torch'); arrow: tables, converted to tensors by iobench",
        choices=("torch", "arrow"),
    )
    fetch: str = fetch_option()
    streaming: bool = option(
        False, "files are read through, from a disk or an address, as streaming=True does"
    )
    shuffle_buffer: int = shuffle_buffer_option("streaming: samples in the buffer that random order shuffles")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.streaming:
            for name, value in STREAMING.items():
                object.__setattr__(self, name, value)
        problem = hint = ""
        if self.streaming and self.fetch == "batch":
            problem, hint = "fetch=batch with streaming, which has no rows to ask for", "leave fetch out"
        elif self.shuffle_buffer != 1000 and not self.streaming:
            problem, hint = "shuffle_buffer without streaming", "set streaming=yes"
        elif self.via == "arrow" and self.fetch == "sample" and not self.streaming:
            problem, hint = "via=arrow reads whole batches", "set fetch=batch"
        if problem:
            raise InvalidSettings(f"huggingface: {problem}", kind="conflicting-options", hint=hint)

    def open(self, job: Job) -> Epochs:
        """Check the files; each process that reads maps them itself.

        InvalidSettings if the torch format would change values that are streamed.
        """
        if job.opener.remote is None:
            job.opener().close()  # checks the files as every loader does
        if self.streaming:
            changed = [field.typed for field in job.opener.schema.fields if field.dtype in NARROWED]
            if changed and self.via == "torch":
                problem = f"{self.variant}: the torch format of datasets narrows {', '.join(changed)}"
                raise InvalidSettings(problem, "unsupported-dtype", hint="set via=arrow")
            return StreamingEpochs(self, job)
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
        parts = zip(*(view.__getitems__(list(rows)) for view in self.open()), strict=True)
        return [{name: tensor for part in sample for name, tensor in part.items()} for sample in parts]

    def close(self) -> None:
        """Release this process's files, which the views refer to in cycles."""
        self._views = []
        gc.collect()


class HuggingFaceBatches(HuggingFaceSamples):
    """A Dataset of whole batches of tensors."""

    def __getitems__(self, rows: Rows | Sequence[int]) -> dict[str, torch.Tensor]:  # type: ignore[override]
        return {name: tensor for view in self.open() for name, tensor in view[rows].items()}


class ArrowBatches(HuggingFaceBatches):
    """A Dataset of Arrow tables, whose columns become tensors."""

    def _formatted(self, dataset: Any) -> Any:
        yield dataset.with_format("arrow")

    def __getitems__(self, rows: Rows | Sequence[int]) -> dict[str, torch.Tensor]:  # type: ignore[override]
        (view,) = self.open()
        table = view[rows]
        fields = self._opener.schema.fields
        return {f.name: tensor_of_column(table[f.name].combine_chunks(), f.shape) for f in fields}


def _mapped(opener: Opener) -> Any:
    """Return an artifact's files as one Dataset, without a copy in the library's cache.

    Columns are named as the fields. `Dataset.from_file` maps streams only; a file is mapped as a table.
    """
    import pyarrow as pa
    from datasets import Dataset, concatenate_datasets

    parts = []
    for file in _tables(opener).data_files(opener.path):
        mapped = pa.memory_map(str(file)) if begins_with(file, FILE_MAGIC) else None
        parts.append(Dataset(pa.ipc.open_file(mapped).read_all()) if mapped else Dataset.from_file(str(file)))
    whole = concatenate_datasets(parts)
    others = {column: field for field, column in field_names(whole.column_names).items() if field != column}
    return whole.rename_columns(others) if others else whole


class StreamingEpochs(Epochs):
    """One dataset for all epochs, given the number of each."""

    def __init__(self, loader: HuggingFace, job: Job) -> None:
        super().__init__(loader, job)
        self._settings = loader
        self._cache = tempfile.TemporaryDirectory(prefix="iobench-")  # of its lock files
        dataset = _streamed(job.opener, self._cache.name)
        columns = field_names(dataset.features)
        self._columns = {columns[field.name]: field for field in job.opener.schema.fields}
        dataset = dataset.select_columns([*self._columns]).with_format(loader.via)
        if job.order.kind == "random":
            dataset = dataset.shuffle(seed=job.order.seed % (1 << 32), buffer_size=loader.shuffle_buffer)
        self._dataset: Any = dataset if loader.via == "torch" else dataset.batch(job.order.batch_size)

    def _epoch(self, request: int) -> Iterator[HostBatch]:
        from torch.utils.data import DataLoader

        samples = self._settings.via == "torch"
        arguments: dict[str, Any] = {
            "batch_size": self.job.order.batch_size if samples else None,
            "collate_fn": partial(_collated if samples else _tensors, self._columns),
            **self._settings.worker_arguments,
        }
        self._dataset.set_epoch(request)
        yield from started(lambda: DataLoader(self._dataset, **arguments))

    def close(self) -> None:
        """Release the dataset and remove its lock files."""
        self._dataset = None
        gc.collect()
        self._cache.cleanup()


def _streamed(opener: Opener, cache: str) -> Any:
    """Return an artifact's files as an IterableDataset."""
    os.environ.setdefault("HF_UPDATE_DOWNLOAD_COUNTS", "0")  # it would tell the hub of each dataset
    from datasets import load_dataset

    storage: dict[str, Any] = {}
    if opener.remote is not None and opener.remote.files.url.startswith("s3://"):
        with needing("huggingface:streaming=yes at s3://", "fsspec"):
            import_module("s3fs")  # as fsspec does
        storage = s3_options()
    return load_dataset(
        opener.format.name,
        data_files=_files(opener),
        split="train",
        streaming=True,
        storage_options=storage,
        cache_dir=cache,
    )


def _files(opener: Opener) -> list[str]:
    """Return the files or addresses of an artifact's data, in order."""
    if opener.remote is not None:
        files, suffix = opener.remote.files, f".{opener.format.name}"
        return [files.address(name) for name in sorted(files.objects) if name.endswith(suffix)]
    return [str(file) for file in _tables(opener).data_files(opener.path)]


def _tables(opener: Opener) -> TableFormat:
    assert isinstance(opener.format, TableFormat)  # `format_names`
    return opener.format


def _collated(columns: Mapping[str, Field], samples: list[dict[str, Any]]) -> HostBatch:
    """Collate samples of tensors as torch does, and give them the dtypes of their fields."""
    import torch
    from torch.utils.data import default_collate

    batch = default_collate(samples)
    return {field.name: batch[column].to(getattr(torch, field.dtype)) for column, field in columns.items()}


def _tensors(columns: Mapping[str, Field], table: Any) -> HostBatch:
    """Convert a table of one row, whose columns are the lists of a batch."""
    lists = {column: table[column].combine_chunks().flatten() for column in columns}
    return {field.name: tensor_of_column(lists[column], field.shape) for column, field in columns.items()}
