"""Format lance: a dataset folder with a column per field, rows taken by number.

A process that has used the library must not fork, so worker processes are spawned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from iobench.contrib.formats.shared.table_format import TableFormat
from iobench.formats import Addressable, Batch, Schema, StoreAddress

if TYPE_CHECKING:
    from iobench.contrib.formats.lance.reader import LanceReader
    from iobench.contrib.formats.shared.arrow_columns import Table

VERSIONS, TRANSACTIONS = "_versions", "_transactions"


@dataclass(frozen=True)
class Lance(TableFormat, Addressable):
    """A Lance dataset of one version, with lists."""

    name: ClassVar[str] = "lance"
    summary: ClassVar[str] = "a Lance dataset, one column per field, rows taken by number"
    library: ClassVar[str] = "pylance"
    modules: ClassVar[tuple[str, ...]] = ("lance",)
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

    def data_files(self, path: Path) -> list[Path]:
        """Return the folder of the dataset."""
        return [path]

    def table(self, file: Path) -> Table:
        """Open the newest version of the dataset."""
        from iobench.contrib.formats.lance.reader import table_of

        return table_of(file)

    def size_bound(self, schema: Schema) -> int:
        """Return logical bytes plus metadata of the pages of each column."""
        return super().size_bound(schema) + schema.logical_bytes // 20 + len(schema.fields) * (64 << 10)
