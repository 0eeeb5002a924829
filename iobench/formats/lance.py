"""Lance: a dataset folder with a column per field, rows taken by number.

A process that has used its library must not be forked: worker processes are spawned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from iobench.formats._format import Format
from iobench.formats._schema import COMPLEX, NUMPY_DTYPES, Batch, Field, Schema

if TYPE_CHECKING:
    from iobench.formats._lance_reader import LanceReader

VERSIONS, TRANSACTIONS = "_versions", "_transactions"


@dataclass(frozen=True)
class Lance(Format):
    """A Lance dataset of one version, with fixed-size lists."""

    name: ClassVar[str] = "lance"
    summary: ClassVar[str] = "a Lance dataset, one column per field, rows taken by number"
    library: ClassVar[str] = "pylance"
    modules: ClassVar[tuple[str, ...]] = ("lance",)
    extra: ClassVar[str] = "lance"
    dtypes: ClassVar[frozenset[str]] = frozenset(NUMPY_DTYPES).difference(COMPLEX)
    forkable: ClassVar[bool] = False
    survives_unlink: ClassVar[bool] = False

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write the dataset, and drop what only later writers need: the transaction, and a hint."""
        import pyarrow as pa

        from iobench.formats._arrow_columns import arrow_schema, record_batch
        from iobench.formats._lance_library import lance

        columns = arrow_schema(schema)

        def made() -> Iterator[Any]:
            for batch in batches:
                yield record_batch(columns, batch)

        reader = pa.RecordBatchReader.from_batches(columns, made())
        lance.write_dataset(reader, str(path), mode="create", max_rows_per_file=schema.samples)
        for file in (*(path / TRANSACTIONS).glob("*.txn"), *(path / VERSIONS).glob("*.json")):
            file.unlink()

    def open(self, path: Path, schema: Schema, random: bool = False) -> LanceReader:
        """A reader, after the columns' types, the number of rows and the files were checked."""
        from iobench.formats._lance_reader import LanceReader

        return LanceReader(path, schema)

    def sniff(self, path: Path) -> bool:
        """A folder with Lance's versions."""
        return (path / VERSIONS).is_dir()

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """What the columns hold; every list must be of one length."""
        from iobench.formats._lance_reader import infer_schema_of

        return infer_schema_of(path, fields)

    def size_bound(self, schema: Schema) -> int:
        """Logical bytes, and what describes the pages of each column."""
        return super().size_bound(schema) + schema.logical_bytes // 20 + len(schema.fields) * (64 << 10)
