"""A schema file for artifacts whose data files hold raw bytes only, so that they describe themselves."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from iobench.base.errors import corrupt, expecting
from iobench.base.files import regular
from iobench.formats import Schema

SCHEMA_FILE = "schema.json"


def describe(path: Path, schema: Schema) -> None:
    """Write the schema into a folder: samples, and each field's name, shape and dtype."""
    (path / SCHEMA_FILE).write_text(_text(schema))


def check_described(path: Path, schema: Schema) -> None:
    """Raise CorruptArtifact if the schema in a folder differs from `schema`."""
    file = path / SCHEMA_FILE
    with expecting(file, "the schema", OSError):
        content = regular(file).read_bytes()
    if content != _text(schema).encode():
        raise corrupt(file, "this dataset's schema", "another")


def _text(schema: Schema) -> str:
    plain = {"samples": schema.samples, "fields": [asdict(field) for field in schema.fields]}
    return json.dumps(plain) + "\n"
