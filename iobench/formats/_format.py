"""The seam between storage and measurement: what turns batches into files and opens them again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from iobench.base.errors import (
    CorruptArtifact,
    UnsupportedSchema,
)
from iobench.formats._options import Options
from iobench.formats._reader import Reader
from iobench.formats._schema import DTYPES, NUMPY_DTYPES, Batch, Field, Schema


@dataclass(frozen=True)
class Format(Options, ABC):
    """Turns batches into files and opens them again. The dataclass fields are the options."""

    kind: ClassVar[str] = "format"
    library: ClassVar[str]  # the installed package that does the work, by its name on PyPI
    dtypes: ClassVar[frozenset[str]] = frozenset(NUMPY_DTYPES)  # those of DTYPES that it holds
    forkable: ClassVar[bool] = True  # whether a process that used its library may be forked and go on
    survives_unlink: ClassVar[bool] = True  # whether an open reader reads on when its files are removed
    selectable: ClassVar[bool] = (
        False  # whether `infer_schema` takes `PATH::NAME,NAME`, some of the arrays there
    )

    def size_bound(self, schema: Schema) -> int:
        """The most bytes that `write` puts on disk; prepare asks for this much free space."""
        return schema.logical_bytes + (1 << 20)

    def check_schema(self, schema: Schema) -> None:
        """UnsupportedSchema, naming the field, where it cannot hold such samples; asked before writing."""
        for field in schema.fields:
            if field.dtype not in self.dtypes:
                held = ", ".join(dtype for dtype in DTYPES if dtype in self.dtypes)
                raise UnsupportedSchema(
                    f"format {self.name} cannot hold field {field.name}, which is {field.dtype}; "
                    f"it holds {held}"
                )

    def _refuse_large(self, schema: Schema, sample_bytes: int, most: int, because: str) -> None:
        """UnsupportedSchema, naming the largest field, where a sample takes more than `most` bytes there."""
        if sample_bytes > most:
            largest = max(schema.fields, key=lambda field: field.sample_bytes)
            raise UnsupportedSchema(
                f"format {self.name} cannot hold samples of {sample_bytes} bytes (field {largest.name} has "
                f"{largest.sample_bytes} of them): {because} at most {most}"
            )

    @property
    def libraries(self) -> tuple[str, ...]:
        """The installed packages whose versions decide its figures, by their names on PyPI."""
        return (self.library,)

    @property
    def lossless(self) -> bool:
        """Whether what is read is what was written, byte by byte; a lossy format has an option `lossy`."""
        return True

    def roundtrip(self, batch: Batch) -> Batch:
        """The batch as reading gives it back: itself, unless the format is lossy."""
        return batch

    def check(self, path: Path, schema: Schema) -> None:
        """Raise CorruptArtifact where `path` is damaged such that reading could end the process.

        For formats whose library does not survive all damage. Called once before an artifact is read
        in this process or its workers, and not by `open`, because it may read much of the files and so
        bring them into the page cache. Nothing by default.
        """
        return

    def sniff(self, path: Path) -> bool:
        """Whether data that others wrote at `path`, a file or a folder, look like this format's.

        A cheap look at names and first bytes. False for formats that cannot be added where they lie.
        """
        return False

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """The samples and fields of data that others wrote at `path`, which `open` then reads as well.

        `told`: the fields, where the data do not say themselves what they hold. CorruptArtifact where
        they are not this format's, samples are not all of one shape, or fields are needed and not told.
        """
        raise CorruptArtifact(f"{path}: data in {self.name} cannot be added where they lie")

    def notes(self, path: Path, schema: Schema) -> list[str]:
        """What should be known of data that others wrote at `path` and that can be read; a sentence each."""
        return []

    @abstractmethod
    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write all batches, in order, into the new directory `path`.

        Their arrays are C-contiguous and as the schema says; bools are the bytes 0 and 1 (`plain_bools`).
        """

    @abstractmethod
    def open(self, path: Path, schema: Schema, random: bool = False) -> Reader:
        """A reader of what `write` left in `path`, or of what `infer_schema` described there.

        CorruptArtifact where it is not `schema`.
        `random` announces that rows will be asked for in random order; any order can be read.
        """
