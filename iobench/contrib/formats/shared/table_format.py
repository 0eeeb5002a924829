"""Base class of formats that store a field as a column of a table: Arrow, Parquet and Lance."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from iobench.base.finding import Finding
from iobench.formats import COMPLEX, NUMPY_DTYPES, Detectable, Field, Format, Schema, split_selection

if TYPE_CHECKING:
    from iobench.contrib.formats.shared.arrow_columns import Table

ARROW = b"ARROW1"  # the first bytes of an Arrow file; a stream has none


@dataclass(frozen=True)
class TableFormat(Format, Detectable):
    """Base class of formats of Arrow columns; a column of bytes, or of unequal lists, is a ragged field."""

    dtypes: ClassVar[frozenset[str]] = frozenset(NUMPY_DTYPES).difference(COMPLEX)
    holds_ragged: ClassVar[bool] = True
    selectable: ClassVar[bool] = True

    @abstractmethod
    def data_files(self, path: Path) -> list[Path]:
        """Return the files or folders that hold the tables of an artifact, in order."""

    @abstractmethod
    def table(self, file: Path) -> Table:
        """Open one of the data files."""

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema of the columns, or of those that follow `::`."""
        from iobench.contrib.formats.shared.arrow_columns import schema_of

        path, chosen = split_selection(path)
        return schema_of(path, self._tables(path), fields, chosen)

    def notes(self, path: Path, schema: Schema) -> list[Finding]:
        """Return a note if columns of bytes, such as encoded images, are read."""
        from iobench.contrib.formats.shared.arrow_columns import column_notes

        first = next(self._tables(split_selection(path)[0]))
        return column_notes(first.file, schema, first.schema)

    def _tables(self, path: Path) -> Iterator[Table]:
        return map(self.table, self.data_files(path))
