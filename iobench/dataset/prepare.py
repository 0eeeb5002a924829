"""Prepare a dataset: write a source into formats, read each back and compare, list them in the manifest.

`iobench.dataset.staging` describes the protocol on disk; `ArtifactWriter` runs its steps 2 to 5.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from iobench import formats
from iobench.base.errors import (
    ArtifactExists,
    CorruptArtifact,
    IobenchError,
    PrepareError,
    SourceError,
    WrongContent,
)
from iobench.base.text import numbered, utc_now
from iobench.base.units import bytes_text, counted
from iobench.dataset import index_cache, staging, verify
from iobench.dataset.artifact_location import stamps, stored_bytes
from iobench.dataset.checksum import Checksum, HashedRows
from iobench.dataset.manifest import Manifest, check_name
from iobench.dataset.manifest_file import FILE_NAME, Artifact, Checksums, check_readable, storable
from iobench.dataset.opener import Opener
from iobench.dataset.sources.source import Source, checked, prefetched
from iobench.dataset.staging import Seal, locked, new_generation, os_errors, sync, sync_directory, temporary
from iobench.dataset.verify import HashWriter, Progress, compare, hash_rest, no_progress, read_back
from iobench.formats import Batch, Format, Schema
from iobench.formats.array_schema import with_selection

CLOCK_S = time.get_clock_info("perf_counter").resolution  # shortest measurable duration


@dataclass(frozen=True)
class Prepared:
    """Result for one variant: `state` is written, present (skipped), repaired or added."""

    variant: str
    state: str
    artifact: Artifact
    logical_bytes: int

    @property
    def ratio(self) -> float:
        """Logical bytes per stored byte."""
        return self.logical_bytes / max(1, self.artifact.stored_bytes)

    @property
    def write_bytes_per_s(self) -> float:
        """Logical bytes per second of writing; finite for any time in the manifest."""
        return self.logical_bytes / max(CLOCK_S, self.artifact.write_s)


@dataclass
class ArtifactWriter:
    """State of one call of prepare."""

    source: Source
    manifest: Manifest  # the manifest to write
    before: Manifest | None  # the manifest on disk, if it could be read
    overwrite: bool
    progress: Progress
    made: list[tuple[Path, Seal]] = field(default_factory=list)  # finished folders and their seals
    listing: bool = False  # whether the manifest on disk may have been replaced

    def write_all(self, variants: list[str]) -> list[Prepared]:
        """Write and list missing or damaged variants, or all with `overwrite`; return one row each."""
        states = {variant: self._state(variant) for variant in variants}
        missing = [variant for variant in variants if states[variant] != "present"]
        _check_space(self.manifest, self.source, missing)
        try:
            with self._staged(missing) as batches:
                for variant in missing:
                    self._write(formats.parse(variant), batches)
                    if not self.overwrite:
                        self._list()
            if self.overwrite and missing:
                if self.before is not None and _identity(self.before) == _identity(self.manifest):
                    self.manifest.artifacts = {**self.before.artifacts, **self.manifest.artifacts}
                self._list()
        except BaseException:
            self._discard()
            raise
        logical = self.manifest.schema.logical_bytes
        return [Prepared(v, states[v], self.manifest.artifacts[v], logical) for v in variants]

    def _state(self, variant: str) -> str:
        """Return `present` for an intact variant, otherwise `written` or `repaired`."""
        if variant in self.manifest.added:
            self.manifest.location_of(variant).check()  # prepare never repairs added data
            return "present"
        if self.overwrite or variant not in self.manifest.artifacts:
            return "written"
        if self.manifest.unchanged(variant):
            return "present"
        try:  # touched since it was verified: compare its content
            verify.verify_artifact(self.manifest, variant, self.progress)
        except (CorruptArtifact, WrongContent):  # others say nothing about the content
            return "repaired"
        artifact, now = self.manifest.artifacts[variant], stamps(self.manifest.path_of(variant))
        files = {name: now[name] for name in artifact.files}
        self.manifest.artifacts[variant] = msgspec.structs.replace(artifact, files=files)
        self.manifest.save()
        return "present"

    @contextlib.contextmanager
    def _staged(self, missing: list[str]) -> Iterator[Callable[[], Iterator[Batch]]]:
        """Yield a function that returns the source's batches; decoded ones are cached in files meanwhile."""
        if not (self.source.decodes and missing):
            yield lambda: checked(self.source)
            return
        stage, schema = formats.get("npy"), self.source.schema
        with temporary(self.manifest.root) as folder:
            with contextlib.closing(self._counted("decoding", checked(self.source))) as decoded:
                stage.write(folder, schema, decoded)
            yield lambda: (batch for batch in read_back(Opener(stage, folder, schema)))

    def _write(self, form: Format, batches: Callable[[], Iterator[Batch]]) -> None:
        """Run steps 2 and 3 for one variant: write, verify, seal and rename it, without listing it."""
        manifest, variant, library = self.manifest, form.variant, library_of(form)
        root, schema = manifest.root, manifest.schema
        with temporary(root) as folder, HashWriter.temporary(root) as hashes:
            check, stored = Checksum(schema), Checksum(schema)
            started: list[float] = []

            def hashed() -> Iterator[Batch]:
                started.append(time.perf_counter())  # libraries are imported when the first is asked for
                for batch in batches():
                    check.add_in_order(batch)
                    if not form.lossless:
                        stored.add_in_order(form.roundtrip(batch))
                    yield batch

            counting = contextlib.closing(self._counted(f"writing {variant}", hashed()))
            with staging.writing_back(folder), counting as counted:
                form.write(folder, schema, counted)
            sync(folder)
            written = time.perf_counter()
            if manifest.content is None:
                manifest.content, manifest.ordered = check.sums
            elif check.sums != (manifest.content, manifest.ordered):
                problem = f"dataset {manifest.name}: the source's data changed since they were first prepared"
                raise WrongContent(problem, "source-changed", hint="use --overwrite, or another --name")
            expected = check if form.lossless else stored
            read, report = Checksum(schema), partial(self.progress, f"verifying {variant}")
            every = HashedRows.all_of(schema.samples)
            for rows, some in verify.stored_hashes(Opener(form, folder, schema), every, report):
                read.add_hashes(some, rows)
                hashes.append(some)
            compare(expected.sums, folder, read)
            artifact = Artifact(
                variant=variant,
                files=stamps(folder),
                stored_bytes=stored_bytes(folder),
                write_s=max(written - started[0], CLOCK_S),
                verify_s=time.perf_counter() - written,
                library=library,
                folder=f"{variant}-{new_generation()}",
                checksum=None if form.lossless else Checksums.of(*stored.sums),
            )
            seal, target = manifest.seal_of(artifact), root / artifact.folder
            seal.write(folder)
            self.made.append((target, seal))  # before the rename: prepare may be killed right after it
            folder.rename(target)
            sync_directory(root)
            manifest.artifacts[variant] = artifact
            hashes.keep(manifest, variant)

    def _list(self) -> None:
        """Run steps 4 and 5: list the new artifacts and remove those they replace."""
        self.listing = True
        self.manifest.save()
        self.manifest.sweep()

    def _discard(self) -> None:
        """Remove finished folders that the manifest on disk does not list."""
        try:
            listed = Manifest.load(self.manifest.root).folders
        except IobenchError:
            if self.listing:  # they may be listed
                return
            listed = set()
        for folder, seal in self.made:
            if folder.name not in listed and folder.exists():
                with contextlib.suppress(OSError):  # the next prepare tries again
                    seal.remove(folder)
        left = {path.name for path in self.manifest.root.iterdir()}
        index_cache.sweep(self.manifest.root, left | set(self.manifest.added))

    def _counted(self, activity: str, batches: Iterator[Batch]) -> Generator[Batch, None, None]:
        done, total = 0, self.manifest.schema.logical_bytes
        self.progress(activity, 0, total)
        with contextlib.closing(prefetched(batches)) as produced:
            for batch in produced:
                yield batch
                done += sum(array.nbytes for array in batch.values())
                self.progress(activity, done, total)


def library_of(form: Format) -> str:
    """Return name and version of a format's library; raises PrepareError if it is not installed."""
    try:
        return f"{form.library} {metadata.version(form.library)}"
    except metadata.PackageNotFoundError:
        problem = f"format {form.name}: no package {form.library!r} is installed, its version is unknown"
        hint = "install it, or name another library in the format"
        raise PrepareError(problem, "unknown-library", hint=hint) from None


def _identity(manifest: Manifest) -> tuple[object, ...]:
    return manifest.schema, manifest.source, manifest.content, manifest.ordered


def _check_space(manifest: Manifest, source: Source, missing: list[str]) -> None:
    needed = sum(formats.parse(v).size_bound(manifest.schema) for v in missing)
    if source.decodes and missing:
        needed += manifest.schema.logical_bytes
    free = shutil.disk_usage(manifest.root).free
    if needed > free:
        problem, expected = f"not enough disk space for {', '.join(missing)}", f"up to {bytes_text(needed)}"
        found, hint = f"{bytes_text(free)} free", "use a smaller --size, fewer formats or another --data-dir"
        raise PrepareError(problem, "disk-full", manifest.root, expected=expected, found=found, hint=hint)


DEFAULT_FORMATS = ("npy", "hdf5", "lmdb", "memmap")


def prepare(
    source: Source,
    variants: Sequence[str] = DEFAULT_FORMATS,
    *,
    data_dir: str | Path = Path("data"),
    name: str | None = None,
    overwrite: bool = False,
    progress: Progress = no_progress,
) -> tuple[Manifest, list[Prepared]]:
    """Write a source into every variant that is missing or damaged.

    Intact variants are skipped. Each artifact is read back and compared with the source before it gets its
    name.

    Parameters
    ----------
    source : Source
        The samples to write.
    variants : sequence of str
        Formats with options, such as ``hdf5:compression=gzip``.
    data_dir : str or Path
        Folder of all datasets.
    name : str, optional
        Name of the dataset; by default the source's.
    overwrite : bool
        Replace the data of an existing dataset.
    progress : callable
        Called with the activity, the bytes done and the bytes in total.

    Returns
    -------
    manifest : Manifest
        The dataset.
    rows : list of Prepared
        The result for each variant.

    Raises
    ------
    UnsupportedSchema
        If a variant cannot hold such samples; nothing is written then.
    SourceError
        If the dataset's folder would be in the data; without a `name` it gets another one.
    ArtifactExists
        If the dataset holds other data and `overwrite` is not given.
    PrepareError
        If the disk or the folder refuses a write.
    WrongContent
        If the data read back differ.
    """
    if not isinstance(source, Source):
        hint = "give a source, such as iobench.open_source(PATH)"
        raise SourceError("prepare: it has no samples", "no-source", found=repr(source), hint=hint)
    own = source.description.get("path")
    if name is None and lies_in(Path(data_dir) / source.name, own):
        name = free_name(source, Path(data_dir))
    root = Path(data_dir) / check_name(source.name if name is None else name)
    if lies_in(root, own):
        raise nested_folders(root, source.description["path"])
    check_readable(root)
    forms = [formats.parse(v) for v in variants]
    for form in forms:
        form.check_schema(source.schema)
    requested = list(dict.fromkeys(form.variant for form in forms))
    described = storable(source.schema, source.description)
    with os_errors(root), locked(root):
        before = sweep_and_load(root, overwrite)
        manifest = _manifest_for(root, before, source.schema, described, overwrite)
        if manifest.part is not None and set(requested) - set(manifest.artifacts):
            hash_rest(manifest, progress)  # what is written is compared with all of it
        return manifest, ArtifactWriter(source, manifest, before, overwrite, progress).write_all(requested)


def writable_formats(schema: Schema) -> tuple[list[str], list[IobenchError]]:
    """Return the installed formats that can hold such samples, and the errors of the others."""
    writable, skipped = [], []
    for name in formats.names():
        try:
            if not (form := formats.parse(name)).offered:
                continue
            form.check_schema(schema)
        except IobenchError as error:
            skipped.append(error)
        else:
            writable.append(name)
    return writable, skipped


def lies_in(root: Path, own: Path | str | None) -> bool:
    """Return True if a dataset's folder is the user's `own` folder or file, if any, or inside it."""
    return own is not None and Path(os.path.realpath(root)).is_relative_to(os.path.realpath(own))


def nested_folders(root: Path, path: Path) -> SourceError:
    """Return the error for a dataset's folder in the data that it is made of."""
    problem = f"the dataset's folder {root} would be inside the data"
    return SourceError(problem, "nested-folders", path, hint="use another --name, or another --data-dir")


def free_name(source: Source, data_dir: Path, added: Path | None = None) -> str:
    """Return a name for the dataset of a source, or of its files `added` where they lie.

    It is the source's own, with a number if a dataset of other data has that, or the source's files do.
    """
    own = source.description.get("path")
    inside = lies_in(data_dir, own)  # then every name is refused
    return next(
        name
        for name in numbered(source.name, between="-")
        if is_free(data_dir / name, source, added) and (inside or not lies_in(data_dir / name, own))
    )


def is_free(root: Path, source: Source, added: Path | None = None) -> bool:
    """Return whether a folder holds no dataset, or one of that source, or of its files `added`."""
    if not os.path.lexists(root / FILE_NAME):
        return True
    try:
        there = Manifest.load(root)
    except IobenchError:
        return False
    paths = [with_selection(Path(one.path), one.names) for one in there.added.values()]
    same = there.source == storable(source.schema, source.description)
    return there.schema == source.schema and (same or (added is not None and added.absolute() in paths))


def sweep_and_load(root: Path, overwrite: bool) -> Manifest | None:
    """Run step 1: load the manifest on disk, if any, and remove folders and indexes that it does not list.

    If it cannot be read, the folders that belong to it are unknown: prepare continues only with `overwrite`,
    and all sealed folders stay until a new manifest is listed.
    """
    staging.remove_temporary(root)
    if not os.path.lexists(root / FILE_NAME):
        staging.sweep(root, ())
        index_cache.sweep(root, ())
        return None
    try:
        before = Manifest.load(root)
    except IobenchError:
        if overwrite:
            return None
        raise
    if before.url and not overwrite:
        problem = f"the dataset is that of objects at {before.url}, which are only read"
        hint = "use another --name, or --overwrite to forget it; the objects are kept"
        raise ArtifactExists(problem, "remote-dataset", root, hint=hint)
    before.sweep()
    return None if before.url else before


def _manifest_for(
    root: Path, before: Manifest | None, schema: Schema, described: dict[str, Any], overwrite: bool
) -> Manifest:
    """Return the manifest to extend or to begin.

    Added data of the same content stay listed even with `overwrite`. Raises ArtifactExists if the folder
    holds other data and `overwrite` is not given.
    """
    same = before is not None and (before.schema, before.source) == (schema, described)
    if before is not None and same and before.added:
        staying = {v: a for v, a in before.artifacts.items() if a.added or not overwrite}
        return dataclasses.replace(before, artifacts=staying)
    if before is None or overwrite:
        return Manifest(root, schema, described, created=utc_now())
    if not same:
        hidden = ("mtime_ns", "labels", "packed")
        shown = ", ".join(f"{key} {value}" for key, value in before.source.items() if key not in hidden)
        held = f"{counted(before.schema.samples, 'sample')} of {bytes_text(before.schema.sample_bytes)}"
        problem = f"the dataset holds other data ({held}, {shown})"
        hint = "use --overwrite to replace it, or another --name"
        raise ArtifactExists(problem, "other-data", root, hint=hint)
    return dataclasses.replace(before, artifacts=dict(before.artifacts))
