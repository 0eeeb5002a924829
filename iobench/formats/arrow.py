"""Arrow's IPC file: `data.arrow`, a column per field, in record batches that are mapped.

Numbers lie as in memory, bools as bits. Streams, several files, and what Hugging Face `datasets`
saves, are read as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from iobench.base.errors import (
    corrupt,
)
from iobench.formats._file_kind import regular
from iobench.formats._format import Format
from iobench.formats._options import option
from iobench.formats._rebatch import slabs
from iobench.formats._schema import COMPLEX, NUMPY_DTYPES, Batch, Field, Schema

if TYPE_CHECKING:
    from iobench.formats._arrow_reader import ArrowReader

DATA_FILE = "data.arrow"
STATE_FILE = "state.json"  # of a folder that `datasets.Dataset.save_to_disk` made


@dataclass(frozen=True)
class Arrow(Format):
    """One IPC file, `data.arrow`, with fixed-size lists."""

    name: ClassVar[str] = "arrow"
    summary: ClassVar[str] = "one Arrow IPC file, one column per field, memory-mapped"
    library: ClassVar[str] = "pyarrow"
    modules: ClassVar[tuple[str, ...]] = ("pyarrow",)
    extra: ClassVar[str] = "arrow"
    dtypes: ClassVar[frozenset[str]] = frozenset(NUMPY_DTYPES).difference(COMPLEX)

    batch_bytes: int = option(4 << 20, "bytes of samples in a record batch", minimum=1)

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write `data.arrow`."""
        import pyarrow as pa

        from iobench.formats._arrow_columns import arrow_schema, record_batch

        path.mkdir()
        columns = arrow_schema(schema)
        rows = schema.batch_rows(self.batch_bytes)
        with pa.OSFile(str(path / DATA_FILE), "wb") as sink, pa.ipc.new_file(sink, columns) as writer:
            for slab in slabs(schema, batches, rows):
                writer.write_batch(record_batch(columns, slab))

    def open(self, path: Path, schema: Schema, random: bool = False) -> ArrowReader:
        """A reader over read-only maps, after every record batch was checked."""
        from iobench.formats._arrow_reader import ArrowReader

        return ArrowReader(files_of(path), schema)

    def check(self, path: Path, schema: Schema) -> None:
        """Read the lengths of variable lists, where other people's data have some."""
        from iobench.formats._arrow_reader import check_lists

        check_lists(files_of(path), schema)

    def sniff(self, path: Path) -> bool:
        """A file whose name ends in .arrow, or a folder that `datasets` saved."""
        return (path.suffix == ".arrow" and path.is_file()) or (path / STATE_FILE).is_file()

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """What the columns hold; every list must be of one length."""
        from iobench.formats._arrow_reader import infer_schema_of

        return infer_schema_of(files_of(path), fields)

    def size_bound(self, schema: Schema) -> int:
        """Logical bytes, and for each record batch what describes and aligns its columns."""
        lists = sum(len(field.shape) + 1 for field in schema.fields)
        batches = schema.samples // schema.batch_rows(self.batch_bytes) + 1
        return super().size_bound(schema) + batches * (512 + 256 * lists)


def files_of(path: Path) -> list[Path]:
    """The files of an artifact of ours, of one file, or of a folder that `datasets` saved, in their order."""
    if not path.is_dir():
        return [path]
    if not (path / STATE_FILE).exists():
        return [path / DATA_FILE]
    try:
        state = json.loads(regular(path / STATE_FILE).read_bytes())
        names = [str(entry["filename"]) for entry in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise corrupt(path / STATE_FILE, "a list of its files, as datasets writes it", str(error)) from error
    if not names or any(Path(name).name != name for name in names):
        raise corrupt(path / STATE_FILE, "names of files beside it", ", ".join(names) or "none")
    return [path / name for name in names]
