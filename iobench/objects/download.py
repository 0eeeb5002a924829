"""Find the objects at an address that other programs wrote, and download them in the versions found."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from urllib.parse import unquote

from iobench.base.errors import CorruptArtifact, InvalidSettings, SourceError
from iobench.base.files import name_problem, path_below
from iobench.base.text import shortened
from iobench.base.units import bytes_text, counted
from iobench.objects.client import CONNECTIONS, ObjectStore, StoredObject, check_versions_are_own
from iobench.objects.reader import RemoteFiles
from iobench.objects.store_errors import endpoint_of
from iobench.objects.url import checked_url

MOST_OBJECTS = 100_000  # a manifest lists them all
PIECE_BYTES = 8 << 20

Report = Callable[[str, int, int], None]  # (activity, bytes done, in total); of an unknown total it is 0


def find(address: str, report: Report) -> RemoteFiles:
    """Return the object at an address, or all below it; empty ones, such as markers of folders, are left out.

    InvalidSettings if the address is invalid, or of a folder here. SourceError if nothing is there, or too
    much.
    """
    url = checked_url(address)
    if url.startswith("file://"):
        raise InvalidSettings(
            f"address {url}", kind="local-path", hint=f"give the path: {unquote(url.removeprefix('file://'))}"
        )
    parent, _, last = url.rpartition("/")
    if not address.endswith("/") and not parent.endswith("/"):  # or it is a whole bucket
        name = _checked(unquote(last), address)
        if (one := ObjectStore(parent).find(name)) is not None and one.size:
            check_versions_are_own(url, [one.etag])
            return RemoteFiles(parent, {name: one})
    if url.startswith(("http://", "https://")):
        problem = "there is no such object, and a web server does not list its folders"
        raise SourceError(problem, "missing-object", address, hint="give the address of one file")
    return RemoteFiles(url, _below(url, report))


def _below(url: str, report: Report) -> dict[str, StoredObject]:
    objects: dict[str, StoredObject] = {}
    listed = 0
    for number, (name, one) in enumerate(ObjectStore(url).below()):
        if one.size:
            objects[_checked(name, url)] = one
        if number == MOST_OBJECTS:
            problem, expected = "too many objects below the prefix", f"at most {MOST_OBJECTS:,}"
            hint = "name a smaller prefix, or pack the samples into shards with 'iobench prepare --to'"
            raise SourceError(problem, "too-many-objects", url, expected=expected, hint=hint)
        listed += one.size
        report(f"listing {url}", listed, 0)
    if not objects:
        problem = "there is no object below the prefix, or only empty ones"
        raise SourceError(problem, "empty", url, hint=f"check the address{endpoint_of(url)}")
    check_versions_are_own(url, [one.etag for one in objects.values()])
    return dict(sorted(objects.items()))


def _checked(name: str, address: str) -> str:
    """Return the name of an object if it can be that of a file; else raise CorruptArtifact."""
    if problem := name_problem(name):
        found, hint = f"{problem}: {shortened(repr(name))}", "rename the object, or name a prefix without it"
        raise CorruptArtifact(
            "the name of an object cannot be one of a file", "invalid-name", address, found=found, hint=hint
        )
    return name


def download(files: RemoteFiles, folder: Path, report: Report) -> None:
    """Write the objects below a folder; the first error, or Ctrl-C, ends the requests in flight.

    Raises as ObjectStore.get does, and OSError.
    """
    store, total, done = ObjectStore(files.url), sum(one.size for one in files.objects.values()), 0

    def fetch(name: str, start: int, length: int, etag: str) -> int:
        with open(path_below(folder, name), "r+b") as file:
            return os.pwrite(file.fileno(), store.get(name, start, length, etag), start)

    for name in files.objects:
        path = path_below(folder, name, files.url)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(exist_ok=False)
        except (FileExistsError, NotADirectoryError):
            raise SourceError(
                "two objects would be one file here: one is a folder of the other, or only the case differs",
                "name-clash",
                f"{files.url}/{name}",
                hint="rename one, or name a prefix without it",
            ) from None
    activity = f"downloading {counted(len(files.objects), 'object')}, {bytes_text(total)}, from {files.url}"
    report(activity, 0, total)
    with ThreadPoolExecutor(CONNECTIONS, "iobench-download") as pool:
        futures = [
            pool.submit(fetch, name, start, min(PIECE_BYTES, one.size - start), one.etag)
            for name, one in files.objects.items()
            for start in range(0, one.size, PIECE_BYTES)
        ]
        try:
            for future in as_completed(futures):
                done += future.result()
                report(activity, done, total)
        finally:
            store.stopping = True
            pool.shutdown(cancel_futures=True)
