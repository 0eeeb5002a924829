"""Layout of samples in LMDB: keys, the header of a value, and the schema's entry."""

from __future__ import annotations

import json
import struct
from dataclasses import asdict
from pathlib import Path

from iobench.base.errors import corrupt
from iobench.base.text import shortened
from iobench.formats._schema import Field, Schema

HEADER = struct.Struct("<2sBBI")
MAGIC, LAYOUT = b"IO", 1
CODECS: dict[str | None, int] = {None: 0, "lz4": 1}
SCHEMA_KEY = b"schema"
KEY = struct.Struct(">Q")
DATA_FILE = "data.mdb"


def data_file(path: Path) -> Path:
    """Return the data file of an environment, which is a folder or a single file."""
    return path / DATA_FILE if path.is_dir() or not path.exists() else path


def described(schema: Schema) -> bytes:
    """Return the fields as JSON, the value of the schema's key."""
    totals = {name: {"total": total} for name, total in schema.totals.items()}
    return json.dumps([asdict(field) | totals.get(field.name, {}) for field in schema.fields]).encode()


def read_described(file: Path, text: bytes, samples: int) -> Schema:
    """Parse the schema that `write` stored; CorruptArtifact if it is not JSON."""
    try:
        stored = json.loads(text)
        fields = [Field(one["name"], tuple(one["shape"]), one["dtype"]) for one in stored]
        totals = {one["name"]: int(one["total"]) for one in stored if "total" in one}
        return Schema(samples, tuple(fields), totals=totals)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise corrupt(file, "fields as JSON", shortened(repr(text))) from error
