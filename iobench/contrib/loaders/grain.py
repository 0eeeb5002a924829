"""Grain (PyGrain): a MapDataset over a random-access source, shuffled by Grain itself.

This follows Grain's documentation: `MapDataset.source(…).shuffle(seed=…).batch(…)`, read as an IterDataset
by threads, and with workers by processes, each of which reads every n-th batch.

Its packers give each element the number of its sample in the row (segment id, from 1 on; 0 is padding) and
its position in the sample. Where samples begin and how long they are follows from these alone, so that the
content check verifies them, too.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from iobench.base.errors import LoaderFailed
from iobench.base.options import LIMITS, option
from iobench.contrib.loaders._shared import epoch_seeds
from iobench.dataset.opener import Opener
from iobench.formats import Array, Ragged, Reader, Schema, array_of, offsets_of
from iobench.loading.collate import LIST, Collate, Dense, SampleList
from iobench.loading.loaders import MAX_PREFETCH, MAX_WORKERS, CopyingLoader, Epochs, Job
from iobench.loading.tensors import HostBatch, silence_read_only_warning, tensor_of
from iobench.loading.user_errors import PortableError

THREADS, ENDING_S = "grain-prefetch", 10.0
AXES = "axes"  # of a list in a tree: how many vary
PACKERS = {"best-fit": "BestFitPackIterDataset", "first-fit": "FirstFitPackIterDataset"}
MARK = "/sample"  # in each sample, because one without elements has no segment


@dataclass(frozen=True)
class Grain(CopyingLoader):
    """An iterable-style loader: Grain samples, batches and prefetches."""

    name: ClassVar[str] = "grain"
    summary: ClassVar[str] = (
        "Grain: a MapDataset, shuffled and batched by Grain, read by threads or processes"
    )
    library: ClassVar[str] = "grain"
    recommended_options: ClassVar[str] = "num_workers={cores}"
    modules: ClassVar[tuple[str, ...]] = ("grain",)
    orders: ClassVar[tuple[str, ...]] = ("sequential", "random")
    iterable_style: ClassVar[bool] = True
    stateful: ClassVar[bool] = True
    ragged: ClassVar[bool] = True

    threads: int | None = option(
        None,
        "reading threads in each process; by default Grain's 16",
        minimum=0,
        maximum=LIMITS["threads"][1],
    )
    prefetch: int | None = option(
        None, "batches that the threads read ahead; by default Grain's 500", minimum=0, maximum=MAX_PREFETCH
    )
    num_workers: int = option(
        0, "worker processes, started by spawn each epoch", minimum=0, maximum=MAX_WORKERS
    )
    packing: str | None = option(
        None,
        "Grain's own packing, for --collate pack:best-fit=N; `prefetch` then counts samples",
        choices=(None, *PACKERS),
    )

    def collates(self, collate: Collate) -> bool:
        """Return True for every way; with `packing` for packed samples that stay whole."""
        return self.packing is None or collate.best_fit

    @property
    def workers(self) -> int:
        """The option `num_workers`."""
        return self.num_workers

    @property
    def read_ahead(self) -> int:
        """The option `prefetch`, by default Grain's 500."""
        return 500 if self.prefetch is None else max(1, self.prefetch)

    def open(self, job: Job) -> Epochs:
        """Build the source; each process that reads opens its own reader."""
        return GrainEpochs(self, job)


class GrainSource:
    """A random-access data source, in Grain's terms; each process opens the artifact itself."""

    def __init__(self, opener: Opener) -> None:
        self._opener = opener
        self._reader: Reader | None = None

    def open(self) -> Reader:
        """Return this process's reader, opened on the first call."""
        if self._reader is None:
            self._reader = self._opener()
        return self._reader

    def __len__(self) -> int:
        return self._opener.schema.samples

    def __getitem__(self, row: int) -> dict[str, Any]:
        return (self._reader or self.open()).sample(row)

    def __getstate__(self) -> dict[str, Any]:
        return {"_opener": self._opener, "_reader": None}

    def close(self) -> None:
        """Close this process's reader."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


class GrainEpochs(Epochs):
    """A new dataset for each epoch, shuffled with another seed."""

    def __init__(self, loader: Grain, job: Job) -> None:
        super().__init__(loader, job)
        self._settings = loader
        self._source = GrainSource(job.opener)
        if not loader.num_workers:
            self._source.open()
        logging.getLogger("absl").setLevel(logging.ERROR)  # it logs every process that ends

    @property
    def prefetches(self) -> bool:
        """True if there are reading threads or workers."""
        return self._settings.threads != 0 or self._settings.num_workers > 0

    def _epoch(self, request: int) -> Iterator[HostBatch]:
        batches = self._library = iter(self._dataset(request))
        if self._resumed is not None:
            batches.set_state(self._resumed)
            self._resumed = None
        try:
            for batch in batches:
                yield self.pinned({name: _tensors(one) for name, one in batch.items()})
        finally:
            batches.close()

    def state(self) -> Any:
        """Return the state of Grain's iterator."""
        return self._library.get_state()

    def _dataset(self, epoch: int) -> Any:
        import grain

        order, settings = self.job.order, self._settings
        dataset = grain.MapDataset.source(self._source)
        if order.kind == "random":
            dataset = dataset.shuffle(seed=epoch_seeds(order, epoch)[0])
        chosen = {"num_threads": settings.threads, "prefetch_buffer_size": settings.prefetch}
        options = grain.ReadOptions(**{name: value for name, value in chosen.items() if value is not None})
        read = self._batched(dataset, options)
        if not settings.num_workers:
            return read
        return read.mp_prefetch(grain.MultiprocessingOptions(num_workers=settings.num_workers))

    def _batched(self, dataset: Any, options: Any) -> Any:
        """Return a dataset of batches, which threads read by these options."""
        batch_size, collate, schema = self.job.order.batch_size, self.job.collate, self.job.opener.schema
        if self._settings.packing is not None:
            assert collate.length is not None
            samples = dataset.to_iter_dataset(options)
            return packed(samples, self._settings.packing, schema, collate.length, batch_size)
        ragged = frozenset(field.name for field in schema.ragged)
        join = partial(_join, collate, ragged) if ragged else None
        return dataset.batch(batch_size, batch_fn=join).to_iter_dataset(options)

    def close(self) -> None:
        """Close this process's reader when Grain's threads, which end asynchronously, have ended."""
        for thread in threading.enumerate():
            if thread.name.startswith(THREADS):
                thread.join(ENDING_S)
        self._source.close()
        gc.collect()  # Grain's iterators are in reference cycles with views of the files


def _join(
    collate: Collate, ragged: Collection[str], samples: Sequence[Mapping[str, Array]]
) -> dict[str, Any]:
    """Return a batch as a tree of arrays: of a field that differs in length those that it is made of."""
    columns = {name: [sample[name] for sample in samples] for name in samples[0]}
    return {
        name: _parts(collate, name, columns) if name in ragged else np.stack(column)
        for name, column in columns.items()
    }


def _parts(collate: Collate, name: str, columns: Mapping[str, Sequence[Array]]) -> dict[str, Any]:
    """Return the arrays of a field that differs in length; only what copies its samples imports torch."""
    column, extents = columns[name], collate.extents.get(name)
    if collate.is_jagged:
        return vars(Ragged.of(column, column[0].shape[1:], column[0].dtype))
    if collate.kind == LIST and extents is None:
        return {LIST: tuple(column), AXES: 1}
    silence_read_only_warning()
    field = collate.column(name, {own: [*map(tensor_of, columns[own])] for own in (name, extents) if own})
    if isinstance(field, SampleList):
        return {LIST: tuple(map(array_of, field.tensors)), AXES: field.axes}
    return {name: array_of(one) if hasattr(one, "numpy") else one for name, one in vars(field).items()}


def _tensors(one: Any) -> Any:
    if not isinstance(one, dict):
        return tensor_of(np.asarray(one))
    if LIST in one:
        return SampleList(tuple(map(tensor_of, one[LIST])), one[AXES])
    parts: dict[str, Any] = {
        name: tensor_of(part) if isinstance(part, np.ndarray) else part for name, part in one.items()
    }
    return Ragged(**parts) if "offsets" in parts else Dense(**parts)


def packed(samples: Any, packer: str, schema: Schema, length: int, batch_size: int) -> Any:
    """Return a dataset of batches of rows of `length`, packed by Grain from a dataset of samples.

    A batch has as many rows as `batch_size` samples of mean length fill.
    """
    import grain.experimental

    names = [field.name for field in schema.ragged]
    mean = max(schema.rows(field) for field in schema.ragged) / schema.samples
    rows = max(1, round(batch_size * mean / length))
    packs = getattr(grain.experimental, PACKERS[packer])(
        samples.map(partial(_marked, names, length)),
        length_struct=dict.fromkeys(names, length),
        num_packing_bins=rows,
        meta_features=[MARK, *(field.name for field in schema.fields if not field.is_ragged)],
    )
    return packs.batch(rows, batch_fn=partial(_joined, schema))


def _marked(names: Sequence[str], length: int, sample: Mapping[str, Array]) -> dict[str, Any]:
    """Return a sample with its mark; PortableError if it is longer than a row."""
    longest = max(len(sample[name]) for name in names)
    if longest > length:
        problem = "Grain packs only samples that fit into a row, and one is longer"
        expected, hint = f"at most {length:,}", "use longer rows, or omit the option packing"
        error = LoaderFailed(problem, "too-long", expected=expected, found=f"{longest:,}", hint=hint)
        raise PortableError.wrap(error)
    return {**sample, MARK: 0}


def _joined(schema: Schema, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a batch of rows: per ragged field the parts of a `Dense`, others stacked sample by sample."""
    counts = np.array([len(row[MARK]) for row in rows])
    return {
        field.name: _dense(counts, *packed_columns(field.name, rows))
        if field.is_ragged
        else np.stack([one for row in rows for one in row[field.name]])
        for field in schema.fields
    }


def packed_columns(name: str, rows: Sequence[Mapping[str, Any]]) -> list[Array]:
    """Return a field's values of packed rows, their segment ids and their positions."""
    keys = (name, f"{name}_segment_ids", f"{name}_positions")
    return [np.stack([row[key] for row in rows]) for key in keys]


def _dense(counts: Array, values: Array, segments: Array, positions: Array) -> dict[str, Any]:
    """Return the parts of a `Dense`, of rows with `counts` samples."""
    real = np.flatnonzero(segments)
    sample = (segments + offsets_of(counts)[:-1, None] - 1).ravel()[real]
    lengths = np.bincount(sample, minlength=counts.sum())
    starts, first = np.zeros(len(lengths), np.int64), positions.ravel()[real] == 0
    starts[sample[first]] = real[first]
    return {"values": values, "lengths": lengths, "total": len(real), "starts": starts}
