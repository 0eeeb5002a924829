"""tf.data over TFRecord files: TensorFlow reads, shuffles within a buffer, batches, parses and prefetches.

This follows TensorFlow's documentation: whole batches are parsed at once (`batch` before `map`), in parallel
and with `prefetch(AUTOTUNE)`; files can be interleaved. TensorFlow is kept off the GPU, where it would
reserve memory.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from iobench.base.errors import CorruptArtifact
from iobench.base.options import option
from iobench.contrib.loaders._shared import data_files, epoch_seeds, shuffle_buffer_option
from iobench.formats import Field, Schema, field_names
from iobench.loading.loaders import CopyingLoader, Epochs, Job
from iobench.loading.tensors import HostBatch, tensors_of

AS_WORDS = {
    "uint32": "int32",
    "uint64": "int64",
    "bfloat16": "int16",
}  # dtypes that TensorFlow does not decode


@dataclass(frozen=True)
class TfData(CopyingLoader):
    """An iterable-style loader: shuffles files, and samples within a buffer."""

    name: ClassVar[str] = "tfdata"
    summary: ClassVar[str] = "tf.data over TFRecord files, samples shuffled within a buffer"
    library: ClassVar[str] = "tensorflow"
    format_names: ClassVar[tuple[str, ...]] = ("tfrecord",)
    recommended_options: ClassVar[str] = "interleave={cores}"
    modules: ClassVar[tuple[str, ...]] = ("tensorflow",)
    orders: ClassVar[tuple[str, ...]] = ("sequential", "random")
    iterable_style: ClassVar[bool] = True

    shuffle_buffer: int = shuffle_buffer_option()
    interleave: int | None = option(
        None, "files to read at the same time; by default one after the other", minimum=1, maximum=1024
    )

    def open(self, job: Job) -> Epochs:
        """Import TensorFlow, without the GPU."""
        return TfDataEpochs(self, job)


class TfDataEpochs(Epochs):
    """A new dataset for each epoch, shuffled with another seed."""

    prefetches = True  # its threads read ahead

    def __init__(self, loader: TfData, job: Job) -> None:
        super().__init__(loader, job)
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # it logs when it is imported
        import tensorflow as tf

        tf.config.set_visible_devices([], "GPU")
        self._settings = loader
        with job.opener() as reader:  # checks the files as every loader does
            self._files = data_files(reader)
        self._parse = ExampleParser(job.opener.schema, self._files[0])

    def _epoch(self, request: int) -> Iterator[HostBatch]:
        for batch in self._dataset(request).as_numpy_iterator():
            tensors = tensors_of({name: _writable(array) for name, array in self._parse.typed(batch).items()})
            yield self.pinned(tensors)

    def _dataset(self, epoch: int) -> Any:
        import tensorflow as tf

        order, settings = self.job.order, self._settings
        first, second = epoch_seeds(order, epoch)
        files = list(self._files)
        if order.kind == "random":
            np.random.default_rng(first).shuffle(files)
        records = tf.data.TFRecordDataset(files, num_parallel_reads=settings.interleave)
        if order.kind == "random":
            records = records.shuffle(settings.shuffle_buffer, seed=second)
        batches = records.batch(order.batch_size)
        return batches.map(self._parse, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)

    def close(self) -> None:
        """Release the datasets and files of epochs, which nothing refers to any more."""
        gc.collect()


class ExampleParser:
    """Parses the records of a batch, by the features of the first record."""

    def __init__(self, schema: Schema, first: str) -> None:
        import tensorflow as tf

        record = next(iter(tf.data.TFRecordDataset([first]).take(1).as_numpy_iterator()))
        stored = tf.train.Example.FromString(record).features.feature
        self._fields = schema.fields
        self._keys = _keys(schema, stored, first)
        self._raw = {
            name for name, key in self._keys.items() if stored[key].WhichOneof("kind") == "bytes_list"
        }

    def __call__(self, records: Any) -> Any:
        """Return the fields of a batch by name."""
        import tensorflow as tf

        parsed = tf.io.parse_example(records, {self._keys[f.name]: self._feature(f) for f in self._fields})
        return {field.name: self._decoded(field, parsed[self._keys[field.name]]) for field in self._fields}

    def typed(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return a batch's arrays with the dtypes of the schema."""
        return {  # raw bytes are reinterpreted, numbers converted
            f.name: batch[f.name].view(f.dtype)
            if f.name in self._raw
            else batch[f.name].astype(f.dtype, copy=False)
            for f in self._fields
        }

    def _feature(self, field: Field) -> Any:
        import tensorflow as tf

        if field.name in self._raw:
            return tf.io.FixedLenFeature([], tf.string)
        kind = tf.float32 if field.dtype.startswith("float") else tf.int64
        return tf.io.FixedLenFeature(list(field.shape), kind)

    def _decoded(self, field: Field, values: Any) -> Any:
        import tensorflow as tf

        if field.name not in self._raw:
            return values
        dtype = AS_WORDS.get(field.dtype, field.dtype)
        return tf.reshape(tf.io.decode_raw(values, dtype), [-1, *field.shape])


def _keys(schema: Schema, stored: Iterable[str], file: str) -> dict[str, str]:
    keys = field_names(stored)
    for field in schema.fields:
        if field.name not in keys:
            raise CorruptArtifact(
                f"no feature of field {field.name} in its first record", kind="unknown-array", path=file
            )
    return keys


def _writable(array: Any) -> Any:
    return array if array.flags.writeable else np.array(array)
