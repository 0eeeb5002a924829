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
An artifact that was added lies somewhere else, and nothing here ever writes there: see `places`.

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
from iobench.base.errors import (
    InvalidSettings,
    ManifestError,
    MissingDependency,
)
from iobench.dataset import kept, manifest_file
from iobench.dataset.kept import Kept
from iobench.dataset.manifest_body import NAME_BYTES, Added, Artifact, Body, Checksums, FileStamp
from iobench.dataset.manifest_file import FILE_NAME, VERSION
from iobench.dataset.places import AddedData, Place, PreparedFolder
from iobench.dataset.seal import Seal
from iobench.formats import Format, Reader, Schema
from iobench.host.bus_errors import guarded

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

    def check(self) -> None:
        """CorruptArtifact where reading would end the process; OSError where the disk fails."""
        with guarded(self.path) as check:
            self.format.check(self.path, self.schema)
            check()


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

    def place_of(self, variant: str) -> Place:
        """Where the files of a variant's artifact lie; KeyError where there is none."""
        artifact = self.artifacts[variant]
        if artifact.added is not None:
            return AddedData(self.root, self.schema, artifact, artifact.added)
        return PreparedFolder(self.root, artifact, self.seal_of(artifact))

    def path_of(self, variant: str) -> Path:
        """The file or folder of a variant's artifact; KeyError where there is none."""
        return self.place_of(variant).path

    def files_of(self, variant: str) -> list[Path]:
        """Every data file of a variant; CorruptArtifact where what was added cannot be listed."""
        return self.place_of(variant).files

    @property
    def added(self) -> dict[str, Added]:
        """What was added where it lies, by its variant."""
        return {variant: a.added for variant, a in self.artifacts.items() if a.added is not None}

    @property
    def folders(self) -> set[str]:
        """The names of the folders in the dataset that hold what prepare wrote."""
        return {artifact.folder_name for artifact in self.artifacts.values() if artifact.added is None}

    def checksums_of(self, variant: str) -> tuple[int, int]:
        """The content checksum of a prepared variant and that in order: the dataset's, unless it is lossy."""
        own = self.artifacts[variant].checksum
        if own is not None:
            return int(own.content, 16), int(own.ordered, 16)
        return self.content or 0, self.ordered or 0

    def opener(self, variant: str) -> Opener:
        """How to open a variant that is there.

        ManifestError where it is not. CorruptArtifact where its files are missing, linked to elsewhere or
        of another size than when they were verified, or belong to another artifact, or, where they
        were added, were touched in any way since.
        """
        if variant not in self.artifacts:
            prepared = ", ".join(self.artifacts) or "nothing"
            raise ManifestError(
                f"dataset {self.name}: {variant} is not prepared (there is {prepared}); add it with "
                f"'iobench prepare --name {self.name} --format {variant}'"
                + ("" if self.added else " and the same source")
            )
        place = self.place_of(variant)
        place.check()
        index = self.root / kept.FOLDER / self.artifacts[variant].folder_name
        return Opener(formats.parse(variant), place.path, self.schema, index=index)

    def unchanged(self, variant: str) -> bool:
        """Whether no file of a variant was touched since it was verified."""
        return self.place_of(variant).unchanged()

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
    """The name itself, if it can be a folder inside the data folder; else InvalidSettings."""
    if not DATASET_NAME.fullmatch(name) or name == "results":
        raise InvalidSettings(
            f"dataset name {name!r} must start with a letter or digit, hold only those and . _ - = , "
            "and not be 'results'"
        )
    if len(name) > NAME_BYTES:
        raise InvalidSettings(
            f"dataset name {name[:20]}… has {len(name)} characters; "
            f"at most {NAME_BYTES} fit into a folder's name"
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
