"""The source of data of other programs: files that a format or an adapter reads in the sandbox."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from iobench import formats
from iobench.base.errors import SourceError, no_permission
from iobench.base.finding import Finding
from iobench.base.text import numbered, shortened
from iobench.dataset import sandbox
from iobench.dataset.artifact_location import FileTree
from iobench.dataset.sandbox import UntrustedData
from iobench.dataset.sources.source import CLOSE_WRITERS, Source, default_name
from iobench.formats import Batch, Field, Schema
from iobench.formats.array_schema import with_selection

JPEG_FIELDS = ("jpg", "jpeg")
SCALED = "--sample-shape 3x224x224 scales and crops them; 'iobench add' also reads the bytes of the files"


def check_fields(path: Path, schema: Schema, fields: Sequence[Field]) -> None:
    """Raise SourceError if data have other fields than those given."""
    if fields and schema.fields != tuple(fields):
        problem = "the data have other fields than --field"
        raise SourceError(problem, "fields-differ", path, expected=_text(fields), found=_text(schema.fields))


def _text(fields: Sequence[Field]) -> str:
    return shortened(" ".join(field.typed for field in fields), 300)


class FileSource(Source):
    """A file or folder, or the columns `chosen` out of it, read by a format or an adapter in the sandbox.

    `fields` are those of data that do not describe theirs; `notes` say how the data were taken.
    """

    def __init__(
        self,
        tree: FileTree,
        kind: str,
        chosen: tuple[str, ...] = (),
        fields: Sequence[Field] = (),
        notes: Sequence[Finding] = (),
    ) -> None:
        self.path, self._stamp, self.kind, self._chosen = tree.path, tree.stamp, kind, chosen
        self._fields = tuple(fields)
        self._form = formats.parse(kind) if kind not in sandbox.ADAPTERS else None
        options = self._form.options if self._form else {}
        self.name = default_name("-".join((Path(self.path.name.removesuffix(".gz")).stem, *chosen)))
        self._data = UntrustedData(with_selection(self.path, chosen), kind, self._stamp.bytes)
        if self.path.is_file() and not os.access(self.path, os.R_OK, effective_ids=True):
            raise no_permission(SourceError, self.path)  # before a process is started
        try:
            described = sandbox.describe(self._data, fields)
        except SourceError as error:
            if error.kind == "unequal-shapes" and "shape" in options:
                raise error.changed(hint=SCALED) from error
            raise
        check_fields(self.path, described.schema, fields)
        self.schema, self.notes = described.schema, (*notes, *described.notes)
        self._others = described.others
        self._stamp = FileTree.of(self.path, self._others).stamp
        self.decodes = self._form is not None and self._form.parallel
        self.losses = self._losses(options.get("shape"))

    def _losses(self, shape: object) -> tuple[str, ...]:
        if [field.name for field in self.schema.fields] == ["tokens"]:
            length = self.schema.fields[0].elements
            return (f"windows of {length} tokens are written: another length means writing again",)
        if self._chosen:
            are = "is" if len(self._chosen) == 1 else "are"
            return (f"of {self.path.name} only {', '.join(self._chosen)} {are} written",)
        if shape and not self.schema.extents:
            return (f"samples are {str(shape).replace('x', ' × ')}: random crops of the originals are gone",)
        return ()

    @property
    def description(self) -> dict[str, Any]:
        """Kind, path, and the stamp that changes if a file is added, removed or changed."""
        stamp = self._stamp
        return {
            "kind": self.kind,
            "path": str(self.path),
            "files": stamp.files,
            "bytes": stamp.bytes,
            "digest": stamp.digest,
            **({"arrays": list(self._chosen)} if self._chosen else {}),
            **({"fields": [field.typed for field in self._fields]} if self._fields else {}),
            **({"renamed": self.schema.renamed} if self.schema.renamed else {}),
        }

    def in_place(self) -> tuple[Path, str] | None:
        """Return the data, if a format reads them."""
        return (self._data.path, self.kind) if self._form else None

    def other_decoders(self) -> tuple[str, ...]:
        """Return the other decoders of scaled JPEG files; webdataset names fields after the files."""
        jpeg = any(field.name in JPEG_FIELDS for field in self.schema.fields)
        return self._form.other_decoders() if self._form and jpeg else ()

    def batches(self) -> Iterator[Batch]:
        """Yield all samples in order; SourceError of kind ``changed`` if the files changed meanwhile."""
        self._check()
        try:
            yield from sandbox.batches(UntrustedData(self.path, self.kind, self._stamp.bytes), self.schema)
        except SourceError:
            self._check()
            raise
        self._check()

    def _check(self) -> None:
        if FileTree.of(self.path, self._others).stamp != self._stamp:
            raise SourceError("changed while it was read", "changed", self.path, hint=CLOSE_WRITERS)


TABLES = frozenset({"arrow", "csv", "jsonl", "lance", "parquet"})  # kinds of source that are tables
LABELS = frozenset({"class", "label", "labels", "target", "targets", "y"})


def packed_table(source: Source, kind: str) -> Source:
    """Return a table with its columns packed; any other source, or a table without such columns, itself."""
    return _PackedColumns(source) if kind.partition(":")[0] in TABLES and _packed(source.schema) else source


class _PackedColumns(Source):
    """A table whose scalar columns of one dtype are one field, `features`, in their order.

    If columns of several dtypes are packed, the dtype is part of the name, like `features_float32`. A column
    that is a label by its name, is alone in its dtype, or holds lists stays a field.
    """

    def __init__(self, table: Source) -> None:
        self._table = table
        self.packed = _packed(table.schema)
        self.name, self.decodes, self.notes = table.name, table.decodes, table.notes
        inside = {name for columns in self.packed.values() for name in columns}
        kept = [field for field in table.schema.fields if field.name not in inside]
        matrices = [
            Field(name, (len(columns),), table.schema.field(columns[0]).dtype)
            for name, columns in self.packed.items()
        ]
        self.schema = replace(table.schema, fields=(*matrices, *kept))
        packed = (f"{len(columns)} columns become {name}" for name, columns in self.packed.items())
        self.losses = (*table.losses, *packed)

    @property
    def description(self) -> dict[str, Any]:
        """Description of the table, with the columns of each matrix as `packed`."""
        return {**self._table.description, "packed": self.packed}

    def batches(self) -> Iterator[Batch]:
        """Yield the table's batches, the packed columns as matrices."""
        for batch in self._table.batches():
            matrices = {
                name: np.stack([batch.pop(column) for column in columns], axis=1)
                for name, columns in self.packed.items()
            }
            yield matrices | batch


def _packed(schema: Schema) -> dict[str, list[str]]:
    """Return the columns of each matrix by the matrix's name."""
    alike: dict[str, list[str]] = defaultdict(list)
    for field in schema.fields:
        original = schema.renamed.get(field.name, field.name)
        if not field.shape and original.casefold() not in LABELS:
            alike[field.dtype].append(field.name)
    several = {dtype: columns for dtype, columns in alike.items() if len(columns) > 1}
    taken = {field.name for field in schema.fields}
    names = {one: f"features_{one}" if len(several) > 1 else "features" for one in several}
    return {
        next(name for name in numbered(names[dtype]) if name not in taken): columns
        for dtype, columns in several.items()
    }
