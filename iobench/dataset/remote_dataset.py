"""Datasets in an object store: opened, with their indexes cached, and uploaded, the manifest last."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np

from iobench.base.errors import ArtifactExists, CorruptArtifact, InvalidSettings, IobenchError, ManifestError
from iobench.base.files import replace_file, system_errors_as
from iobench.dataset import index_cache, manifest_file, verify
from iobench.dataset.manifest import Manifest, find_dataset
from iobench.dataset.manifest_file import FILE_NAME, Artifact, ManifestBody, RemoteData, StoredPlacement
from iobench.dataset.opener import PLACES, check_ranges, index_of, read_by_library, stored_places
from iobench.dataset.verify import Progress, no_progress
from iobench.formats import Chunked, Listed, Placement
from iobench.formats.placement import bounding_rows
from iobench.objects.client import CONNECTIONS, ObjectStore, check_versions_are_own
from iobench.objects.url import checked_url, is_url, upload_command

FOLDER = ".objects"  # of DATA_DIR, with one folder per address


def dataset_named(data_dir: Path, name: str | None) -> Manifest:
    """Load a dataset by name or address, or the newest in a folder; raises ManifestError if there is none."""
    return open_dataset(name, data_dir) if name is not None and is_url(name) else find_dataset(data_dir, name)


def dataset_at(place: str | Path, data_dir: Path) -> Manifest:
    """Load the dataset in a folder or at an address; raises ManifestError if there is none."""
    return open_dataset(place, data_dir) if isinstance(place, str) and is_url(place) else Manifest.load(place)


def open_dataset(address: str, data_dir: Path) -> Manifest:
    """Load the manifest of a dataset in an object store, and cache it with the indexes in `data_dir`.

    Objects whose version is not recorded are pinned to their present one.

    InvalidSettings or MissingDependency if the address is invalid, or obstore is not installed. ManifestError
    if there is no dataset, its manifest is damaged, or it cannot be cached. LoaderFailed or CorruptArtifact
    if the store refuses or does not answer, or an object is missing or of another size.
    """
    url = checked_url(address)
    store = ObjectStore(url)
    body = _body(store)
    name = re.sub(r"[^A-Za-z0-9]+", "-", url.partition("://")[2]).strip("-")[-80:]
    root = data_dir / FOLDER / f"{name}-{zlib.crc32(url.encode()):08x}"
    with system_errors_as(ManifestError, "cannot be written", root, hint="use another --data-dir"):
        (root / index_cache.FOLDER).mkdir(parents=True, exist_ok=True)
        for artifact in body.artifacts.values():
            for index in artifact.remote.indexes if artifact.remote else ():
                path = f"{index_cache.FOLDER}/{artifact.folder}.{index}"
                replace_file(root / path, store.read(path))
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            artifacts = {v: _pinned(store, artifact, pool) for v, artifact in body.artifacts.items()}
        manifest_file.write(root, msgspec.structs.replace(body, url=url, artifacts=artifacts))
    manifest = Manifest.load(root)
    for variant in manifest.artifacts:
        check_places(manifest, variant)
    return manifest


def _body(store: ObjectStore) -> ManifestBody:
    try:
        body = manifest_file.parse(store.read(FILE_NAME), f"{store.url}/{FILE_NAME}")
    except CorruptArtifact as error:
        if error.kind == "missing-bucket":
            raise error.converted(ManifestError) from None
        hint = f"make one with {upload_command(store.url)}, or 'iobench add' data that are there"
        raise ManifestError("there is no dataset", "no-dataset", store.url, hint=hint) from None
    if not body.artifacts or any(one.remote is None or one.external for one in body.artifacts.values()):
        problem = "a dataset that was copied there, without the places of its rows"
        raise ManifestError(
            problem, "not-uploaded", store.url, hint=f"upload it with {upload_command(store.url)}"
        )
    return body


def _pinned(store: ObjectStore, artifact: Artifact, pool: ThreadPoolExecutor) -> Artifact:
    """Return the artifact with a version for each object, as far as the server gives one."""
    remote = artifact.remote
    assert remote is not None
    unknown = [name for name, etag in remote.etags.items() if not etag]
    etags = dict(remote.etags)
    for name, one in zip(
        unknown, pool.map(lambda n: store.head(f"{artifact.folder}/{n}"), unknown), strict=True
    ):
        if one.size != artifact.files[name].bytes:
            raise CorruptArtifact(
                kind="wrong-size",
                path=f"{store.url}/{artifact.folder}/{name}",
                expected=f"{artifact.files[name].bytes} bytes",
                found=f"{one.size} bytes",
            )
        etags[name] = one.etag
    check_versions_are_own(store.url, etags.values())
    return msgspec.structs.replace(artifact, remote=msgspec.structs.replace(remote, etags=etags))


def check_places(manifest: Manifest, variant: str) -> None:
    """Raise CorruptArtifact if the places of an artifact's rows are not inside its objects.

    A format whose library reads at the address needs none.
    """
    opener, artifact = manifest.opener(variant), manifest.artifacts[variant]
    remote = opener.remote
    assert remote is not None
    if not remote.placed and read_by_library(opener.format, manifest.url):
        return
    placements, samples = remote.placements(), manifest.schema.samples
    for field in manifest.schema.fields:
        place = placements.get(field.name)
        if place is None or not _inside(place, samples, field.sample_bytes, artifact):
            problem = f"{variant}: rows of field {field.name} lie outside its objects"
            hint = manifest.location_of(variant).hint
            raise CorruptArtifact(problem, "misplaced-rows", manifest.url, hint=hint)


def _inside(place: Placement, samples: int, sample_bytes: int, artifact: Artifact) -> bool:
    """Return whether all samples lie in the artifact's files."""
    sizes = np.array([artifact.files[str(file)].bytes for file in place.files])
    try:
        parts = (place.locate(rows) for rows in bounding_rows(place, samples))
        return _fits(place, samples) and all(
            ((file >= 0) & (offset >= 0) & (offset + sample_bytes <= sizes[file])).all()
            for file, offset in parts
        )
    except IndexError:
        return False


def _fits(place: Placement, samples: int) -> bool:
    """Return False if a placement cannot be one of so many samples, whatever the sizes of the files."""
    if isinstance(place, Listed):
        return len(place.file) == len(place.offset) == samples
    if samples > 1 and getattr(place, "stride", 0) < 1:
        return False
    if not isinstance(place, Chunked):
        return True
    first = place.first
    alike = 0 < len(first) == len(place.file) == len(place.offset)
    return bool(alike and first[0] == 0 and first[-1] < samples and (np.diff(first) > 0).all())


def check_target(address: str, overwrite: bool) -> ObjectStore:
    """Return the store at an address; raises ArtifactExists if a dataset is there and may not be replaced."""
    store = ObjectStore(checked_url(address))
    if store.url.startswith(("http://", "https://")):
        expected = "a place that can be written: s3://, gs://, az:// or file://"
        hint = "write to the folder that the web server shows, with file://"
        raise InvalidSettings(f"--to {store.url}", "read-only", expected=expected, hint=hint)
    if not overwrite and store.find(FILE_NAME):
        raise ArtifactExists(
            "there is a dataset", kind="other-data", path=store.url, hint="use --overwrite to replace it"
        )
    return store


def publish(
    manifest: Manifest, store: ObjectStore, overwrite: bool, progress: Progress = no_progress
) -> None:
    """Upload every artifact, then list them.

    Objects of this upload have names that were never used. If it fails before the manifest is sent, they are
    removed; afterwards, with `overwrite`, those that the old manifest lists are.

    InvalidSettings, with nothing uploaded, if samples of a variant are not stored as they are in memory;
    ArtifactExists if a dataset is there already; LoaderFailed if the store refuses.
    """
    described = {variant: _described(manifest, variant, store.url) for variant in manifest.artifacts}
    old = _old_objects(store) if overwrite else []
    sent: list[str] = []
    try:
        uploaded = {v: _upload(manifest, v, d, store, sent, progress) for v, d in described.items()}
        body = dataclasses.replace(manifest, artifacts=uploaded).body()
    except BaseException:
        with contextlib.suppress(IobenchError):
            store.delete(sent)
        raise
    content = manifest_file.encoded(body)
    store.put(FILE_NAME, content, len(content), new=not overwrite)
    with contextlib.suppress(IobenchError):  # what is left is no longer listed
        store.delete([name for name in old if name not in sent])


def _described(manifest: Manifest, variant: str, url: str) -> RemoteData:
    """Return the places of a variant's rows, which are stored in an index file if there are any."""
    artifact, index = manifest.artifacts[variant], manifest.index_path(variant)
    opener, fields = manifest.opener(variant), dict[str, StoredPlacement]()
    by_library = read_by_library(opener.format, url)
    other = "give --format npy, or another without compression"
    with opener() as reader:
        placements = dict(reader.placement())
        hint = "prepare them on a disk" if manifest.schema.ragged else other
        placed = [field.name for field in manifest.schema.fields] if by_library else [*placements]
        check_ranges(manifest.schema, placed, f"--to with format {variant}", hint)
        if not by_library:
            fields, arrays = stored_places(placements, opener.path)
            if arrays:
                index_of(index)(PLACES, lambda: [arrays])
    names = [name for name in (PLACES, verify.NAME) if index.with_name(f"{index.name}.{name}").is_file()]
    return RemoteData(dict.fromkeys(artifact.files, ""), fields, tuple(names))


def _upload(
    manifest: Manifest,
    variant: str,
    remote: RemoteData,
    store: ObjectStore,
    sent: list[str],
    progress: Progress,
) -> Artifact:
    """Upload the files and indexes of a variant; return its entry with their versions."""
    artifact, index = manifest.artifacts[variant], manifest.index_path(variant)
    total = sum(stamp.bytes for stamp in artifact.files.values())
    done = 0

    def report(count: int) -> None:
        nonlocal done
        done += count
        progress(f"uploading {variant}", done, total)

    etags = {}
    for name in artifact.files:
        target = f"{artifact.folder}/{name}"
        sent.append(target)
        etags[name] = store.upload(target, manifest.path_of(variant) / name, report).etag
    for name in remote.indexes:
        path = index.with_name(f"{index.name}.{name}")
        sent.append(f"{index_cache.FOLDER}/{path.name}")
        store.upload(sent[-1], path, lambda count: None)
    return msgspec.structs.replace(artifact, remote=msgspec.structs.replace(remote, etags=etags))


def _old_objects(store: ObjectStore) -> list[str]:
    """Return the objects of the dataset that will be replaced; none if it is not one of iobench."""
    try:
        body = manifest_file.parse(store.read(FILE_NAME), f"{store.url}/{FILE_NAME}")
    except (CorruptArtifact, ManifestError):
        return []
    names = []
    for artifact in body.artifacts.values():
        names += [f"{artifact.folder}/{name}" for name in artifact.files]
        for index in artifact.remote.indexes if artifact.remote else ():
            names.append(f"{index_cache.FOLDER}/{artifact.folder}.{index}")
    return names
