"""Add data that iobench did not write: files where they lie, or objects of a store.

Files are sniffed, described, hashed and listed in the manifest; they are only read, and all writes go to the
dataset's folder. Objects are downloaded once for that, and the copy is removed: the manifest holds their
versions, and the places of the rows, by which they are read from then on.
"""

from __future__ import annotations

import dataclasses
import math
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from iobench import formats
from iobench.base.errors import (
    ArtifactExists,
    CorruptArtifact,
    InvalidSettings,
    IobenchError,
    PrepareError,
    SourceError,
)
from iobench.base.files import system_errors_as
from iobench.base.finding import Finding
from iobench.base.text import printable, utc_now
from iobench.base.units import bytes_text, counted
from iobench.dataset import index_cache, manifest_file, sandbox, verify
from iobench.dataset.artifact_location import FileTree
from iobench.dataset.checksum import Checksum, HashedRows
from iobench.dataset.detection import detect
from iobench.dataset.file_set import Detected
from iobench.dataset.manifest import Manifest, check_name
from iobench.dataset.manifest_file import FILE_NAME, Artifact, Checksums, ExternalData, FileStamp, HashedPart
from iobench.dataset.opener import PLACES, check_ranges, index_of, read_by_library, stored_places
from iobench.dataset.prepare import CLOCK_S, Prepared, library_of, lies_in, nested_folders, sweep_and_load
from iobench.dataset.remote_dataset import check_places
from iobench.dataset.sandbox import Description, UntrustedData
from iobench.dataset.sources import Source, check_selectable
from iobench.dataset.sources.file_source import check_fields
from iobench.dataset.sources.source import CLOSE_WRITERS, default_name, named, no_such_path, refused_by_system
from iobench.dataset.staging import SEAL, locked, new_generation, os_errors
from iobench.dataset.verify import PART_S, HashWriter, Progress, hash_rows, hashed_in_part, no_progress
from iobench.formats import Batch, Field, Schema
from iobench.formats.array_schema import with_selection
from iobench.formats.folders import MOVE, contains_images
from iobench.objects.download import download, find
from iobench.objects.reader import RemoteFiles
from iobench.objects.url import is_url


def check_free(before: Manifest | None, variant: str, schema: Schema, added: ExternalData) -> None:
    """Raise ArtifactExists if the dataset has the variant from elsewhere, or other fields."""
    if before is None:
        return
    if before.schema != schema and set(before.artifacts) - {variant}:
        raise _other_data(before)
    if variant not in before.artifacts:
        return
    existing = before.added.get(variant)
    if existing is None or (existing.path, existing.names) != (added.path, added.names):
        origin = "prepared" if existing is None else f"added from {existing.path}"
        problem = f"dataset {before.name} already has {variant} ({origin})"
        hint = "use another --name, or --overwrite to replace the dataset"
        raise ArtifactExists(problem, "variant-exists", hint=hint)


def extended(before: Manifest | None, made: Manifest) -> Manifest:
    """Add the new artifact to a dataset of the same data; raises ArtifactExists if it holds other data."""
    if before is None or set(before.artifacts) <= set(made.artifacts):
        return made
    alike = (before.schema, before.part) == (made.schema, made.part)
    if alike and (before.content, before.ordered) == (made.content, made.ordered):
        return dataclasses.replace(before, artifacts={**before.artifacts, **made.artifacts})
    ((variant, artifact),), (added,) = made.artifacts.items(), made.added.values()
    same_files = any((one.path, one.stamp) == (added.path, added.stamp) for one in before.added.values())
    if alike and same_files and not formats.parse(variant).lossless:  # decoded in another way
        artifact = msgspec.structs.replace(artifact, checksum=Checksums.of(made.content, made.ordered))
        return dataclasses.replace(before, artifacts={**before.artifacts, variant: artifact})
    raise _other_data(before)


def _other_data(before: Manifest) -> ArtifactExists:
    return ArtifactExists(
        f"dataset {before.name} holds other data in {', '.join(before.artifacts)}",
        "other-data",
        hint="use another --name, or 'iobench add --overwrite' to replace the dataset: folders that prepare "
        "wrote are removed, added data stay",
    )


class AddedSource(Source):
    """Added data of a dataset, as the source of its other formats."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest, self.schema, self.name = manifest, manifest.schema, manifest.name
        self._variant, self._added = next(iter(manifest.added.items()))

    @property
    def description(self) -> dict[str, Any]:
        """Description of the dataset's source."""
        return self.manifest.source

    def in_place(self) -> tuple[Path, str] | None:
        """Return the added data."""
        return with_selection(Path(self._added.path), self._added.names), self._variant

    def batches(self) -> Iterator[Batch]:
        """Yield all samples in order; raises CorruptArtifact if they changed since they were added."""
        location = self.manifest.location_of(self._variant)
        location.check()
        data = untrusted(location.path, self._variant, self._added, self.schema)
        try:
            yield from sandbox.batches(data, self.schema)
        except SourceError as error:
            raise error.changed(hint=error.hint or location.hint) from error
        location.check()


def untrusted(path: Path, variant: str, added: ExternalData, schema: Schema) -> UntrustedData:
    """Return added data as those that the sandbox reads, the samples of `schema` of them."""
    return UntrustedData(path, variant, added.stamp.bytes, stored=added.schema(schema))


@dataclass(frozen=True)
class AddOptions:
    """Options of `add`, and of its callers within iobench.

    `first` makes a dataset of the first samples, of which all are hashed: their number, and their totals.
    `accept` is called with the data and their schema before they are hashed, and may raise.
    """

    format: str | None = None
    name: str | None = None
    fields: Sequence[Field] = ()
    data_dir: str | Path = Path("data")
    overwrite: bool = False
    hash: str = "auto"
    hash_s: float = PART_S
    progress: Progress = no_progress
    warn: Callable[[Finding], None] = lambda finding: None
    files: str | None = None
    first: Schema | None = None
    accept: Callable[[UntrustedData, Schema], None] = lambda data, schema: None


def add_files(path: str | Path, options: AddOptions) -> tuple[Manifest, Prepared]:
    """Add files where they lie, after hashing their samples once; see `add`."""
    path, names = formats.split_selection(Path(path))
    tree = FileTree.of(_resolved(path))
    stem = "-".join((tree.path.stem, *names))
    root = Path(options.data_dir) / check_name(options.name or default_name(stem))
    manifest_file.check_readable(root)
    _check_separate(tree.path, root)
    if options.format:
        detected = Detected(options.format)
    else:
        detected = detect(tree.path, "--format", options.files, names)
    for note in detected.notes:
        options.warn(note)
    form = formats.parse(detected.variant)
    check_selectable(path, form, names)
    selected = with_selection(tree.path, names)
    with _remedies(tree.path):
        described = _described(UntrustedData(selected, form.variant, tree.stamp.bytes), options)
    tree, held = FileTree.of(tree.path, described.others), described.schema
    schema, first = held, options.first
    if first is not None and first.samples < held.samples:
        schema = dataclasses.replace(held, samples=first.samples, totals=first.totals)
    check_fields(path, schema, options.fields)
    stored = () if schema is held else (held.samples, held.totals)
    added = ExternalData(str(tree.path), tree.stamp, names, bool(options.fields), tree.others, *stored)
    data = untrusted(tree.path, form.variant, added, schema)
    options.accept(data, schema)
    with os_errors(root), locked(root), HashWriter.temporary(root) as writer:
        present = sweep_and_load(root, options.overwrite)
        before = None if options.overwrite else present
        check_free(before, form.variant, schema, added)
        others = before if before is not None and set(before.artifacts) - {form.variant} else None
        rows = verify.rows_to_hash(others, schema, options.hash, options.hash_s)
        seconds = options.hash_s if others is None else math.inf
        began, report = time.perf_counter(), partial(options.progress, f"hashing {form.variant}")
        with _remedies(tree.path):
            check, hashed = hash_rows(data, schema, rows, seconds, writer, report)
        artifact = _artifact(form, tree, added, began)
        made = _manifest(root, schema, artifact, check, hashed)
        if first is not None:
            made.source["first"] = schema.samples
        manifest = extended(before, made)
        manifest.save()
        writer.keep(manifest, form.variant)
        manifest.sweep()
    if manifest.part is not None:
        options.warn(hashed_in_part(manifest))
    return manifest, Prepared(form.variant, "added", artifact, schema.logical_bytes)


def _resolved(path: Path) -> Path:
    """Return the path as `named`; raises SourceError if it is missing or not printable."""
    try:
        resolved = named(path)
    except FileNotFoundError:
        raise no_such_path(path) from None
    except OSError as error:
        raise refused_by_system(error, path) from error
    if printable(str(resolved)) != str(resolved):
        problem = "the name contains control characters or bytes that are not UTF-8"
        raise SourceError(problem, "invalid-name", resolved, hint="rename it")
    return resolved


@contextmanager
def _remedies(path: Path) -> Iterator[None]:
    """Say what to do about a file of a folder that cannot be read."""
    try:
        yield
    except SourceError as error:
        if not path.is_dir() or error.path in (None, str(path)) or error.hint not in (None, MOVE):
            raise
        convert = f"iobench prepare --source {shlex.quote(str(path))}"
        skip = f"leave such images out: '{convert} --on-error skip'"
        other = f"convert them: '{convert}'" if error.kind == "link" else skip
        ways = [MOVE, *[other] * contains_images(path)]
        raise error.changed(hint="; or ".join(ways)) from None


def _check_separate(path: Path, root: Path) -> None:
    """Raise SourceError if iobench would write into the data, or prepare could remove them."""
    path = Path(os.path.realpath(path))
    if lies_in(root, path):
        raise nested_folders(root, path)
    for folder in (path, *path.parents):
        if (folder / SEAL).exists() and (folder.parent / FILE_NAME).exists():
            hint = f"measure it with 'iobench run --name {folder.parent.name}', or add a copy"
            raise SourceError("written by prepare, which may replace it", "managed-data", path, hint=hint)


def _described(data: UntrustedData, options: AddOptions) -> Description:
    """Describe data; an error names the format that recognizes them if another was given."""
    try:
        description = sandbox.describe(data, options.fields)
    except SourceError as error:
        if error.kind == "not-a-file":  # whose hint says how this format reads a folder
            raise
        names: tuple[str, ...] = ()
        with suppress(SourceError):  # of the files of a folder that differ: the first error says more
            names = sandbox.sniff(data.file).formats if options.format else ()
        given = formats.parse(data.kind).variant
        if len(names) != 1 or given.startswith(names[0]):
            raise
        hint = f"{names[0]} recognizes it: give --format {names[0]}, or omit --format"
        raise error.changed(hint=hint) from None
    for note in description.notes:
        options.warn(note)
    return description


def _artifact(form: formats.Format, tree: FileTree, added: ExternalData, began: float) -> Artifact:
    """Return the entry of data hashed from `began` on; SourceError if they changed meanwhile."""
    if FileTree.of(tree.path, tree.others).stamp != tree.stamp:
        raise SourceError("changed while it was hashed", "changed", tree.path, hint=CLOSE_WRITERS)
    return Artifact(
        variant=form.variant,
        files={},
        stored_bytes=tree.disk_bytes,
        write_s=0.0,
        verify_s=max(time.perf_counter() - began, CLOCK_S),
        library=library_of(form),
        added=added,
    )


def _manifest(
    root: Path, schema: Schema, artifact: Artifact, check: Checksum, hashed: HashedRows
) -> Manifest:
    assert artifact.added is not None
    source: dict[str, Any] = {"kind": "added", "format": artifact.variant, "path": artifact.added.path}
    source["arrays"] = list(artifact.added.names)
    source |= {"renamed": schema.renamed} if schema.renamed else {}
    described = manifest_file.storable(schema, source, Path(artifact.added.path))
    part = None if hashed.whole else HashedPart(hashed.piece_rows, hashed.pieces)
    artifacts = {artifact.variant: artifact}
    return Manifest(root, schema, described, check.content, check.ordered, utc_now(), artifacts, part)


CONVERT = (
    "download the data and run 'iobench prepare --source COPY --format npy', with --to to upload them; or "
    "mount the bucket, and add the folder"
)
SHARDS = (".tar", ".parquet")  # of which the first one shows whether all can be added
DECODED = (".jpg", ".jpeg", ".png", ".wav", ".flac", ".ogg", ".mp3")  # no range of a file is a sample
CHANGED = ("replaced", "truncated", "missing-object")  # kinds of errors of requests


def add_remote(address: str, options: AddOptions) -> tuple[Manifest, Prepared]:
    """Add an object, or those below a prefix; see `add`."""
    place, names = _split_selection(address)
    stem = PurePosixPath(place.rstrip("/")).stem
    root = Path(options.data_dir) / check_name(options.name or default_name("-".join((stem, *names))))
    _check_free(root, options.overwrite)
    files = find(place, options.progress)
    _check_decoded(files)
    with tempfile.TemporaryDirectory(prefix="iobench-add-") as temporary:
        base = copy = Path(temporary) / "objects" / PurePosixPath(files.url).name
        if files.url != place.rstrip("/"):  # one object, in the folder of this address
            copy = base / next(iter(files.objects))
        data_dir = Path(temporary) / "data"
        here = dataclasses.replace(
            options, name=root.name, data_dir=data_dir, accept=partial(_check_ranges, place)
        )
        with _naming(copy, place):
            _download_checked(files, base, here)
            local, row = add_files(with_selection(copy, names), here)
        made = _registered(local, row.variant, files, base, address, root, options.overwrite)
    sized = msgspec.structs.replace(row.artifact, stored_bytes=_bytes(files))  # not that of the copy
    return made, dataclasses.replace(row, artifact=sized)


def _split_selection(address: str) -> tuple[str, tuple[str, ...]]:
    """Split ``ADDRESS::NAME,NAME`` into the address and the names of the selected arrays, if any."""
    below = address.partition("://")[2].partition("/")[2]  # a host may be [::1]
    _, separator, names = below.rpartition("::")
    if not separator:
        return address, ()
    return address.removesuffix(f"::{names}"), tuple(name.strip("/") for name in names.split(","))


def _check_free(root: Path, overwrite: bool) -> None:
    if not overwrite and os.path.lexists(root / FILE_NAME):
        hint = "use another --name, or --overwrite to replace it; added data stay"
        raise ArtifactExists("there is a dataset of that name", "other-data", root, hint=hint)


def _check_decoded(files: RemoteFiles) -> None:
    """Raise InvalidSettings, before anything is downloaded, if most objects are files of images or sounds."""
    decoded = [name for name in files.objects if name.lower().endswith(DECODED)]
    if 2 * len(decoded) > len(files.objects):
        problem = "add of images or sounds in a file each: they cannot be read by ranges"
        expected = "samples that are stored as they are in memory"
        found = f"{counted(len(decoded), 'object')} like {decoded[0]}"
        raise InvalidSettings(
            problem, "no-placement", files.url, expected=expected, found=found, hint=CONVERT
        )


def _download_checked(files: RemoteFiles, folder: Path, options: AddOptions) -> None:
    """Download objects; of several shards, the others come only if the first one can be added.

    PrepareError if the temporary folder has no space for them.
    """
    temporary = tempfile.gettempdir()
    needed, free = _bytes(files), shutil.disk_usage(temporary).free
    if needed > free:
        problem, expected = "the objects are downloaded once, to hash them", f"{bytes_text(needed)} free"
        found, hint = bytes_text(free), "set TMPDIR to a folder with more space"
        raise PrepareError(problem, "disk-full", temporary, expected=expected, found=found, hint=hint)
    rest = dict(files.objects)
    if len(rest) > 1 and any(all(name.endswith(suffix) for name in rest) for suffix in SHARDS):
        first = next(iter(rest))
        _download(RemoteFiles(files.url, {first: rest.pop(first)}), folder, options.progress)
        form = formats.parse(options.format or detect(folder / first, "--format").variant)
        data = UntrustedData(folder / first, form.variant, (folder / first).stat().st_size)
        quiet = dataclasses.replace(options, warn=lambda note: None)
        options.accept(data, _described(data, quiet).schema)  # raises as `add_files` would for all
    _download(RemoteFiles(files.url, rest), folder, options.progress)


def _download(files: RemoteFiles, folder: Path, progress: Progress) -> None:
    """Download objects; PrepareError if the disk fails, SourceError if one is no longer as it was listed."""
    temporary = tempfile.gettempdir()
    hint = "check the names of the objects and the free space, or set TMPDIR to another folder"
    try:
        with system_errors_as(PrepareError, "an object cannot be copied", temporary, hint=hint, exact=True):
            folder.mkdir(parents=True, exist_ok=True)
            download(files, folder, progress)
    except CorruptArtifact as error:
        if error.kind not in CHANGED:
            raise
        problem = "changed while it was downloaded"
        raise error.converted(SourceError).changed(
            kind="changed", problem=problem, hint=CLOSE_WRITERS
        ) from None


@contextmanager
def _naming(copy: Path, address: str) -> Iterator[None]:
    """Name the objects in errors, in place of their copy, which is gone when they are read."""
    try:
        yield
    except IobenchError as error:
        if error.path is not None and Path(error.path).is_relative_to(copy):
            error.path = address.rstrip("/") + error.path.removeprefix(str(copy))
        if error.kind == "unequal-shapes" or str(copy) in (error.hint or ""):  # options for files on a disk
            error.hint = CONVERT
        raise


def _check_ranges(place: str, data: UntrustedData, schema: Schema) -> None:
    """Raise InvalidSettings, before anything is hashed, if neither ranges nor a library give rows there."""
    placed: Collection[str] = ()
    if read_by_library(formats.parse(data.kind), place):
        placed = [field.name for field in schema.fields]
    elif not schema.ragged:
        placed = sandbox.placed(data, schema)
    check_ranges(schema, placed, f"add of objects in format {data.kind}", CONVERT)


def _bytes(files: RemoteFiles) -> int:
    return sum(one.size for one in files.objects.values())


def _registered(
    local: Manifest, variant: str, files: RemoteFiles, base: Path, address: str, root: Path, overwrite: bool
) -> Manifest:
    """Save manifest and indexes of the objects, of which `local` describes the copy below `base`."""
    with local.opener(variant)() as reader:
        places, arrays = stored_places(reader.placement(), base)
    stamps = {n: FileStamp(one.size, (base / n).stat().st_mtime_ns) for n, one in files.objects.items()}
    etags = {n: one.etag for n, one in files.objects.items()}
    artifact = msgspec.structs.replace(
        local.artifacts[variant],
        stored_bytes=_bytes(files),
        files=stamps,
        folder=f"{variant}-{new_generation()}",
        added=None,
        remote=manifest_file.RemoteData(etags, places, added=address),
    )
    source = {**local.source, "path": address}
    made = dataclasses.replace(local, root=root, url=files.url, source=source, artifacts={variant: artifact})
    hashes = Path(f"{local.index_path(variant)}.{verify.NAME}")
    with os_errors(root), locked(root):
        _check_free(root, overwrite)
        sweep_and_load(root, overwrite)
        index = made.index_path(variant)
        before = {path.stem for path in index.parent.glob("*")}
        try:
            if arrays:
                index_of(index)(PLACES, lambda: [arrays])
            if hashes.is_file():
                index.parent.mkdir(exist_ok=True)
                shutil.copyfile(hashes, f"{index}{hashes.suffix}")
            check_places(made, variant)
            manifest_file.parse(manifest_file.encoded(made.body()), root / FILE_NAME)
            made.save()
        except BaseException:
            index_cache.sweep(root, before)
            raise
        made.sweep()
    return made


def add(
    path: str | Path,
    format: str | None = None,
    *,
    files: str | None = None,
    name: str | None = None,
    fields: Sequence[Field] = (),
    data_dir: str | Path = Path("data"),
    overwrite: bool = False,
    hash: str = "auto",
    hash_s: float = PART_S,
    progress: Progress = no_progress,
    warn: Callable[[Finding], None] = lambda finding: None,
) -> tuple[Manifest, Prepared]:
    """Add existing data to a dataset where they lie, after hashing their samples once.

    Parameters
    ----------
    path : str or Path
        File, folder, or address like s3://bucket/train/, as a string, of an object or of those below it,
        which are downloaded once; may end in `::NAME,NAME` to select arrays.
    format : str, optional
        Format with options; by default the one that recognizes the data.
    files : str, optional
        Relation of the files in a folder: each is one of the ``samples``, holds several of them (``parts``),
        or is one of the ``fields``; by default inferred, which a warning says.
    name : str, optional
        Name of the dataset; by default made from the path.
    fields : sequence of Field
        Fields of data that do not describe themselves.
    data_dir : str or Path
        Folder of all datasets.
    overwrite : bool
        Replace the data of an existing dataset.
    hash : str
        ``full`` for every sample; ``auto`` for a part of large data, see `verify`.
    hash_s : float
        Seconds for hashing, with ``auto``: of data that would take longer, a part is hashed.
    progress : callable
        Called with the activity, the bytes done and the bytes in total.
    warn : callable
        Called with each warning about the data.

    Returns
    -------
    manifest : Manifest
        The dataset.
    row : Prepared
        The new artifact.

    Raises
    ------
    SourceError
        If there are no such data, or they cannot be read, or change meanwhile.
    ArtifactExists
        If the dataset holds other data and `overwrite` is not given.
    InvalidSettings
        If an address is invalid, or rows of the format cannot be read by ranges of its objects.
    PrepareError
        If the temporary folder has no space for the objects.
    LoaderFailed, CorruptArtifact
        If the store refuses or does not answer, or there is no such bucket.
    """
    options = AddOptions(format, name, fields, data_dir, overwrite, hash, hash_s, progress, warn, files)
    return add_remote(str(path), options) if is_url(str(path)) else add_files(path, options)
