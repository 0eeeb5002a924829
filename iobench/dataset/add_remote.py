"""Add objects that other programs wrote: download them once, describe and hash them, list where they lie.

Nothing is written to the store. The copy is removed; the dataset's folder holds the manifest, with the
versions of the objects, and the places of the rows, by which they are read from then on.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath

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
from iobench.base.units import bytes_text, counted
from iobench.dataset import index_cache, manifest_file, sample_hashes, sandbox, seal
from iobench.dataset.add_files import AddOptions, add_files, check_shard
from iobench.dataset.artifact_writer import Prepared
from iobench.dataset.dataset_folders import check_name
from iobench.dataset.manifest import Manifest
from iobench.dataset.manifest_body import Artifact, FileStamp, RemoteData
from iobench.dataset.manifest_file import FILE_NAME
from iobench.dataset.placement_file import NAME, check_ranges, index_of, read_by_library, stored
from iobench.dataset.prepare import sweep_and_load
from iobench.dataset.remote_dataset import check_places
from iobench.dataset.sources import default_name
from iobench.dataset.sources._regular_files import CLOSE_WRITERS
from iobench.dataset.staging import locked, new_generation, os_errors
from iobench.dataset.untrusted_data import UntrustedData
from iobench.dataset.verify import Progress
from iobench.formats import Schema, with_selection
from iobench.objects.download import download, find
from iobench.objects.reader import RemoteFiles

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
    return made, dataclasses.replace(row, artifact=_sized(row.artifact, files))


def _split_selection(address: str) -> tuple[str, tuple[str, ...]]:
    """Split ``ADDRESS::NAME,NAME`` into the address and the names of the selected arrays, if any."""
    below = address.partition("://")[2].partition("/")[2]  # a host may be [::1]
    _, separator, names = below.rpartition("::")
    if not separator:
        return address, ()
    return address.removesuffix(f"::{names}"), tuple(name.strip("/") for name in names.split(","))


def _check_free(root: Path, overwrite: bool) -> None:
    if not overwrite and os.path.lexists(root / FILE_NAME):
        raise ArtifactExists(
            "there is a dataset of that name",
            kind="other-data",
            path=root,
            hint="use another --name, or --overwrite to replace it; added data stay",
        )


def _check_decoded(files: RemoteFiles) -> None:
    """Raise InvalidSettings, before anything is downloaded, if most objects are files of images or sounds."""
    decoded = [name for name in files.objects if name.lower().endswith(DECODED)]
    if 2 * len(decoded) > len(files.objects):
        raise InvalidSettings(
            "add of images or sounds in a file each: they cannot be read by ranges",
            kind="no-placement",
            path=files.url,
            expected="samples that are stored as they are in memory",
            found=f"{counted(len(decoded), 'object')} like {decoded[0]}",
            hint=CONVERT,
        )


def _download_checked(files: RemoteFiles, folder: Path, options: AddOptions) -> None:
    """Download objects; of several shards, the others come only if the first one can be added."""
    _check_space(files)
    rest = dict(files.objects)
    if len(rest) > 1 and any(all(name.endswith(suffix) for name in rest) for suffix in SHARDS):
        first = next(iter(rest))
        _download(RemoteFiles(files.url, {first: rest.pop(first)}), folder, options.progress)
        check_shard(folder / first, options)
    _download(RemoteFiles(files.url, rest), folder, options.progress)


def _check_space(files: RemoteFiles) -> None:
    """Raise PrepareError if the temporary folder has no space for the objects."""
    temporary = tempfile.gettempdir()
    needed, free = _bytes(files), shutil.disk_usage(temporary).free
    if needed > free:
        raise PrepareError(
            "the objects are downloaded once, to hash them",
            kind="disk-full",
            path=temporary,
            expected=f"{bytes_text(needed)} free",
            found=bytes_text(free),
            hint="set TMPDIR to a folder with more space",
        )


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


def _sized(artifact: Artifact, files: RemoteFiles) -> Artifact:
    """Return an artifact with the size of the objects in place of that of their copy on a disk."""
    return msgspec.structs.replace(artifact, stored_bytes=_bytes(files))


def _bytes(files: RemoteFiles) -> int:
    return sum(one.size for one in files.objects.values())


def _registered(
    local: Manifest, variant: str, files: RemoteFiles, base: Path, address: str, root: Path, overwrite: bool
) -> Manifest:
    """Save manifest and indexes of the objects, of which `local` describes the copy below `base`."""
    with local.opener(variant)() as reader:
        places, arrays = stored(reader.placement(), base)
    stamps = {n: FileStamp(one.size, (base / n).stat().st_mtime_ns) for n, one in files.objects.items()}
    artifact = msgspec.structs.replace(
        _sized(local.artifacts[variant], files),
        files=stamps,
        folder=f"{variant}-{new_generation()}",
        added=None,
        remote=RemoteData({n: one.etag for n, one in files.objects.items()}, places, added=address),
    )
    source = {**local.source, "path": address}
    made = dataclasses.replace(local, root=root, url=files.url, source=source, artifacts={variant: artifact})
    hashes = Path(f"{local.index_path(variant)}.{sample_hashes.NAME}")
    with os_errors(root), locked(root):
        _check_free(root, overwrite)
        sweep_and_load(root, overwrite)
        index = made.index_path(variant)
        before = {path.stem for path in index.parent.glob("*")}
        try:
            if arrays:
                index_of(index, artifact)(NAME, lambda: [arrays])
            if hashes.is_file():
                index.parent.mkdir(exist_ok=True)
                shutil.copyfile(hashes, f"{index}{hashes.suffix}")
            check_places(made, variant)
            manifest_file.parse(manifest_file.encoded(made.body()), root / FILE_NAME)
            made.save()
        except BaseException:
            index_cache.sweep(root, before)
            raise
        seal.sweep(root, made.folders)
        index_cache.sweep(root, made.folders)
    return made
