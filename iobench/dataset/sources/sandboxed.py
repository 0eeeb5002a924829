"""Sources that the sandbox reads: data in any format, and .h5, .pt and .csv files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from iobench import formats
from iobench.base.errors import SourceError
from iobench.dataset import sandbox
from iobench.dataset.file_tree import FileTree
from iobench.dataset.sources._regular_files import CLOSE_WRITERS
from iobench.dataset.sources._source import FileSource, Source, default_name, selected_alone
from iobench.dataset.untrusted_data import UntrustedData
from iobench.formats import Batch

JPEG_FIELDS = ("jpg", "jpeg")
SCALED = "--sample-shape 3x224x224 scales and crops them; 'iobench add' also reads the bytes of the files"


class SandboxedFile(FileSource):
    """A single file. It is read through one descriptor, so always the same file."""

    def __init__(self, path: Path, kind: str, chosen: tuple[str, ...]) -> None:
        super().__init__(path, chosen)
        self.kind = kind
        self._selected = formats.with_selection(self.path, chosen)
        with self.opened() as file:
            data = UntrustedData(self._selected, kind, self._state.bytes, file.fileno())
            described = sandbox.describe(data)
        self.schema, self.notes = described.schema, described.notes

    def in_place(self) -> tuple[Path, str] | None:
        """Return the file, if a format reads it."""
        return (self._selected, self.kind) if self.kind in formats.names() else None

    def batches(self) -> Iterator[Batch]:
        """Yield slices along the first axis."""
        with self.opened() as file:
            data = UntrustedData(self.path, self.kind, self._state.bytes, file.fileno())
            yield from sandbox.batches(data, self.schema)


class FormatSource(Source):
    """A file or folder in a format, or the columns `chosen` out of it."""

    def __init__(self, tree: FileTree, kind: str, chosen: tuple[str, ...] = ()) -> None:
        self.path, self._stamp, self.kind, self._chosen = tree.path, tree.stamp, kind, chosen
        self.name, self._format = default_name("-".join((self.path.stem, *chosen))), formats.parse(kind)
        self._data = UntrustedData(formats.with_selection(self.path, chosen), kind, self._stamp.bytes)
        try:
            described = sandbox.describe(self._data)
        except SourceError as error:
            if error.kind == "unequal-shapes" and "shape" in self._format.options:
                raise error.changed(hint=SCALED) from error
            raise
        self.schema, self.notes = described.schema, described.notes
        self.decodes = self._format.parallel
        shape = self._format.options.get("shape")
        if shape and not self.schema.extents:
            self.losses = (
                f"samples are {str(shape).replace('x', ' × ')}: random crops of the originals are gone",
            )
        if chosen:
            self.losses = selected_alone(self.path, chosen)
        if [field.name for field in self.schema.fields] == ["tokens"]:
            length = self.schema.fields[0].elements
            self.losses = (f"windows of {length} tokens are written: another length means writing again",)

    @property
    def description(self) -> dict[str, Any]:
        """Kind, path, and the stamp that changes if a file is added, removed or changed."""
        stamp = self._stamp
        return {
            "kind": self.kind,
            "path": str(self.path),
            "files": stamp.files,
            "bytes": stamp.bytes,
            "digest": stamp.digest,
            **({"arrays": list(self._chosen)} if self._chosen else {}),
            **({"renamed": self.schema.renamed} if self.schema.renamed else {}),
        }

    def in_place(self) -> tuple[Path, str] | None:
        """Return the data."""
        return self._data.path, self.kind

    def other_decoders(self) -> tuple[str, ...]:
        """Return the other decoders of scaled JPEG files; webdataset names fields after the files."""
        jpeg = any(field.name in JPEG_FIELDS for field in self.schema.fields)
        return self._format.other_decoders() if jpeg else ()

    def batches(self) -> Iterator[Batch]:
        """Yield all samples in order."""
        self._check()
        yield from sandbox.batches(UntrustedData(self.path, self.kind, self._stamp.bytes), self.schema)
        self._check()

    def _check(self) -> None:
        if FileTree.of(self.path).stamp != self._stamp:
            raise SourceError("changed while it was read", kind="changed", path=self.path, hint=CLOSE_WRITERS)
