"""What one call of prepare does in a locked dataset folder: steps 2 to 5 of the protocol in `staging`."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Collection, Generator, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from iobench import formats
from iobench.base.errors import (
    IobenchError,
    PrepareError,
    WrongContent,
)
from iobench.base.units import bytes_text
from iobench.dataset import kept, seal
from iobench.dataset.checksum import Checksum
from iobench.dataset.manifest import Artifact, Manifest, Opener
from iobench.dataset.manifest_body import Checksums
from iobench.dataset.places import stamps, stored_bytes
from iobench.dataset.seal import Seal
from iobench.dataset.sources import Source, ahead, checked
from iobench.dataset.staging import new_generation, sync, sync_directory, temporary, writing_back
from iobench.dataset.verify import Progress, compare, content_of, read_back, verify_artifact
from iobench.formats import Batch, Format, same

CLOCK_S = time.get_clock_info("perf_counter").resolution  # no duration is shorter


@dataclass(frozen=True)
class Prepared:
    """One row of what was done: `state` is written, present (skipped), repaired or added."""

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
        """Logical bytes per second of writing; finite, whatever the manifest says that it took."""
        return self.logical_bytes / max(CLOCK_S, self.artifact.write_s)


@dataclass
class Writer:
    """One call of prepare at work."""

    source: Source
    manifest: Manifest  # what is being made; `before` is what was on disk, if that could be read
    before: Manifest | None
    overwrite: bool
    progress: Progress
    made: list[tuple[Path, Seal]] = field(default_factory=list)
    listing: bool = False  # the manifest may have been replaced

    def write_all(self, wanted: list[str]) -> list[Prepared]:
        """Write and list what is missing or damaged, or everything with `overwrite`; one row each."""
        states = {variant: self._state(variant) for variant in wanted}
        missing = [variant for variant in wanted if states[variant] != "present"]
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
        return [Prepared(v, states[v], self.manifest.artifacts[v], logical) for v in wanted]

    def _state(self, variant: str) -> str:
        """Whether the variant is present and intact, or has to be written or repaired."""
        if variant in self.manifest.added:
            self.manifest.place_of(variant).check()  # prepare repairs none of it
            return "present"
        if self.overwrite or variant not in self.manifest.artifacts:
            return "written"
        if self.manifest.unchanged(variant):
            return "present"
        try:  # touched since it was verified: only its content can tell
            verify_artifact(self.manifest, variant, self.progress)
        except IobenchError:
            return "repaired"
        self.manifest.artifacts[variant] = self.manifest.place_of(variant).restamped()
        self.manifest.save()
        return "present"

    @contextlib.contextmanager
    def _staged(self, missing: list[str]) -> Iterator[Callable[[], Iterator[Batch]]]:
        """The source's batches; those that had to be decoded are kept in files until all is written."""
        if not (self.source.decodes and missing):
            yield lambda: checked(self.source)
            return
        stage, schema = formats.get("npy"), self.source.schema
        with temporary(self.manifest.root) as folder:
            with contextlib.closing(self._counted("decoding", checked(self.source))) as decoded:
                stage.write(folder, schema, decoded)
            yield lambda: (batch for batch in read_back(Opener(stage, folder, schema)))

    def _write(self, form: Format, batches: Callable[[], Iterator[Batch]]) -> None:
        """Steps 2 and 3 of the protocol: verified, sealed and under its own name, but not listed."""
        variant, schema, library = form.variant, self.manifest.schema, library_of(form)
        with temporary(self.manifest.root) as folder:
            check, kept = Checksum(schema), Checksum(schema)
            started = time.perf_counter()
            hashed = _hashed(batches(), check)
            if not form.keeps:
                hashed = _hashed(hashed, kept, form.kept)
            counting = contextlib.closing(self._counted(f"writing {variant}", hashed))
            with writing_back(folder), counting as counted:
                form.write(folder, schema, counted)
            sync(folder)
            written = time.perf_counter()
            self._compare_source(check)
            expected = check if form.keeps else kept
            self._verify(Opener(form, folder, schema), f"verifying {variant}", expected)
            artifact = Artifact(
                variant=variant,
                files=stamps(folder),
                stored_bytes=stored_bytes(folder),
                write_s=max(written - started, CLOCK_S),
                verify_s=time.perf_counter() - written,
                library=library,
                folder=f"{variant}-{new_generation()}",
                checksum=None if form.keeps else Checksums(f"{kept.content:016x}", f"{kept.ordered:016x}"),
            )
            self._name(folder, artifact)
        self.manifest.artifacts[variant] = artifact

    def _name(self, folder: Path, artifact: Artifact) -> None:
        sealed, target = self.manifest.seal_of(artifact), self.manifest.root / artifact.folder_name
        seal.write(folder, sealed)
        self.made.append((target, sealed))  # before the rename, which may be the last thing that happens
        folder.rename(target)
        sync_directory(target.parent)

    def _keep_the_rest(self) -> None:
        """Artifacts that were there before and hold the same data stay listed."""
        made, before = self.manifest, self.before
        if before is not None and _identity(before) == _identity(made):
            made.artifacts = {**before.artifacts, **made.artifacts}

    def _list(self) -> None:
        """Steps 4 and 5: from here on the new is what there is, and what it replaces goes."""
        root, listed = self.manifest.root, self.manifest.folders
        if self.before is not None:
            _seal_unsealed(self.before, listed)
        self.listing = True
        self.manifest.save()
        seal.sweep(root, listed)
        kept.sweep(root, listed)

    def _discard(self) -> None:
        """Remove what was finished but is not listed, as the manifest on disk says."""
        try:
            listed = Manifest.load(self.manifest.root).folders
        except IobenchError:
            if self.listing:  # it may be listed
                return
            listed = set()
        for folder, sealed in self.made:
            if folder.name not in listed and folder.exists():
                with contextlib.suppress(OSError):  # the next prepare tries again
                    seal.remove(folder, sealed)

    def _compare_source(self, check: Checksum) -> None:
        if self.manifest.content is None:
            self.manifest.content, self.manifest.ordered = check.content, check.ordered
        elif (check.content, check.ordered) != (self.manifest.content, self.manifest.ordered):
            raise WrongContent(
                f"dataset {self.manifest.name}: the source gives other data than when it was first "
                "prepared; use --overwrite, or another --name"
            )

    def _verify(self, opener: Opener, what: str, expected: Checksum) -> None:
        found = content_of(opener, lambda done, total: self.progress(what, done, total))
        compare((expected.content, expected.ordered), opener.path, found)

    def _counted(self, what: str, batches: Iterator[Batch]) -> Generator[Batch, None, None]:
        done, total = 0, self.manifest.schema.logical_bytes
        self.progress(what, 0, total)
        with contextlib.closing(ahead(batches)) as produced:
            for batch in produced:
                yield batch
                done += sum(array.nbytes for array in batch.values())
                self.progress(what, done, total)


def library_of(form: Format) -> str:
    """The name and version of a format's library; PrepareError where it names none that is installed."""
    try:
        return f"{form.library} {metadata.version(form.library)}"
    except metadata.PackageNotFoundError:
        raise PrepareError(
            f"--format {form.name}: the library {form.library!r} that this format names is no installed "
            "package, so its version cannot be recorded; install it, or have the format name another"
        ) from None


def _hashed(
    batches: Iterator[Batch], check: Checksum, kept: Callable[[Batch], Batch] = same
) -> Iterator[Batch]:
    """The same batches, once `check` has seen what is kept of each."""
    for batch in batches:
        check.add_in_order(kept(batch))
        yield batch


def _identity(manifest: Manifest) -> tuple[object, ...]:
    return manifest.schema, manifest.source, manifest.content, manifest.ordered


def _seal_unsealed(before: Manifest, listed: Collection[str]) -> None:
    """Seal what is about to lose its place in the manifest and is of version 1, which had no seals."""
    for artifact in before.artifacts.values():
        folder = before.path_of(artifact.variant)
        if artifact.added or artifact.sealed or artifact.folder_name in listed:
            continue
        if folder.is_symlink() or not folder.is_dir():
            continue
        seal.write(folder, before.seal_of(artifact))


def _check_space(manifest: Manifest, source: Source, missing: list[str]) -> None:
    needed = sum(formats.parse(v).size_bound(manifest.schema) for v in missing)
    if source.decodes and missing:
        needed += manifest.schema.logical_bytes
    free = shutil.disk_usage(manifest.root).free
    if needed > free:
        raise PrepareError(
            f"{manifest.root}: {', '.join(missing)} may need {bytes_text(needed)}, "
            f"{bytes_text(free)} are free; use a smaller --size, fewer formats or another --data-dir"
        )
