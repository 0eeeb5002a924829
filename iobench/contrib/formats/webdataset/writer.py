"""Writing of tar shards: a .npy file per field and sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from iobench.base.errors import UnsupportedSchema
from iobench.contrib.formats.shared.record_writer import (
    RecordTemplate,
    ShardWriter,
    filled,
    rows_within,
    sample_bytes,
)
from iobench.contrib.formats.webdataset.tar import BLOCK, DIGIT, END, MOST_BYTES, TarHeaders
from iobench.contrib.formats.webdataset.tar_fields import stored_name
from iobench.formats import Array, Batch, Field, Schema, stored_names
from iobench.formats.npy_header import header_of

DIGITS = 9  # of a sample's number, as in WebDataset's own examples


def write_shards(path: Path, schema: Schema, batches: Iterable[Batch], shard_bytes: int) -> None:
    """Write the shards of a folder."""
    if schema.ragged:
        _RaggedTarWriter(path, schema, shard_bytes).write(batches)
    else:
        _TarWriter(path, schema, shard_bytes).write(batches)


def most_bytes(schema: Schema, shard_bytes: int) -> int:
    """Return a limit of the bytes of all shards: records, and two empty blocks per shard."""
    if schema.ragged:
        records = _RaggedTarWriter(Path(), schema, shard_bytes).most_bytes
        shards = min(schema.samples, 1 + 2 * records // shard_bytes)
    else:
        record = len(_TarWriter(Path(), schema, shard_bytes).record.pattern)
        records, shards = schema.samples * record, -(-schema.samples // rows_within(shard_bytes, record))
    return records + shards * (len(END) + 4096) + (1 << 20)


def _path_of(path: Path, number: int) -> Path:
    return path / f"{number:06d}.tar"


def _headers(schema: Schema, size_of: Callable[[Field], int]) -> list[tuple[Field, TarHeaders]]:
    """Return each field with the tar headers of its files, of this size."""
    digits = DIGIT.decode() * max(DIGITS, len(str(schema.samples - 1)))
    names = stored_names(schema.fields, stored_name)
    return [
        (field, TarHeaders(f"{digits}.{names[field.name]}.npy", size_of(field))) for field in schema.fields
    ]


class _TarWriter(ShardWriter):
    """Writer of samples of one size: per field tar and .npy header, the array, zeros up to a whole block."""

    def __init__(self, path: Path, schema: Schema, shard_bytes: int) -> None:
        self._path, at = path, 0
        self._headers: list[tuple[int, TarHeaders]] = []
        parts: list[bytes | Field] = []
        for field, header in _headers(schema, lambda one: len(header_of(one)) + one.sample_bytes):
            self._headers.append((at, header))
            parts += [header.blocks, header_of(field), field, bytes(-header.size % BLOCK)]
            at += len(header.blocks) + header.size + -header.size % BLOCK
        super().__init__(schema, RecordTemplate.of(parts), rows_within(shard_bytes, at))

    def path_of(self, number: int) -> Path:
        return _path_of(self._path, number)

    def stamp(self, table: Array, first: int) -> None:
        for begin, header in self._headers:
            header.number(table, begin, np.arange(first, first + len(table)))

    def end(self, number: int) -> bytes:
        return END


class _RaggedTarWriter:
    """Writer of the same files for samples that differ in length; a shard is in memory until it is full."""

    def __init__(self, path: Path, schema: Schema, shard_bytes: int) -> None:
        self._path, self._schema, self._shard_bytes = path, schema, shard_bytes
        self._headers = _headers(schema, lambda one: 0)

    @property
    def most_bytes(self) -> int:
        """Limit of the bytes of all records."""
        each = sum(
            len(header.blocks) + len(header_of(field, 0)) + 2 * BLOCK for field, header in self._headers
        )
        return self._schema.logical_bytes + self._schema.samples * each

    def write(self, batches: Iterable[Batch]) -> None:
        """Write all shards."""
        for number, records in enumerate(filled(self._records(batches), self._shard_bytes)):
            with open(_path_of(self._path, number), "xb") as file:
                file.writelines([*records, END])

    def _records(self, batches: Iterable[Batch]) -> Iterator[bytes]:
        """Yield the files of each sample."""
        first = 0
        for batch in batches:
            columns = [_files(batch, first, field, header) for field, header in self._headers]
            for files in zip(*columns, strict=True):
                yield b"".join(files)
                first += 1


def _files(batch: Batch, first: int, field: Field, header: TarHeaders) -> Iterator[bytes]:
    """Yield the file of each sample of a batch, of which the first has this number."""
    memory, edges = sample_bytes(batch, field)
    begins = [_npy_header(field, size // field.sample_bytes) for size in np.diff(edges).tolist()]
    sizes = np.diff(edges) + np.fromiter(map(len, begins), np.int64, len(begins))
    if (largest := int(sizes.max(initial=0))) > MOST_BYTES:
        raise UnsupportedSchema(
            f"format webdataset cannot hold a sample of {field.name}",
            kind="sample-too-large",
            expected=f"at most {MOST_BYTES:,} bytes",
            found=f"{largest:,}",
        )
    heads = np.empty((len(sizes), len(header.blocks)), np.uint8)
    heads[:] = np.frombuffer(header.blocks, np.uint8)
    header.number(heads, 0, np.arange(first, first + len(sizes)), sizes)
    for row, (head, begin) in enumerate(zip(heads, begins, strict=True)):
        array = memory[edges[row] : edges[row + 1]]
        yield b"".join([head.data, begin, array, bytes(-int(sizes[row]) % BLOCK)])


@lru_cache(1 << 16)
def _npy_header(field: Field, length: int) -> bytes:
    """Return the .npy header of a sample of this length."""
    return header_of(replace(field, shape=field.inner), length) if field.is_ragged else header_of(field)
