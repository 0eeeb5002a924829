"""Open a dataset in an object store: its manifest and small indexes are cached, its rows stay there."""

from __future__ import annotations

import re
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np

from iobench.base.errors import CorruptArtifact, ManifestError
from iobench.base.files import replace_file, system_errors_as
from iobench.dataset import index_cache, manifest_file
from iobench.dataset.dataset_folders import find_dataset
from iobench.dataset.manifest import Manifest
from iobench.dataset.manifest_body import Artifact, ManifestBody
from iobench.dataset.manifest_file import FILE_NAME
from iobench.dataset.placement_file import read_by_library
from iobench.objects.client import CONNECTIONS, ObjectStore
from iobench.objects.url import checked_url, is_url

FOLDER = ".objects"  # of DATA_DIR, with one folder per address
PIECE_ROWS = 1 << 20


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
        hint = f"make one with 'iobench prepare --to {store.url}', or 'iobench add' data that are there"
        raise ManifestError("there is no dataset", kind="no-dataset", path=store.url, hint=hint) from None
    if not body.artifacts or any(one.remote is None or one.external for one in body.artifacts.values()):
        raise ManifestError(
            "a dataset that was copied there, without the places of its rows",
            kind="not-uploaded",
            path=store.url,
            hint="upload it with 'iobench prepare --to'",
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
        if (place := placements.get(field.name)) is None:
            raise _misplaced(manifest, variant, field.name)
        sizes = np.array([artifact.files[str(file)].bytes for file in place.files])
        for low in range(0, samples, PIECE_ROWS):
            try:
                file, offset = place.locate(np.arange(low, min(low + PIECE_ROWS, samples)))
                inside = (file >= 0) & (offset >= 0) & (offset + field.sample_bytes <= sizes[file])
            except IndexError:
                raise _misplaced(manifest, variant, field.name) from None
            if not inside.all():
                raise _misplaced(manifest, variant, field.name)


def _misplaced(manifest: Manifest, variant: str, field: str) -> CorruptArtifact:
    return CorruptArtifact(
        f"{variant}: rows of field {field} lie outside its objects",
        kind="misplaced-rows",
        path=manifest.url,
        hint=manifest.location_of(variant).hint,
    )
