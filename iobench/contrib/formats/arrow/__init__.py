"""Format arrow: one Arrow IPC file, `data.arrow`, with a column per field, read through a memory map.

Numbers are stored as in memory, bools as bits. IPC streams, several files, and folders that Hugging Face
`datasets` saved can be read in place.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from iobench.base.errors import CorruptArtifact, expecting
from iobench.base.files import name_problem, regular
from iobench.base.options import option
from iobench.contrib.formats.shared.chunks import slabs
from iobench.contrib.formats.shared.table_format import ARROW, TableFormat
from iobench.formats import Batch, Checkable, Schema
from iobench.formats.folders import files_in

if TYPE_CHECKING:
    from iobench.contrib.formats.arrow.reader import ArrowReader
    from iobench.contrib.formats.shared.arrow_columns import Table

DATA_FILE = "data.arrow"
STATE_FILE = "state.json"  # written by `datasets.Dataset.save_to_disk`


@dataclass(frozen=True)
class Arrow(TableFormat, Checkable):
    """One Arrow IPC file with lists."""

    name: ClassVar[str] = "arrow"
    summary: ClassVar[str] = "one Arrow IPC file, one column per field, memory-mapped"
    library: ClassVar[str] = "pyarrow"
    modules: ClassVar[tuple[str, ...]] = ("pyarrow",)

    batch_bytes: int = option(4 << 20, "bytes of samples in a record batch", minimum=1)

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write `data.arrow`."""
        import pyarrow as pa

        from iobench.contrib.formats.shared.arrow_columns import arrow_schema, record_batch

        path.mkdir()
        columns = arrow_schema(schema)
        rows = schema.batch_rows(self.batch_bytes)
        with pa.OSFile(str(path / DATA_FILE), "wb") as sink, pa.ipc.new_file(sink, columns) as writer:
            for slab in slabs(batches, rows):
                writer.write_batch(record_batch(columns, slab))

    def open(self, path: Path, schema: Schema, random: bool = False) -> ArrowReader:
        """Check every record batch and return a reader over read-only maps."""
        from iobench.contrib.formats.arrow.reader import ArrowReader

        return ArrowReader(self.data_files(path), schema)

    def check(self, path: Path, schema: Schema) -> None:
        """Check the lengths of variable lists, which files of other programs may have."""
        from iobench.contrib.formats.arrow.reader import check_lists

        check_lists(self.data_files(path), schema)

    def sniff(self, path: Path) -> bool:
        """Return True for a file that ends in .arrow or .feather, or a folder that `datasets` saved."""
        if path.suffix == ".feather" and path.is_file():  # version 1 is another format
            with path.open("rb") as file:
                return file.read(len(ARROW)) == ARROW
        return (path.suffix == ".arrow" and path.is_file()) or (path / STATE_FILE).is_file()

    def files(self, path: Path) -> Sequence[Path]:
        """Return the data files that `datasets` saved in a folder, and their descriptions."""
        return [*self.data_files(path), *files_in(path, ".json")]

    def data_files(self, path: Path) -> list[Path]:
        """Return the data files of an artifact, of a single file, or of a folder that `datasets` saved."""
        if not path.is_dir():
            return [path]
        if not (path / STATE_FILE).exists():
            return [path / DATA_FILE]
        damage = (OSError, ValueError, KeyError, TypeError, RecursionError)
        with expecting(path / STATE_FILE, "the file list that datasets writes", damage):
            state = json.loads(regular(path / STATE_FILE).read_bytes())
            names = [str(entry["filename"]) for entry in state["_data_files"]]
        if not names or any("/" in name or name_problem(name) for name in names):
            raise CorruptArtifact(
                "it names files outside the folder" if names else "it names no files",
                kind="outside-folder" if names else "empty",
                path=path / STATE_FILE,
                expected="file names in the same folder",
                found=", ".join(names) or "none",
            )
        return [path / name for name in names]

    def table(self, file: Path) -> Table:
        """Map a file."""
        from iobench.contrib.formats.arrow.reader import MappedBatches

        return MappedBatches(file).table()

    def size_bound(self, schema: Schema) -> int:
        """Return logical bytes plus metadata and alignment of the columns of each record batch."""
        lists = sum(len(field.shape) + 1 for field in schema.fields)
        batches = schema.samples // schema.batch_rows(self.batch_bytes) + 1
        return super().size_bound(schema) + batches * (512 + 256 * lists)
