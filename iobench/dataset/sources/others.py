"""Data in any format that can be read, or in a kind of file that is read apart like one, as a source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from iobench.base.errors import (
    SourceError,
)
from iobench.dataset import apart
from iobench.dataset.apart import Data
from iobench.dataset.sources._base import FileSource, Source, default_name
from iobench.dataset.tree import Tree
from iobench.formats import Batch


class OthersFile(FileSource):
    """One file, of which nothing else is needed: it is read through a descriptor, so always the same one."""

    def __init__(self, path: Path, kind: str, chosen: tuple[str, ...] = ()) -> None:
        super().__init__(path, chosen)
        self.kind = kind
        whole = f"{self.path}::{','.join(chosen)}" if chosen else self.path
        with _refusals(), self.opened() as file:
            self.schema = apart.describe(Data(Path(whole), kind, self._stamp.bytes, file.fileno())).schema

    def batches(self) -> Iterator[Batch]:
        """Slices along the leading axis."""
        with _refusals(), self.opened() as file:
            data = Data(self.path, self.kind, self._stamp.bytes, file.fileno())
            yield from apart.batches(data, self.schema)


class OthersData(Source):
    """A file or folder in a format."""

    def __init__(self, tree: Tree, kind: str) -> None:
        self.path, self._stamp, self.kind = tree.path, tree.stamp, kind
        self.name = default_name(self.path.stem)
        with _refusals():
            self.schema = apart.describe(Data(self.path, kind, self._stamp.bytes)).schema

    @property
    def description(self) -> dict[str, Any]:
        """Kind, path, and what tells that a file was added, removed or changed."""
        stamp = self._stamp
        return {
            "kind": self.kind,
            "path": str(self.path),
            "files": stamp.files,
            "bytes": stamp.bytes,
            "digest": stamp.digest,
        }

    def batches(self) -> Iterator[Batch]:
        """All samples in order."""
        with _refusals():
            self._check()
            yield from apart.batches(Data(self.path, self.kind, self._stamp.bytes), self.schema)
            self._check()

    def _check(self) -> None:
        if Tree.of(self.path).stamp != self._stamp:
            raise SourceError(f"{self.path}: it was changed while it was read; try again when nothing writes")


def regular_files(path: Path) -> Tree:
    """The file, or all files of a folder; SourceError where anything but regular files is among them."""
    with _refusals():
        return Tree.of(path.resolve())


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except SourceError as error:
        said = str(error)
        raise SourceError(said if said.startswith("--source") else f"--source {said}") from None
