"""The seam between storage and measurement: what turns batches into files and opens them again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from iobench.formats._options import Options
from iobench.formats._reader import Reader
from iobench.formats._schema import Batch, Schema


@dataclass(frozen=True)
class Format(Options, ABC):
    """Turns batches into files and opens them again. The dataclass fields are the options."""

    kind: ClassVar[str] = "format"
    library: ClassVar[str]  # the installed package that does the work, by its name on PyPI

    def size_bound(self, schema: Schema) -> int:
        """The most bytes that `write` puts on disk; prepare asks for this much free space."""
        return schema.logical_bytes + (1 << 20)

    def check(self, path: Path, schema: Schema) -> None:
        """Raise CorruptArtifact where `path` is damaged such that reading could end the process.

        For formats whose library does not survive all damage. Called once before an artifact is read
        in this process or its workers, and not by `open`, because it may read much of the files and so
        bring them into the page cache. Nothing by default.
        """
        return

    @abstractmethod
    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write all batches, in order, into the new directory `path`.

        Their arrays are C-contiguous and as the schema says; bools are the bytes 0 and 1 (`plain_bools`).
        """

    @abstractmethod
    def open(self, path: Path, schema: Schema, random: bool = False) -> Reader:
        """A reader of what `write` left in `path`; CorruptArtifact where it is not `schema`.

        `random` announces that rows will be asked for in random order; any order can be read.
        """
