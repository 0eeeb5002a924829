"""Writing of MDS shards and their index."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from iobench.contrib.formats.mds.index import INDEX, VERSION
from iobench.contrib.formats.shared.offset_shards import WORD
from iobench.contrib.formats.shared.offset_shards_writer import (
    ragged_records,
    rows_in_shard,
    table,
    write_ragged_shards,
)
from iobench.contrib.formats.shared.record_writer import RecordTemplate, ShardWriter
from iobench.formats import Batch, Field, Schema


def write_shards(path: Path, schema: Schema, batches: Iterable[Batch], shard_bytes: int) -> None:
    """Write the shards of a folder, then the index."""
    config = _config_of(schema, shard_bytes)
    if schema.ragged:
        records, description = ragged_records("mds", _columns(schema), batches), _description(config)
        rows = write_ragged_shards(lambda number: path / name_of(number), records, shard_bytes, description)
    else:
        rows = _FixedWriter(path, schema, config).write_all(batches)
    shards = [
        config | {"zip_data": None} | _entry(path / name_of(number), count)
        for number, count in enumerate(rows)
    ]
    (path / INDEX).write_text(json.dumps({"version": VERSION, "shards": shards}, sort_keys=True))


def name_of(number: int) -> str:
    """Return the name of a shard."""
    return f"shard.{number:05d}.mds"


def most_bytes(schema: Schema, shard_bytes: int) -> int:
    """Return a limit of the bytes of all shards and the index."""
    description = _description(_config_of(schema, shard_bytes))
    logical = schema.logical_bytes + WORD * schema.samples * (1 + len(schema.ragged))
    shards = min(schema.samples, 1 + 2 * logical // max(1, shard_bytes - len(description)))
    return logical + shards * (4096 + 4 * len(description)) + (1 << 20)


def _config_of(schema: Schema, shard_bytes: int) -> dict[str, Any]:
    fields = _columns(schema)
    return {
        "version": VERSION,
        "format": "mds",
        "compression": None,
        "hashes": [],
        "size_limit": shard_bytes,
        "column_names": [field.name for field in fields],
        "column_encodings": [_encoding(field) for field in fields],
        "column_sizes": [None if field.is_ragged else field.sample_bytes for field in fields],
    }


def _columns(schema: Schema) -> list[Field]:
    return sorted(schema.fields, key=lambda field: field.name)


def _encoding(field: Field) -> str:
    """Return the encoding of the column of a field."""
    if field.is_ragged:
        return "bytes"  # an ndarray must not be empty
    dtype = "uint8" if field.dtype == "bool" else field.dtype
    return f"ndarray:{dtype}:{','.join(map(str, field.shape))}" if field.shape else dtype


def _description(config: Mapping[str, Any]) -> bytes:
    return json.dumps(config, sort_keys=True).encode()


def _entry(file: Path, samples: int) -> dict[str, Any]:
    raw = {"basename": file.name, "bytes": file.stat().st_size, "hashes": {}}
    return {"samples": samples, "raw_data": raw}


class _FixedWriter(ShardWriter):
    """Writer of samples of one size."""

    def __init__(self, path: Path, schema: Schema, config: Mapping[str, Any]) -> None:
        self._path, self._description = path, _description(config)
        record = RecordTemplate.of(_columns(schema))
        rows = rows_in_shard(config["size_limit"], len(record.pattern), 8 + len(self._description))
        super().__init__(schema, record, rows)

    def write_all(self, batches: Iterable[Batch]) -> list[int]:
        """Write all shards; return the samples of each."""
        self.write(batches)
        return [self.rows_of(number) for number in range(self.shards)]

    def path_of(self, number: int) -> Path:
        return self._path / name_of(number)

    def begin(self, number: int) -> bytes:
        return table(np.full(self.rows_of(number), len(self.record.pattern)), self._description)
