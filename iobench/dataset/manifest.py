"""The dataset folder: which artifacts it holds, what is in them, and how to open one.

    DATA_DIR/NAME/manifest.json              what there is; written last: what it does not list does not exist
    DATA_DIR/NAME/<variant>-<generation>/    one artifact: the files of the format, never changed once listed
        .iobench-seal.json                   which folder this is and which data are in it
    DATA_DIR/NAME/.index/                    what readers found out about artifacts (see `kept`)
    DATA_DIR/NAME/.tmp-*                     what a prepare is writing, or a killed one was
    DATA_DIR/NAME/.lock                      held by the one prepare that may write here

A generation is eight random hexadecimal digits, new for every writing, so that the files of two
writings never meet under one name: the manifest of before never describes the data of after. In
version 1 an artifact's folder is named like its variant and has no seal; it is read as it is.

Whoever has read a manifest may go on with its artifacts while prepare replaces them: they stay
whole until the new manifest is on disk. Files that are open then can be read on until they are
closed; what is opened later is a CorruptArtifact that says which file is gone.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from iobench import formats
from iobench.dataset import kept, manifest_file, seal
from iobench.dataset.kept import Kept
from iobench.dataset.manifest_file import FILE_NAME, VERSION, Artifact, Body, Checksums, FileStamp
from iobench.dataset.seal import Seal
from iobench.errors import ManifestError
from iobench.formats import Format, MissingDependency, Reader, Schema, corrupt

__all__ = [
    "FILE_NAME",
    "VERSION",
    "Artifact",
    "FileStamp",
    "Manifest",
    "Opener",
    "check_name",
    "check_readable",
    "find_dataset",
    "stamps",
    "stored_bytes",
    "unusable",
]

DATASET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=,-]*")


@dataclass(frozen=True)
class Opener:
    """What travels to a worker: picklable, and called there gives a reader."""

    format: Format
    path: Path
    schema: Schema
    random: bool = False  # rows will be asked for in random order
    index: Path | None = None  # where what readers find out is kept; see `dataset.kept`

    def __call__(self) -> Reader:
        """A new reader of the artifact."""
        reader = self.format.open(self.path, self.schema, self.random)
        reader.kept = Kept(self.path, self.index, f"{self.format.variant} {self.schema}")
        return reader


@dataclass
class Manifest:
    """A dataset: its schema, its source, its checksums and its artifacts."""

    root: Path
    schema: Schema
    source: dict[str, Any]
    content: int | None = None
    ordered: int | None = None
    created: str = ""
    artifacts: dict[str, Artifact] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The dataset's name: that of its folder."""
        return self.root.name

    def path_of(self, variant: str) -> Path:
        """The folder of a prepared variant's artifact; KeyError where it is not prepared."""
        return self.root / self.artifacts[variant].folder_name

    def files_of(self, variant: str) -> list[Path]:
        """Every data file of a prepared variant."""
        return [self.path_of(variant) / name for name in self.artifacts[variant].files]

    def checksums_of(self, variant: str) -> tuple[int, int]:
        """The content checksum of a prepared variant and that in order: the dataset's, unless it is lossy."""
        own = self.artifacts[variant].checksum
        if own is not None:
            return int(own.content, 16), int(own.ordered, 16)
        return self.content or 0, self.ordered or 0

    def opener(self, variant: str) -> Opener:
        """How to open a prepared variant.

        ManifestError where it is not prepared. CorruptArtifact where the folder's seal is not of
        this artifact, or a file is missing, linked to elsewhere or of another size than when it
        was verified.
        """
        if variant not in self.artifacts:
            prepared = ", ".join(self.artifacts) or "nothing"
            raise ManifestError(
                f"dataset {self.name}: {variant} is not prepared (there is {prepared}); "
                f"add it with 'iobench prepare --name {self.name} --format {variant}' and the same source"
            )
        self._check_inside(variant)
        for name, stamp in self.artifacts[variant].files.items():
            file = self.path_of(variant) / name
            size = file.stat().st_size if file.is_file() else None
            if size != stamp.bytes:
                found = "no such file" if size is None else f"{size} bytes"
                raise corrupt(file, f"{stamp.bytes} bytes", found)
        self._check_seal(variant)
        index = self.root / kept.FOLDER / self.artifacts[variant].folder_name
        return Opener(formats.parse(variant), self.path_of(variant), self.schema, index=index)

    def unchanged(self, variant: str) -> bool:
        """Whether a prepared variant is sealed, and each file as large and old as when it was verified."""
        try:
            self._check_seal(variant)
        except formats.CorruptArtifact:
            return False
        return self.stamps_now(variant) == self.artifacts[variant].files

    def stamps_now(self, variant: str) -> dict[str, FileStamp]:
        """Size and time of change, now, of those files of a prepared variant that are there."""
        recorded = self.artifacts[variant].files
        return {name: s for name, s in stamps(self.path_of(variant)).items() if name in recorded}

    def seal_of(self, artifact: Artifact) -> Seal:
        """The seal that belongs into the folder of an artifact of this dataset."""
        return Seal(
            iobench_seal=1,
            folder=artifact.folder_name,
            content=self.content or 0,
            ordered=self.ordered or 0,
            samples=self.schema.samples,
            fields=self.schema.fields,
            files=tuple(artifact.files),
        )

    def save(self) -> None:
        """Replace the manifest file in one step, synced to disk."""
        body = Body(
            manifest_version=VERSION,
            created=self.created,
            samples=self.schema.samples,
            fields=self.schema.fields,
            source=self.source,
            checksum=Checksums(f"{self.content or 0:016x}", f"{self.ordered or 0:016x}"),
            artifacts=self.artifacts,
            logical_bytes=self.schema.logical_bytes,
        )
        manifest_file.write(self.root, body)

    @classmethod
    def load(cls, root: Path) -> Manifest:
        """The manifest of a dataset folder.

        ManifestError where there is none, it is not JSON, of a newer version, or not in order as
        `manifest_file.read` says.
        """
        check_readable(root)
        body = manifest_file.read(root / FILE_NAME)
        return cls(
            root=root,
            schema=body.schema,
            source=body.source,
            content=int(body.checksum.content, 16),
            ordered=int(body.checksum.ordered, 16),
            created=body.created,
            artifacts=dict(body.artifacts),
        )

    def _check_inside(self, variant: str) -> None:
        """CorruptArtifact where the folder or a file of it is linked to somewhere else."""
        folder, root = self.path_of(variant), os.path.realpath(self.root)
        here = os.path.realpath(folder)
        if os.path.dirname(here) != root:
            raise corrupt(folder, "a folder in its dataset", f"that it points outside, to {here}")
        inside = here + os.sep
        parents = {(folder / name).parent for name in self.artifacts[variant].files}
        linked = [file for file in self.files_of(variant) if file.is_symlink()]
        for path in [*(parent for parent in parents if parent != folder), *linked]:
            if not os.path.realpath(path).startswith(inside):
                raise corrupt(path, f"a file in {folder.name}", "that it points outside")

    def _check_seal(self, variant: str) -> None:
        artifact, folder = self.artifacts[variant], self.path_of(variant)
        if not artifact.sealed:
            return
        expected, found = self.seal_of(artifact), seal.read(folder)
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


def unusable(manifest: Manifest) -> dict[str, MissingDependency]:
    """The prepared variants whose library is not installed, and what says how to install it."""
    found = {}
    for variant in manifest.artifacts:
        try:
            formats.parse(variant)
        except MissingDependency as error:
            found[variant] = error
    return found


def find_dataset(data_dir: Path, name: str | None = None) -> Manifest:
    """The dataset of that name, or the newest in the folder; ManifestError names the command to make one."""
    if name is not None:
        return Manifest.load(data_dir / check_name(name))
    try:
        found = [(path.stat().st_mtime_ns, path.parent) for path in data_dir.glob(f"*/{FILE_NAME}")]
    except OSError as error:
        raise ManifestError(f"{data_dir}: {error.strerror or error}; name another --data-dir") from error
    if not found:
        raise ManifestError(f"nothing is prepared in {data_dir}; run 'iobench prepare --size 1e7' first")
    return Manifest.load(max(found)[1])


def check_name(name: str) -> str:
    """The name itself, if it can be a folder inside the data folder; else ManifestError."""
    if not DATASET_NAME.fullmatch(name) or name == "results":
        raise ManifestError(
            f"dataset name {name!r} must start with a letter or digit, hold only those and . _ - = , "
            "and not be 'results'"
        )
    if len(name) > manifest_file.NAME_BYTES:
        raise ManifestError(
            f"dataset name {name[:20]}… has {len(name)} characters; "
            f"at most {manifest_file.NAME_BYTES} fit into a folder's name"
        )
    return name


def check_readable(root: Path) -> None:
    """ManifestError where the path of a dataset is no text, which the libraries of formats need."""
    try:
        str(root).encode()
    except UnicodeEncodeError:
        shown = os.fsencode(root).decode(errors="backslashreplace")
        raise ManifestError(
            f"{shown}: the name of this folder is not UTF-8, which LMDB and HDF5 cannot open; "
            "rename it, or use another --data-dir"
        ) from None


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
