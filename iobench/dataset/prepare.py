"""source → batches → write to a temporary path → fsync → read back, compare → rename → manifest LAST."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

from iobench import formats
from iobench.dataset.checksum import Checksum
from iobench.dataset.manifest import (
    FILE_NAME,
    Artifact,
    Manifest,
    Opener,
    check_name,
    stamps,
    stored_bytes,
)
from iobench.dataset.sources import Source, ahead, checked
from iobench.dataset.staging import (
    in_place,
    locked,
    os_errors,
    remove_leftovers,
    sync,
    temporary,
    writing_back,
)
from iobench.dataset.verify import Progress, compare, content_of, read_back, silent, verify_artifact
from iobench.errors import BenchError, PrepareError, WrongContent
from iobench.formats import ArtifactExists, Batch, Format, FormatError, Schema

DEFAULT_FORMATS = ("npy", "hdf5", "lmdb", "memmap")


@dataclass(frozen=True)
class Prepared:
    """One row of what prepare did: `state` is written, present (skipped) or repaired."""

    variant: str
    state: str
    artifact: Artifact
    logical_bytes: int

    @property
    def ratio(self) -> float:
        """Logical bytes per stored byte."""
        return self.logical_bytes / max(1, self.artifact.stored_bytes)


def prepare(
    source: Source,
    variants: Sequence[str] = DEFAULT_FORMATS,
    *,
    data_dir: Path = Path("data"),
    name: str | None = None,
    overwrite: bool = False,
    progress: Progress = silent,
) -> tuple[Manifest, list[Prepared]]:
    """Write `source` into every variant that is missing; the manifest and one row per variant.

    What is there and intact is skipped. Each artifact is read back through its reader and
    compared with the source before it gets its name. ArtifactExists where the folder holds
    other data and `overwrite` is not given; PrepareError where disk or folder refuse;
    WrongContent where what is read back differs.
    """
    root = Path(data_dir) / check_name(source.name if name is None else name)
    wanted = list(dict.fromkeys(formats.parse(v).variant for v in variants))
    with os_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        with locked(root):
            manifest, stale = _manifest_for(root, source, overwrite)
            return manifest, _Writer(source, manifest, stale, overwrite, progress).write_all(wanted)


@dataclass
class _Writer:
    """One call of prepare at work in a locked dataset folder."""

    source: Source
    manifest: Manifest
    stale: list[Path]  # artifacts of the data that is being replaced
    overwrite: bool
    progress: Progress

    def write_all(self, wanted: list[str]) -> list[Prepared]:
        states = {variant: self._state(variant) for variant in wanted}
        missing = [variant for variant in wanted if states[variant] != "present"]
        _check_space(self.manifest, self.source, missing)
        with self._staged(missing) as batches:
            for variant in missing:
                self._write(formats.parse(variant), batches)
        logical = self.manifest.schema.logical_bytes
        return [Prepared(v, states[v], self.manifest.artifacts[v], logical) for v in wanted]

    def _state(self, variant: str) -> str:
        """Whether the variant is present and intact, or has to be written or repaired."""
        if self.overwrite:
            return "written"
        if variant not in self.manifest.artifacts:
            _check_free(self.manifest.path_of(variant))
            return "written"
        if self.manifest.unchanged(variant):
            return "present"
        try:  # touched since it was verified: only its content can tell
            verify_artifact(self.manifest, variant, self.progress)
        except (FormatError, BenchError):
            return "repaired"
        self._record(
            variant, replace(self.manifest.artifacts[variant], files=self.manifest.stamps_now(variant))
        )
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
        variant, schema = form.variant, self.manifest.schema
        with temporary(self.manifest.root) as folder:
            check = Checksum(schema)
            started = time.perf_counter()
            hashed = _hashed(batches(), check)
            counting = contextlib.closing(self._counted(f"writing {variant}", hashed))
            with writing_back(folder), counting as counted:
                form.write(folder, schema, counted)
            sync(folder)
            written = time.perf_counter()
            self._compare_source(check)
            self._verify(Opener(form, folder, schema), f"verifying {variant}", variant)
            artifact = Artifact(
                variant=variant,
                files=stamps(folder),
                stored_bytes=stored_bytes(folder),
                write_s=written - started,
                verify_s=time.perf_counter() - written,
                library=f"{form.library} {metadata.version(form.library)}",
            )
            with in_place(folder, self.manifest.path_of(variant)):
                self._record(variant, artifact)

    def _compare_source(self, check: Checksum) -> None:
        if self.manifest.content is None:
            self.manifest.content, self.manifest.ordered = check.content, check.ordered
        elif (check.content, check.ordered) != (self.manifest.content, self.manifest.ordered):
            raise WrongContent(
                f"dataset {self.manifest.name}: the source gives other data than when it was first "
                "prepared; use --overwrite, or another --name"
            )

    def _verify(self, opener: Opener, what: str, variant: str) -> None:
        found = content_of(opener, lambda done, total: self.progress(what, done, total))
        compare(self.manifest, variant, found)

    def _record(self, variant: str, artifact: Artifact) -> None:
        self.manifest.artifacts[variant] = artifact
        self.manifest.save()
        while self.stale:
            path = self.stale.pop()
            if path != self.manifest.path_of(variant):
                shutil.rmtree(path, ignore_errors=True)

    def _counted(self, what: str, batches: Iterator[Batch]) -> Generator[Batch, None, None]:
        done, total = 0, self.manifest.schema.logical_bytes
        self.progress(what, 0, total)
        with contextlib.closing(ahead(batches)) as produced:
            for batch in produced:
                yield batch
                done += sum(array.nbytes for array in batch.values())
                self.progress(what, done, total)


def _hashed(batches: Iterator[Batch], check: Checksum) -> Iterator[Batch]:
    for batch in batches:
        check.add_in_order(batch)
        yield batch


def _manifest_for(root: Path, source: Source, overwrite: bool) -> tuple[Manifest, list[Path]]:
    """The manifest to extend or begin, and the artifacts of other data that it will replace."""
    remove_leftovers(root)
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    fresh = Manifest(root, source.schema, source.description, created=now)
    if not (root / FILE_NAME).exists():
        return fresh, []
    try:
        existing = Manifest.load(root)
    except BenchError:
        if overwrite:
            return fresh, []
        raise
    if (existing.schema, existing.source) == (source.schema, source.description):
        return existing, []
    if not overwrite:
        raise ArtifactExists(
            f"{root} holds other data ({_summary(existing.schema, existing.source)}); "
            "use --overwrite to replace it, or another --name"
        )
    return fresh, [existing.path_of(variant) for variant in existing.artifacts]


def _summary(schema: Schema, source: dict[str, object]) -> str:
    shown = ", ".join(f"{key} {value}" for key, value in source.items() if key not in ("mtime_ns", "labels"))
    return f"{schema.samples} samples, {shown}"


def _check_free(path: Path) -> None:
    if path.exists():
        raise ArtifactExists(
            f"{path} is there, but no manifest lists it; move it away, or use --overwrite to replace it"
        )


def _check_space(manifest: Manifest, source: Source, missing: list[str]) -> None:
    needed = sum(formats.parse(v).size_bound(manifest.schema) for v in missing)
    if source.decodes and missing:
        needed += manifest.schema.logical_bytes
    free = shutil.disk_usage(manifest.root).free
    if needed > free:
        raise PrepareError(
            f"{manifest.root}: {', '.join(missing)} may need {needed / 2**30:.2f} GiB, "
            f"{free / 2**30:.2f} GiB are free; use a smaller --size, fewer formats or another --data-dir"
        )
