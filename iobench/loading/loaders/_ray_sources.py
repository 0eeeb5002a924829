"""How Ray Data reads what a format has written, and how its batches become tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.base.errors import (
    CorruptArtifact,
)
from iobench.dataset.manifest import Opener
from iobench.formats import Field, Reader, Schema, field_name
from iobench.loading.loaders._files import files_behind
from iobench.loading.loaders.huggingface import tensor_of_column
from iobench.loading.tensors import tensors_of

if TYPE_CHECKING:
    from iobench.loading.host_to_device import HostBatch

MEMBERS = ["*.npy", "*.png", "*.jpg", "*.cls"]  # of archives, that its decoder makes arrays and numbers of


@dataclass(frozen=True)
class Source:
    """How Ray Data reads an artifact: `read` makes a dataset of paths, in so many blocks where that is told;
    `collate` makes what turns its batches into tensors."""

    paths: list[str]
    read: Callable[[list[str], int | None], Any]
    collate: Callable[[], Any]


def _parquet(opener: Opener, reader: Reader) -> Source:
    import pyarrow.parquet as pq

    from iobench.formats.parquet import files_of

    paths = [str(file) for file in files_of(opener.path)]
    columns = _columns(opener.schema, pq.read_schema(paths[0]).names)

    def read(paths: list[str], blocks: int | None) -> Any:
        import ray.data

        dataset = ray.data.read_parquet(
            paths, override_num_blocks=blocks, partitioning=None, file_extensions=None
        )
        return dataset.select_columns(list(columns.values()))

    return Source(paths, read, lambda: _tables(opener.schema, columns))


def _lance(opener: Opener, reader: Reader) -> Source:
    from lance import dataset  # the reader's own import of it has set its log

    path = str(opener.path)
    columns = _columns(opener.schema, dataset(path).schema.names)

    def read(paths: list[str], blocks: int | None) -> Any:
        import ray.data

        return ray.data.read_lance(paths[0], columns=list(columns.values()), override_num_blocks=blocks)

    return Source([path], read, lambda: _tables(opener.schema, columns))


def _archives(opener: Opener, reader: Reader) -> Source:
    members = Members(opener.schema, opener.path)

    def read(paths: list[str], blocks: int | None) -> Any:
        import ray.data

        return ray.data.read_webdataset(
            paths, decoder=[True, members], suffixes=MEMBERS, override_num_blocks=blocks, file_extensions=None
        )

    return Source(files_behind(reader), read, lambda: _stacked(opener.schema))


SOURCES = {"parquet": _parquet, "lance": _lance, "webdataset": _archives}  # by format


class Members:
    """The fields of a sample out of its decoded members; it travels to Ray's tasks."""

    def __init__(self, schema: Schema, path: Path) -> None:
        self._schema, self._path = schema, path

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """CorruptArtifact where a member is not there."""
        return {field.name: self._array(field, sample) for field in self._schema.fields}

    def _array(self, field: Field, sample: Mapping[str, Any]) -> Any:
        own = f"{field.name.lower()}.npy"
        for key, value in sample.items():
            if key == own or field_name(key.removesuffix(".npy")) == field.name:
                return np.asarray(value, field.dtype).reshape(field.shape)
        raise CorruptArtifact(f"{self._path}: no file of field {field.name} in sample {sample['__key__']}")


def _columns(schema: Schema, names: list[str]) -> dict[str, str]:
    """The own name of each field's column."""
    known = {field_name(name): name for name in names}
    return {field.name: known[field.name] for field in schema.fields}


def _tables(schema: Schema, columns: Mapping[str, str]) -> Any:
    """Makes tensors of tables, in memory of their own."""
    from ray.data.collate_fn import ArrowBatchCollateFn

    class Tables(ArrowBatchCollateFn):  # type: ignore[misc]
        def __call__(self, batch: Any) -> HostBatch:
            both = ((field, batch[columns[field.name]].combine_chunks()) for field in schema.fields)
            return {field.name: tensor_of_column(column, field.shape) for field, column in both}

    return Tables()


def _stacked(schema: Schema) -> Any:
    """Makes tensors of columns of arrays, one for each row."""
    from ray.data.collate_fn import NumpyBatchCollateFn

    class Stacked(NumpyBatchCollateFn):  # type: ignore[misc]
        def __call__(self, batch: Any) -> HostBatch:
            return tensors_of({field.name: _whole(batch[field.name], field) for field in schema.fields})

    return Stacked()


def _whole(column: Any, field: Field) -> Any:
    array = np.stack(list(column)) if column.dtype == object else column
    return np.array(array.reshape(-1, *field.shape), field.dtype)
