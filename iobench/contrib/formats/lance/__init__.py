"""Format lance: a dataset folder with a column per field, rows taken by number.

A process that has used the library must not fork, so worker processes are spawned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from iobench.base.finding import Finding
from iobench.formats import (
    COMPLEX,
    NUMPY_DTYPES,
    Addressable,
    Batch,
    Detectable,
    Field,
    Format,
    Schema,
    StoreAddress,
    split_selection,
)

if TYPE_CHECKING:
    from iobench.contrib.formats.lance.reader import LanceReader

VERSIONS, TRANSACTIONS = "_versions", "_transactions"


@dataclass(frozen=True)
class Lance(Format, Detectable, Addressable):
    """A Lance dataset of one version, with lists."""

    name: ClassVar[str] = "lance"
    summary: ClassVar[str] = "a Lance dataset, one column per field, rows taken by number"
    library: ClassVar[str] = "pylance"
    modules: ClassVar[tuple[str, ...]] = ("lance",)
    extra: ClassVar[str] = "lance"
    dtypes: ClassVar[frozenset[str]] = frozenset(NUMPY_DTYPES).difference(COMPLEX)
    holds_ragged: ClassVar[bool] = True
    selectable: ClassVar[bool] = True
    schemes: ClassVar[tuple[str, ...]] = ("s3",)
    forkable: ClassVar[bool] = False
    survives_unlink: ClassVar[bool] = False

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write the dataset without the transaction file and the version hint, which only writers need."""
        import pyarrow as pa

        from iobench.contrib.formats.lance.reader import lance
        from iobench.contrib.formats.shared.arrow_columns import arrow_schema, record_batch

        columns = arrow_schema(schema)

        def record_batches() -> Iterator[Any]:
            for batch in batches:
                yield record_batch(columns, batch)

        reader = pa.RecordBatchReader.from_batches(columns, record_batches())
        lance.write_dataset(reader, str(path), mode="create", max_rows_per_file=schema.samples)
        for file in (*(path / TRANSACTIONS).glob("*.txn"), *(path / VERSIONS).glob("*.json")):
            file.unlink()

    def open(self, path: Path, schema: Schema, random: bool = False) -> LanceReader:
        """Check column types, the number of rows and the files, and return a reader."""
        from iobench.contrib.formats.lance.reader import LanceReader, damage_as_error, opened

        return LanceReader(path, schema, opened(path), damage_as_error)

    def open_at(self, address: StoreAddress, schema: Schema) -> LanceReader:
        """Check column types, the number of rows and the names of the files, and return a reader."""
        from iobench.contrib.formats.lance.reader import LanceReader, opened_at, store_errors

        errors = partial(store_errors, address.url)
        return LanceReader(Path(address.url), schema, opened_at(address), errors)

    def sniff(self, path: Path) -> bool:
        """Return True for a folder with Lance's version folder."""
        return (path / VERSIONS).is_dir()

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema; a column of bytes, or of lists that differ in length, is a ragged field."""
        from iobench.contrib.formats.lance.reader import infer_schema_of

        path, chosen = split_selection(path)
        return infer_schema_of(path, fields, chosen)

    def notes(self, path: Path, schema: Schema) -> list[Finding]:
        """Return a note if columns of bytes, such as encoded images, are read."""
        from iobench.contrib.formats.lance.reader import opened
        from iobench.contrib.formats.shared.arrow_columns import column_notes

        path = split_selection(path)[0]
        return column_notes(path, schema, opened(path).schema)

    def size_bound(self, schema: Schema) -> int:
        """Return logical bytes plus metadata of the pages of each column."""
        return super().size_bound(schema) + schema.logical_bytes // 20 + len(schema.fields) * (64 << 10)
