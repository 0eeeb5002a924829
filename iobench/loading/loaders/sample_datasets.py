"""Map-style Datasets of samples or whole batches, and the collation of samples, as DataLoader uses them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from iobench.base.errors import IobenchError
from iobench.dataset.opener import Opener
from iobench.formats import Convert, Field, Reader, Rows, TimingWrapper
from iobench.loading.collate import Collate
from iobench.loading.loaders._loader import Job
from iobench.loading.stages import Stages
from iobench.loading.tensors import converter, elements_of, silence_read_only_warning, tensors_of
from iobench.loading.user_errors import PortableError

if TYPE_CHECKING:
    import torch


class SampleDataset:
    """A map-style Dataset of single samples; each process opens the artifact on its first access.

    Raises PortableError, since torch would pass on only the text of an IobenchError.
    """

    def __init__(self, opener: Opener) -> None:
        self._opener = opener
        self._reader: Reader | None = None
        self._convert: Convert | None = None
        self._sample: Callable[[int, Convert], dict[str, torch.Tensor]] = self._first_sample

    def open(self) -> Reader:
        """Return this process's reader, opened on the first call."""
        if self._reader is None:
            self._reader, self._convert = self._opener(), converter(self._opener.schema)
            self._sample = self._reader.sample  # later samples skip the check above
            silence_read_only_warning()
        return self._reader

    def open_timed(self, timed: TimingWrapper) -> None:
        """Open this process's reader, and time its decoding."""
        self.open().time_decoding(timed)

    def __len__(self) -> int:
        return self._opener.schema.samples

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        try:
            return self._sample(row, self._convert)  # type: ignore[arg-type]
        except IobenchError as error:
            raise PortableError.wrap(error) from error

    def close(self) -> None:
        """Close this process's reader."""
        if self._reader is not None:
            self._reader.close()
            self._reader, self._sample = None, self._first_sample

    def _first_sample(self, row: int, convert: Convert | None) -> dict[str, torch.Tensor]:
        reader = self.open()
        assert self._convert is not None
        return reader.sample(row, self._convert)


class BatchDataset(SampleDataset):
    """A Dataset of whole batches (`__getitems__`), each read into new arrays and collated."""

    def __init__(self, opener: Opener, collate: Collate) -> None:
        super().__init__(opener)
        self._collate = collate

    def __getitems__(self, rows: Rows | Sequence[int]) -> dict[str, torch.Tensor]:
        """Return the batch of these rows."""
        try:
            reader = self.open()
            assert self._convert is not None
            batch: dict[str, torch.Tensor] = self._collate(tensors_of(reader.batch(rows), self._convert))
            return batch
        except IobenchError as error:
            raise PortableError.wrap(error) from error


def dataset_of(job: Job, fetch: str) -> SampleDataset:
    """Return the Dataset of single samples, or of whole batches."""
    return SampleDataset(job.opener) if fetch == "sample" else BatchDataset(job.opener, job.collate)


class TimedDataset:
    """A dataset in this process whose reads are timed, one call for each batch."""

    def __init__(self, dataset: SampleDataset, stages: Stages) -> None:
        by_sample = lambda rows: [dataset[row] for row in rows]  # noqa: E731 - as DataLoader itself does
        self.__getitems__ = stages.timed("read", getattr(dataset, "__getitems__", by_sample))


def collate_function(job: Job) -> Callable[[list[Any]], Any]:
    """Return torch's own function, or the one for samples that differ in length."""
    from torch.utils.data import default_collate

    ragged = frozenset(field.name for field in job.opener.schema.ragged)
    return partial(collated, job.collate, ragged) if ragged else default_collate


def collated_as_read(
    collate: Collate, fields: Mapping[str, Field], samples: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return a batch of samples as a library reads them; `fields`, by name, differ in length."""
    columns = [
        {name: elements_of(fields[name], value) if name in fields else value for name, value in one.items()}
        for one in samples
    ]
    return collated(collate, fields, columns)


def collated(
    collate: Collate, ragged: Collection[str], samples: Sequence[Mapping[str, torch.Tensor]]
) -> dict[str, Any]:
    """Return a batch of samples: the fields `ragged` in the case's way, others as torch does."""
    from torch.utils.data import default_collate

    columns = {name: [sample[name] for sample in samples] for name in samples[0]}
    return {
        name: collate.column(name, columns) if name in ragged else default_collate(column)
        for name, column in columns.items()
    }
