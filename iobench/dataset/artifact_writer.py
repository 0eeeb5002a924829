"""Steps 2 to 5 of the protocol in `staging`: one call of prepare in a locked dataset folder."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path

from iobench import formats
from iobench.base.errors import IobenchError, PrepareError, WrongContent
from iobench.base.units import bytes_text
from iobench.dataset import index_cache, seal
from iobench.dataset.artifact_location import stamps, stored_bytes
from iobench.dataset.checksum import Checksum
from iobench.dataset.hashed_rows import HashedRows
from iobench.dataset.manifest import Manifest
from iobench.dataset.manifest_body import Artifact, Checksums
from iobench.dataset.opener import Opener
from iobench.dataset.read_back import compare, read_back, stored_hashes
from iobench.dataset.sample_hashes import HashWriter
from iobench.dataset.seal import Seal
from iobench.dataset.sources import Source, checked, prefetched
from iobench.dataset.staging import new_generation, sync, sync_directory, temporary, writing_back
from iobench.dataset.verify import Progress, verify_artifact
from iobench.formats import Batch, Format, identity

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
                self._keep_the_rest()
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
            verify_artifact(self.manifest, variant, self.progress)
        except IobenchError:
            return "repaired"
        self.manifest.artifacts[variant] = self.manifest.location_of(variant).restamped()
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
        variant, schema, library = form.variant, self.manifest.schema, library_of(form)
        root = self.manifest.root
        with temporary(root) as folder, HashWriter.temporary(root) as hashes:
            check, stored = Checksum(schema), Checksum(schema)
            started: list[float] = []
            hashed = _hashed(_noting(started, batches()), check)
            if not form.lossless:
                hashed = _hashed(hashed, stored, form.roundtrip)
            counting = contextlib.closing(self._counted(f"writing {variant}", hashed))
            with writing_back(folder), counting as counted:
                form.write(folder, schema, counted)
            sync(folder)
            written = time.perf_counter()
            self._compare_source(check)
            expected = check if form.lossless else stored
            self._verify(Opener(form, folder, schema), f"verifying {variant}", expected, hashes)
            artifact = Artifact(
                variant=variant,
                files=stamps(folder),
                stored_bytes=stored_bytes(folder),
                write_s=max(written - started[0], CLOCK_S),
                verify_s=time.perf_counter() - written,
                library=library,
                folder=f"{variant}-{new_generation()}",
                checksum=None if form.lossless else Checksums.of(stored.content, stored.ordered),
            )
            self._name(folder, artifact)
            self.manifest.artifacts[variant] = artifact
            hashes.keep(self.manifest, variant)

    def _name(self, folder: Path, artifact: Artifact) -> None:
        sealed, target = self.manifest.seal_of(artifact), self.manifest.root / artifact.folder
        seal.write(folder, sealed)
        self.made.append((target, sealed))  # before the rename: prepare may be killed right after it
        folder.rename(target)
        sync_directory(target.parent)

    def _keep_the_rest(self) -> None:
        """Keep artifacts listed that existed before and hold the same data."""
        made, before = self.manifest, self.before
        if before is not None and _identity(before) == _identity(made):
            made.artifacts = {**before.artifacts, **made.artifacts}

    def _list(self) -> None:
        """Run steps 4 and 5: list the new artifacts and remove those they replace."""
        root, listed = self.manifest.root, self.manifest.folders
        self.listing = True
        self.manifest.save()
        seal.sweep(root, listed)
        index_cache.sweep(root, {*listed, *self.manifest.added})

    def _discard(self) -> None:
        """Remove finished folders that the manifest on disk does not list."""
        try:
            listed = Manifest.load(self.manifest.root).folders
        except IobenchError:
            if self.listing:  # they may be listed
                return
            listed = set()
        for folder, sealed in self.made:
            if folder.name not in listed and folder.exists():
                with contextlib.suppress(OSError):  # the next prepare tries again
                    seal.remove(folder, sealed)
        left = {path.name for path in self.manifest.root.iterdir()}
        index_cache.sweep(self.manifest.root, left | set(self.manifest.added))

    def _compare_source(self, check: Checksum) -> None:
        if self.manifest.content is None:
            self.manifest.content, self.manifest.ordered = check.content, check.ordered
        elif (check.content, check.ordered) != (self.manifest.content, self.manifest.ordered):
            raise WrongContent(
                f"dataset {self.manifest.name}: the source's data changed since they were first prepared",
                kind="source-changed",
                hint="use --overwrite, or another --name",
            )

    def _verify(self, opener: Opener, activity: str, expected: Checksum, writer: HashWriter) -> None:
        """Read an artifact back, compare it, and keep the hashes of its samples."""
        content, hashed = Checksum(opener.schema), HashedRows.all_of(opener.schema.samples)
        for rows, hashes in stored_hashes(opener, hashed, partial(self.progress, activity)):
            content.add_hashes(hashes, rows)
            writer.append(hashes)
        compare((expected.content, expected.ordered), opener.path, content)

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
        raise PrepareError(
            f"format {form.name}: no package {form.library!r} is installed, its version is unknown",
            kind="unknown-library",
            hint="install it, or name another library in the format",
        ) from None


def _noting(started: list[float], batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield the batches after noting when the first was asked for: by then, libraries are imported."""
    started.append(time.perf_counter())
    yield from batches


def _hashed(
    batches: Iterator[Batch], check: Checksum, stored: Callable[[Batch], Batch] = identity
) -> Iterator[Batch]:
    """Yield the batches after adding the stored form of each to `check`."""
    for batch in batches:
        check.add_in_order(stored(batch))
        yield batch


def _identity(manifest: Manifest) -> tuple[object, ...]:
    return manifest.schema, manifest.source, manifest.content, manifest.ordered


def _check_space(manifest: Manifest, source: Source, missing: list[str]) -> None:
    needed = sum(formats.parse(v).size_bound(manifest.schema) for v in missing)
    if source.decodes and missing:
        needed += manifest.schema.logical_bytes
    free = shutil.disk_usage(manifest.root).free
    if needed > free:
        raise PrepareError(
            f"not enough disk space for {', '.join(missing)}",
            kind="disk-full",
            path=manifest.root,
            expected=f"up to {bytes_text(needed)}",
            found=f"{bytes_text(free)} free",
            hint="use a smaller --size, fewer formats or another --data-dir",
        )
