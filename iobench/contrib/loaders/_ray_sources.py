"""Ray Data's readers for formats, and the collate functions that make tensors of its batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.base.errors import CorruptArtifact
from iobench.contrib.formats.webdataset.tar_fields import suffixes_of
from iobench.contrib.loaders.huggingface import tensor_of_column
from iobench.contrib.loaders.webdataset import data_files
from iobench.dataset.opener import Opener
from iobench.formats import Field, Reader, Schema, field_names
from iobench.loading.tensors import tensors_of

if TYPE_CHECKING:
    from iobench.loading.host_to_device import HostBatch

MEMBERS = ["*.npy", "*.png", "*.jpg", "*.cls"]  # of archives, which Ray decodes to arrays and numbers


@dataclass(frozen=True)
class RaySource:
    """Ray Data's way to read an artifact."""

    paths: list[str]  # the artifact's files
    read: Callable[[list[str], int | None], Any]  # dataset of paths, in this number of blocks if given
    collate: Callable[[], Any]  # returns the function that converts batches to tensors


def _parquet(opener: Opener, reader: Reader) -> RaySource:
    import pyarrow.parquet as pq

    from iobench.contrib.formats.parquet import files_of

    paths = [str(file) for file in files_of(opener.path)]
    columns = _columns(opener.schema, pq.read_schema(paths[0]).names)

    def read(paths: list[str], blocks: int | None) -> Any:
        import ray.data

        dataset = ray.data.read_parquet(
            paths, override_num_blocks=blocks, partitioning=None, file_extensions=None
        )
        return dataset.select_columns(list(columns.values()))

    return RaySource(paths, read, lambda: _table_collate(opener.schema, columns))


def _lance(opener: Opener, reader: Reader) -> RaySource:
    from lance import dataset  # imported before by the reader, which set its log level

    path = str(opener.path)
    columns = _columns(opener.schema, dataset(path).schema.names)

    def read(paths: list[str], blocks: int | None) -> Any:
        import ray.data

        return ray.data.read_lance(paths[0], columns=list(columns.values()), override_num_blocks=blocks)

    return RaySource([path], read, lambda: _table_collate(opener.schema, columns))


def _archives(opener: Opener, reader: Reader) -> RaySource:
    members = MemberDecoder(opener.schema, opener.path)

    def read(paths: list[str], blocks: int | None) -> Any:
        import ray.data

        return ray.data.read_webdataset(
            paths, decoder=[True, members], suffixes=MEMBERS, override_num_blocks=blocks, file_extensions=None
        )

    return RaySource(data_files(reader), read, lambda: _stack_collate(opener.schema))


SOURCES = {"parquet": _parquet, "lance": _lance, "webdataset": _archives}  # by format


class MemberDecoder:
    """Returns the fields of a sample from its decoded members; is pickled for Ray's tasks."""

    def __init__(self, schema: Schema, path: Path) -> None:
        self._schema, self._path = schema, path

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields; CorruptArtifact if a member is missing."""
        suffixes = suffixes_of(sample, self._schema.fields)
        return {field.name: self._array(field, suffixes, sample) for field in self._schema.fields}

    def _array(self, field: Field, suffixes: Mapping[str, str], sample: Mapping[str, Any]) -> Any:
        if key := suffixes.get(field.name):
            return np.asarray(sample[key], field.dtype).reshape(field.shape)
        raise CorruptArtifact(
            f"no file of field {field.name} in sample {sample['__key__']}",
            kind="unknown-array",
            path=self._path,
        )


def _columns(schema: Schema, names: list[str]) -> dict[str, str]:
    """Return the stored name of each field's column."""
    known = field_names(names)
    return {field.name: known[field.name] for field in schema.fields}


def _table_collate(schema: Schema, columns: Mapping[str, str]) -> Any:
    """Return a collate function that converts tables to tensors, in new memory."""
    from ray.data.collate_fn import ArrowBatchCollateFn

    class TableCollate(ArrowBatchCollateFn):  # type: ignore[misc]
        def __call__(self, batch: Any) -> HostBatch:
            both = ((field, batch[columns[field.name]].combine_chunks()) for field in schema.fields)
            return {field.name: tensor_of_column(column, field.shape) for field, column in both}

    return TableCollate()


def _stack_collate(schema: Schema) -> Any:
    """Return a collate function that converts columns with one array per row to tensors."""
    from ray.data.collate_fn import NumpyBatchCollateFn

    class StackCollate(NumpyBatchCollateFn):  # type: ignore[misc]
        def __call__(self, batch: Any) -> HostBatch:
            return tensors_of({field.name: _whole(batch[field.name], field) for field in schema.fields})

    return StackCollate()


def _whole(column: Any, field: Field) -> Any:
    array = np.stack(list(column)) if column.dtype == object else column
    return np.array(array.reshape(-1, *field.shape), field.dtype)
