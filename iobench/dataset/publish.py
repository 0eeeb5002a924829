"""Upload a prepared dataset to an object store: its files and indexes first, the manifest last."""

from __future__ import annotations

import contextlib
import dataclasses

import msgspec

from iobench.base.errors import ArtifactExists, CorruptArtifact, InvalidSettings, IobenchError, ManifestError
from iobench.dataset import index_cache, manifest_file, sample_hashes
from iobench.dataset.manifest import Manifest
from iobench.dataset.manifest_body import Artifact, RemoteData, StoredPlacement
from iobench.dataset.manifest_file import FILE_NAME
from iobench.dataset.placement_file import NAME, check_ranges, index_of, read_by_library, stored
from iobench.dataset.verify import Progress, no_progress
from iobench.objects.client import ObjectStore
from iobench.objects.url import checked_url


def check_target(address: str, overwrite: bool) -> ObjectStore:
    """Return the store at an address; raises ArtifactExists if a dataset is there and may not be replaced."""
    store = ObjectStore(checked_url(address))
    if store.url.startswith(("http://", "https://")):
        raise InvalidSettings(
            f"--to {store.url}",
            kind="read-only",
            expected="a place that can be written: s3://, gs://, az:// or file://",
            hint="write to the folder that the web server shows, with file://",
        )
    if not overwrite and store.exists(FILE_NAME):
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
            fields, arrays = stored(placements, opener.path)
            if arrays:
                index_of(index, artifact)(NAME, lambda: [arrays])
    names = [name for name in (NAME, sample_hashes.NAME) if index.with_name(f"{index.name}.{name}").is_file()]
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
