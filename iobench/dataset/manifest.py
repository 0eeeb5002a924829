"""Dataset folders: their names, the artifacts in them, their content, and how to open them.

    DATA_DIR/NAME/manifest.json              all artifacts; written last: what it does not list is not there
    DATA_DIR/NAME/<variant>-<generation>/    one artifact: files of the format, never changed once listed
        .iobench-seal.json                   identity of the folder and of the data in it
    DATA_DIR/NAME/.index/                    indexes that readers built (see `index_cache`)
    DATA_DIR/NAME/.object-cache/<variant>/   pieces of objects in a store that StreamLoader keeps, if asked to
    DATA_DIR/NAME/.tmp-*                     files of a running prepare, or of one that was killed
    DATA_DIR/NAME/.lock                      held by the only prepare that may write here

A generation is eight random hexadecimal digits, new for every writing, so that the files of two writings
never share a name: an old manifest never describes new data. Added data lie elsewhere and are never written
to (see `artifact_location`).

A process that has read a manifest may continue with its artifacts while prepare replaces them: they stay
complete until the new manifest is on disk. Files that are open then can be read until they are closed. An
artifact opened later raises CorruptArtifact with the path of the missing file.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from iobench import formats
from iobench.base.credentials import shown_address
from iobench.base.errors import InvalidSettings, ManifestError, MissingDependency, no_permission
from iobench.base.files import system_errors_as
from iobench.dataset import index_cache, manifest_file
from iobench.dataset.artifact_location import (
    ArtifactLocation,
    ExternalArtifact,
    ManagedArtifact,
    RemoteArtifact,
)
from iobench.dataset.checksum import HashedRows
from iobench.dataset.manifest_file import FILE_NAME, Artifact, Checksums, ExternalData, ManifestBody
from iobench.dataset.opener import Opener, RemoteOpener
from iobench.dataset.staging import Seal, sweep
from iobench.formats import Schema
from iobench.objects.cache import FOLDER as OBJECT_CACHES
from iobench.objects.cache import ObjectCache
from iobench.objects.url import upload_command

READ_BYTES_PER_S = 200 << 20  # assumed of reading and hashing, where that decides what is read


@dataclass
class Manifest:
    """A dataset: its schema, source, content checksums and artifacts.

    Attributes
    ----------
    root : Path
        The dataset's folder.
    source : dict
        Description of the source; equal descriptions promise equal data.
    content, ordered : int or None
        Checksum of the hashed samples, and the one that depends on their order; see `checksum`.
    part : HashedPart or None
        The part of the samples that was hashed; None for all.
    url : str
        Address in an object store; empty for a dataset on a disk. `root` then holds manifest and indexes.
    index_end : float
        Moment of `time.monotonic` at which its openers end building an index, and their readers of an object
        store no longer send requests again; not stored.
    artifacts : dict of str to Artifact
        Artifacts by variant, such as ``hdf5:compression=gzip``.
    """

    root: Path
    schema: Schema
    source: dict[str, Any]
    content: int | None = None
    ordered: int | None = None
    created: str = ""
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    part: manifest_file.HashedPart | None = None
    url: str = ""
    index_end: float = math.inf

    @property
    def name(self) -> str:
        """Name of the dataset, which is that of its folder, or its address where prepare has uploaded it."""
        return self.url if self.uploaded else self.root.name

    @property
    def data_dir(self) -> Path:
        """Folder of all datasets."""
        return self.root.parent.parent if self.uploaded else self.root.parent

    @property
    def uploaded(self) -> bool:
        """True if prepare wrote it to an object store; False also for objects that were added."""
        return bool(self.url) and not any(artifact.external for artifact in self.artifacts.values())

    def location_of(self, variant: str) -> ArtifactLocation:
        """Return the location of a variant's artifact; raises KeyError if there is none."""
        artifact = self.artifacts[variant]
        if self.url:
            return RemoteArtifact(self.root, self.schema, artifact, self.url)
        if artifact.added is not None:
            return ExternalArtifact(self.root, self.schema, artifact, artifact.added)
        return ManagedArtifact(self.root, artifact, self.seal_of(artifact))

    def path_of(self, variant: str) -> Path:
        """Return the file or folder of a variant's artifact; raises KeyError if there is none."""
        return self.location_of(variant).path

    def files_of(self, variant: str) -> list[Path]:
        """Return all data files of a variant; raises CorruptArtifact if added data cannot be listed."""
        return self.location_of(variant).files

    @property
    def added(self) -> dict[str, ExternalData]:
        """Added data by variant."""
        return {variant: a.added for variant, a in self.artifacts.items() if a.added is not None}

    @property
    def folders(self) -> set[str]:
        """Names of the folders that prepare wrote."""
        return {artifact.folder for artifact in self.artifacts.values() if artifact.added is None}

    @property
    def hashed(self) -> HashedRows:
        """Rows whose hashes make the checksums."""
        if self.part is None:
            return HashedRows.all_of(self.schema.samples)
        return HashedRows(self.schema.samples, self.part.piece_rows, self.part.pieces)

    def fits(self, seconds: float) -> bool:
        """Return whether the hashed rows can be read in this time at READ_BYTES_PER_S."""
        return self.hashed.count * self.schema.sample_bytes <= seconds * READ_BYTES_PER_S

    def checksums_of(self, variant: str) -> tuple[int, int]:
        """Return content and ordered checksum of a variant: the dataset's own unless the variant is lossy."""
        own = self.artifacts[variant].checksum
        return own.numbers if own is not None else (self.content or 0, self.ordered or 0)

    def opener(self, variant: str) -> Opener:
        """Return the opener of a variant after checking its files.

        ManifestError if the dataset does not have the variant (`not-prepared`). CorruptArtifact if a file is
        missing, a link out of the dataset, of another size than when it was verified or of another artifact,
        or, for added data, was touched in any way.
        """
        if variant not in self.artifacts:
            prepared = ", ".join(self.artifacts) or "nothing"
            problem, hint = f"dataset {self.name} does not have the format", self._how_to_get(variant)
            raise ManifestError(problem, "not-prepared", expected=variant, found=prepared, hint=hint)
        location = self.location_of(variant)
        location.check()
        added = self.artifacts[variant].added
        return Opener(
            formats.parse(variant),
            location.path,
            self.schema,
            index=self.index_path(variant),
            stored=added.schema(self.schema) if added else None,
            remote=RemoteOpener.of(
                self.artifacts[variant], self.url, self.index_path(variant), self.index_end
            ),
            index_end=self.index_end,
        )

    def _how_to_get(self, variant: str) -> str:
        """Return what to do about a variant that the dataset does not have."""
        if self.url and not self.uploaded:
            return f"download a copy and run 'iobench prepare --source COPY --format {variant}'"
        if self.url:
            return f"run {upload_command(self.url, f' --overwrite --format {variant}')}, with the same source"
        again = "" if self.added else " with the same source"
        return f"run 'iobench prepare --name {self.name} --format {variant}'{again}"

    def index_path(self, variant: str) -> Path:
        """Return the path of a variant's indexes without their names."""
        return self.root / index_cache.FOLDER / (self.artifacts[variant].folder or variant)

    def object_cache(self, variant: str, limit_bytes: int) -> ObjectCache:
        """Return the cache of a variant's objects for all processes that read it."""
        return ObjectCache(self.root / OBJECT_CACHES / variant, limit_bytes)

    @property
    def case_caches(self) -> Path:
        """Folder of the caches of objects that each case of a run has for itself."""
        return self.root / OBJECT_CACHES / ".cases"

    def unchanged(self, variant: str) -> bool:
        """Return whether no file of a variant was touched since it was verified."""
        return self.location_of(variant).unchanged()

    def seal_of(self, artifact: Artifact) -> Seal:
        """Return the seal that belongs into the folder of an artifact."""
        return Seal(
            iobench_seal=1,
            folder=artifact.folder,
            content=self.content or 0,
            ordered=self.ordered or 0,
            samples=self.schema.samples,
            fields=self.schema.fields,
            files=tuple(artifact.files),
        )

    def save(self) -> None:
        """Replace the manifest file atomically and sync it to disk."""
        manifest_file.write(self.root, self.body())

    def sweep(self) -> None:
        """Remove sealed folders and indexes that are not of its artifacts."""
        sweep(self.root, self.folders)
        index_cache.sweep(self.root, {*self.folders, *self.added})

    def body(self) -> ManifestBody:
        """Return the content of the manifest file."""
        return ManifestBody(
            manifest_version=manifest_file.VERSION,
            created=self.created,
            samples=self.schema.samples,
            fields=self.schema.fields,
            source=self.source,
            checksum=Checksums.of(self.content, self.ordered),
            artifacts=self.artifacts,
            logical_bytes=self.schema.logical_bytes,
            hashed=self.part,
            url=self.url,
            totals=self.schema.totals,
        )

    @classmethod
    def load(cls, root: str | Path) -> Manifest:
        """Load the manifest of a dataset folder; raises ManifestError as `manifest_file.read` does."""
        root = Path(root)
        manifest_file.check_readable(root)
        body = manifest_file.read(root / FILE_NAME)
        content, ordered = body.checksum.numbers
        return cls(
            root=root,
            schema=body.schema,
            source=body.source,
            content=content,
            ordered=ordered,
            created=body.created,
            artifacts=dict(body.artifacts),
            part=body.hashed,
            url=body.url,
        )


def missing_libraries(manifest: Manifest) -> dict[str, MissingDependency]:
    """Return the variants whose library is not installed, with the error that names the pip command."""
    missing = {}
    for variant in manifest.artifacts:
        try:
            formats.parse(variant)
        except MissingDependency as error:
            missing[variant] = error
    return missing


MAX_NAME = 200  # bytes; files of results add a time and an ending to it, and a file name has at most 255
DATASET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=,-]*")


def find_dataset(data_dir: str | Path, name: str | None = None) -> Manifest:
    """Load a dataset by name, or the newest in a folder; raises ManifestError if there is none.

    The newest is not a sample that recommend wrote, nor what a killed prepare left, unless all are.
    """
    data_dir = Path(data_dir)
    if name is not None:
        return Manifest.load(data_dir / check_name(name))
    with system_errors_as(ManifestError, "cannot be listed", data_dir, hint="use another --data-dir"):
        newest_first = _newest_first(data_dir)
        finished = (root for root in newest_first if not any(root.glob(".tmp-*")))
    if not newest_first:
        problem = "no dataset is prepared"
        raise ManifestError(problem, "no-dataset", data_dir, hint="run 'iobench prepare --size 1e7' first")
    datasets = (Manifest.load(root) for root in finished)
    chosen = next((one for one in datasets if "first" not in one.source), None)
    return chosen or Manifest.load(newest_first[0])


def _newest_first(data_dir: Path) -> list[Path]:
    """Return the datasets in a folder; ManifestError where the user may read none of them."""
    times, denied = [], None
    for root in data_dir.glob("*"):
        try:
            times.append(((root / FILE_NAME).stat().st_mtime_ns, root))
        except PermissionError:
            denied = no_permission(ManifestError, root)
        except OSError:  # no manifest is in it
            continue
    if denied and not times:
        raise denied
    return [root for _, root in sorted(times, reverse=True)]


def check_name(name: str) -> str:
    """Return the name if it can be a dataset's folder; otherwise raises InvalidSettings."""
    if "://" in name:
        problem, expected = f"dataset {shown_address(name)}", "a dataset on a disk"
        hint = "prepare --to writes to one; run, recommend, verify, limits and resume-check read from one"
        raise InvalidSettings(problem, "remote-dataset", expected=expected, found="an address", hint=hint)
    if not DATASET_NAME.fullmatch(name) or name == "results":
        hint = "start it with a letter or digit, use only those and . _ - = , and not the name 'results'"
        raise InvalidSettings(f"dataset name {name!r}", "invalid-name", hint=hint)
    if len(name) > MAX_NAME:
        problem, expected = f"dataset name {name[:20]}…", f"at most {MAX_NAME} characters"
        raise InvalidSettings(problem, "invalid-name", expected=expected, found=len(name))
    return name
