"""Format parquet: one file, `data.parquet`, with a column per field; each row group is decoded whole.

Files of other programs, and folders of them in the order of their names, can be read in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from iobench.base.errors import corrupt
from iobench.base.files import begins_with
from iobench.base.options import option
from iobench.contrib.formats.shared.chunks import slabs
from iobench.contrib.formats.shared.table_format import TableFormat
from iobench.formats import Batch, Schema
from iobench.formats.folders import files_in

if TYPE_CHECKING:
    from iobench.contrib.formats.parquet.reader import ParquetReader
    from iobench.contrib.formats.shared.arrow_columns import Table

DATA_FILE = "data.parquet"
SUFFIX = ".parquet"
MAGIC = b"PAR1"
BYTES = ("uint8", "int8")
WIDENED = ("uint16", "int16")  # stored in four bytes


@dataclass(frozen=True)
class Parquet(TableFormat):
    """One Parquet file; the row group is the unit of reading."""

    name: ClassVar[str] = "parquet"
    summary: ClassVar[str] = "one Parquet file, for bulk reads only: each row group is decoded whole"
    library: ClassVar[str] = "pyarrow"
    modules: ClassVar[tuple[str, ...]] = ("pyarrow",)

    row_group_bytes: int = option(8 << 20, "bytes of samples in a row group", minimum=1)
    codec: str | None = option(None, "compression of pages", choices=(None, "snappy", "zstd"))

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write `data.parquet`: plain values, but 8-bit integers by dictionary: plain ones take 4 bytes."""
        import pyarrow.parquet as pq

        from iobench.contrib.formats.shared.arrow_columns import arrow_schema, record_batch

        path.mkdir()
        columns = arrow_schema(schema)
        rows = schema.batch_rows(self.row_group_bytes)
        short = [f.name + ".list.element" * len(f.merged_shape) for f in schema.fields if f.dtype in BYTES]
        options = {"compression": self.codec or "none", "use_dictionary": short or False}
        with pq.ParquetWriter(path / DATA_FILE, columns, **options) as writer:
            for slab in slabs(batches, rows):
                writer.write_batch(record_batch(columns, slab), row_group_size=rows)

    def open(self, path: Path, schema: Schema, random: bool = False) -> ParquetReader:
        """Check columns and row groups, and return a reader."""
        from iobench.contrib.formats.parquet.reader import ParquetReader

        return ParquetReader(self.data_files(path), schema)

    def sniff(self, path: Path) -> bool:
        """Return True for a file whose name ends in .parquet, or a folder where one has Parquet's magic."""
        if path.is_dir():
            return any(begins_with(file, MAGIC) for file in files_in(path, SUFFIX))
        return path.suffix == SUFFIX and path.is_file()

    def files(self, path: Path) -> Sequence[Path]:
        """Return the Parquet files in a folder."""
        return self.data_files(path)

    def data_files(self, path: Path) -> list[Path]:
        """Return a single file, or the Parquet files of a folder in the order of their names."""
        if not path.is_dir():
            return [path]
        files = files_in(path, SUFFIX)
        if not files:
            raise corrupt(path, "Parquet files", "none")
        return files

    def table(self, file: Path) -> Table:
        """Open a file, of which columns of lists and bytes are decoded."""
        from iobench.contrib.formats.parquet.reader import table_of

        return table_of(file)

    def size_bound(self, schema: Schema) -> int:
        """Return logical bytes plus levels of the values in lists and metadata of the row groups."""
        elements = {field: schema.rows(field) * field.elements for field in schema.fields}
        values = sum(count * (len(field.shape) + 1) for field, count in elements.items())
        values += 4 * sum(count for field, count in elements.items() if field.dtype in WIDENED)
        groups = schema.samples // schema.batch_rows(self.row_group_bytes) + 1
        bound = super().size_bound(schema) + values // 2 + groups * 2048 * len(schema.fields)
        return bound + schema.logical_bytes // 50
