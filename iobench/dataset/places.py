"""Where the files of an artifact lie, and whether they are still what was verified.

What prepare wrote lies in a folder of the dataset and is sealed; what was added lies where others put
it, and is never written to, moved or removed.
"""

from __future__ import annotations

import os
import shlex
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from iobench.base.errors import (
    REPREPARE,
    CorruptArtifact,
    IobenchError,
    SourceError,
    corrupt,
)
from iobench.dataset import seal
from iobench.dataset.manifest_body import Added, Artifact, FileStamp
from iobench.dataset.seal import Seal
from iobench.dataset.tree import Tree, differences
from iobench.formats import Schema


class Place(ABC):
    """Where an artifact's files lie."""

    path: Path  # what its format opens
    repair: str  # what to do where they hold something else than when they were verified

    def with_hint(self, error: IobenchError) -> IobenchError:
        """Put this location's remedy in the place of that for artifacts that prepare wrote."""
        if error.hint == REPREPARE:
            error.hint = self.repair
        return error

    @contextmanager
    def advising(self) -> Iterator[None]:
        """Have errors that leave it say this place's remedy."""
        try:
            yield
        except IobenchError as error:
            self.with_hint(error)
            raise

    @property
    @abstractmethod
    def files(self) -> list[Path]:
        """Every data file; CorruptArtifact where that cannot be told."""

    @abstractmethod
    def check(self) -> None:
        """CorruptArtifact where it can be seen, without reading them, that they are not what was verified."""

    @abstractmethod
    def unchanged(self) -> bool:
        """Whether no file was touched since they were verified."""

    @abstractmethod
    def restamped(self) -> Artifact:
        """The artifact with the stamps of its files as they are now."""


class PreparedFolder(Place):
    """A folder of the dataset that holds what prepare wrote, sealed since version 2 of the manifest."""

    repair = REPREPARE

    def __init__(self, root: Path, artifact: Artifact, expected: Seal) -> None:
        self.path = root / artifact.folder_name
        self._root, self._artifact, self._expected = root, artifact, expected

    @property
    def files(self) -> list[Path]:
        """Every file that is listed, whether it is there or not."""
        return [self.path / name for name in self._artifact.files]

    def check(self) -> None:
        """CorruptArtifact where a file is missing, linked to elsewhere or of another size, or the seal is.

        None of the files is opened but the seal.
        """
        self._check_inside()
        for name, stamp in self._artifact.files.items():
            size = _size(os.path.join(self.path, name))  # of pathlib's ways each costs more than the look
            if size != stamp.bytes:
                found = "no such file" if size is None else f"{size} bytes"
                raise corrupt(self.path / name, f"{stamp.bytes} bytes", found)
        self._check_seal()

    def unchanged(self) -> bool:
        """Whether it is sealed, and each file as large and old as when it was verified."""
        try:
            self._check_seal()
        except CorruptArtifact:
            return False
        return self._stamps() == self._artifact.files

    def restamped(self) -> Artifact:
        """The artifact with size and time of change of those files that are there."""
        return msgspec.structs.replace(self._artifact, files=self._stamps())

    def _stamps(self) -> dict[str, FileStamp]:
        recorded = self._artifact.files
        return {name: stamp for name, stamp in stamps(self.path).items() if name in recorded}

    def _check_inside(self) -> None:
        """CorruptArtifact where the folder or a file of it is linked to somewhere else."""
        folder, root = self.path, os.path.realpath(self._root)
        here = os.path.realpath(folder)
        if os.path.dirname(here) != root:
            raise corrupt(folder, "a folder in its dataset", f"that it points outside, to {here}")
        inside = here + os.sep
        names = set(self._artifact.files)
        while names:  # files, then their folders, then the folders of these
            for name in sorted(names):
                path = os.path.join(self.path, name)
                if os.path.islink(path) and not os.path.realpath(path).startswith(inside):
                    raise corrupt(Path(path), f"a file in {folder.name}", "that it points outside")
            names = {os.path.dirname(name) for name in names} - {""}

    def _check_seal(self) -> None:
        if not self._artifact.sealed:
            return
        expected, found, folder = self._expected, seal.read(self.path), self.path
        if found is None:
            raise corrupt(folder / seal.FILE_NAME, "the seal of the artifact", "none")
        if not found.same_data(expected):
            raise corrupt(
                folder,
                f"checksum {expected.content:016x} of {expected.samples} samples",
                f"other content, checksum {found.content:016x} of {found.samples} samples",
            )
        if found.folder != expected.folder:
            raise corrupt(folder, f"the seal of {expected.folder}", f"that of {found.folder}")


class AddedData(Place):
    """Data that others wrote, where they lie."""

    def __init__(self, root: Path, schema: Schema, artifact: Artifact, added: Added) -> None:
        self.path, self._dataset = Path(added.path), root.name
        self._artifact, self._added = artifact, added
        again = _command(root, schema, artifact.variant, added)
        self.repair = f"restore the files from where they came, or hash them again: {again}"

    @property
    def files(self) -> list[Path]:
        """Every file that is there now."""
        return self._now().files

    def check(self) -> None:
        """CorruptArtifact where a file was written to, replaced, added or removed since they were hashed."""
        now = self._now().stamp
        if now != self._added.stamp:
            raise CorruptArtifact(
                f"{self.path}: it changed since it was added to dataset {self._dataset} "
                f"({differences(self._added.stamp, now)}); {self.repair}"
            )

    def unchanged(self) -> bool:
        """Whether every file has the name, size, time of change and inode that it had when it was hashed."""
        return self._now().stamp == self._added.stamp

    def restamped(self) -> Artifact:
        """The artifact with the stamp of the files as they are now."""
        added = msgspec.structs.replace(self._added, stamp=self._now().stamp)
        return msgspec.structs.replace(self._artifact, added=added)

    def _now(self) -> Tree:
        try:
            return Tree.of(self.path)
        except SourceError as error:
            raise CorruptArtifact(
                f"{error}; it was added to dataset {self._dataset}: {self.repair}"
            ) from None


def _size(file: str) -> int | None:
    """The bytes of a regular file; None where there is none."""
    try:
        found = os.stat(file)
    except (OSError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _command(root: Path, schema: Schema, variant: str, added: Added) -> str:
    """What to type to have the same data hashed again."""
    chosen = f"::{','.join(added.names)}" if added.names else ""
    words = ["iobench", "add", added.path + chosen, "--name", root.name, "--format", variant]
    words += [f"--field={field.typed}" for field in schema.fields if added.told]
    return shlex.join(words if root.parent == Path("data") else [*words, "--data-dir", str(root.parent)])


def stamps(folder: Path) -> dict[str, FileStamp]:
    """Every data file below a folder with its size and time of change."""
    return {
        str(path.relative_to(folder)): FileStamp(path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != seal.FILE_NAME
    }


def stored_bytes(folder: Path) -> int:
    """Bytes allocated on disk for all data files below a folder."""
    return sum((folder / name).stat().st_blocks * 512 for name in stamps(folder))
