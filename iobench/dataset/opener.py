"""Opener of an artifact: what travels to a worker in place of an open reader."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from iobench.base.errors import InvalidSettings
from iobench.dataset.index_cache import IndexCache, stamp_of
from iobench.dataset.placement_file import RemoteOpener
from iobench.formats import Addressable, Checkable, FirstRows, Format, Reader, Schema
from iobench.host.bus_errors import guarded
from iobench.objects.client import ObjectStore
from iobench.objects.piece_cache import ObjectCache
from iobench.objects.request_log import WorkerLog
from iobench.objects.url import store_address


@dataclass(frozen=True)
class Opener:
    """Picklable callable that opens a reader of an artifact, in any process."""

    format: Format
    path: Path
    schema: Schema
    random: bool = False  # whether rows will be requested in random order
    index: Path | None = None  # path of the cached indexes without their names; see `index_cache`
    stored: Schema | None = None  # schema of the files, if this one has only their first samples
    remote: RemoteOpener | None = field(default=None, hash=False)  # if it is in an object store
    index_end: float = math.inf  # moment of `time.monotonic` at which building of an index ends

    def __call__(self) -> Reader:
        """Open a new reader."""
        if self.remote is not None:
            return self._open_remote(self.remote)
        reader = self.format.open(self.path, self.stored_schema, self.random)
        reader.load_or_build = self.index_cache
        return reader if self.stored is None else FirstRows(reader, self.schema)

    def _open_remote(self, remote: RemoteOpener) -> Reader:
        if remote.placed:
            return remote.open(self.schema)
        assert isinstance(self.format, Addressable)  # checked by `check_places`
        return self.format.open_at(store_address(remote.files.url, remote.files.objects), self.schema)

    @property
    def stored_schema(self) -> Schema:
        """Schema of all that the files hold."""
        return self.stored or self.schema

    @property
    def index_cache(self) -> IndexCache:
        """Cache of the indexes of the artifact's present files."""
        return IndexCache(
            self.index,
            lambda: stamp_of(self.path, f"{self.format.variant} {self.stored_schema}"),
            self.index_end,
        )

    def caching(self, cache: ObjectCache) -> Opener:
        """Return it with a cache of what it reads of objects; InvalidSettings if the dataset is on a disk."""
        if self.remote is None:
            raise InvalidSettings(
                "an object cache for a dataset on a disk", kind="no-object-store", hint="leave it out"
            )
        return replace(self, remote=self.remote.changed(cache=cache))

    def logging(self, log: WorkerLog | None) -> Opener:
        """Return it with a log of the requests of workers, where it reads an object store."""
        return self if self.remote is None else replace(self, remote=self.remote.changed(log=log))

    def check(self) -> None:
        """Raise CorruptArtifact for damage that would crash a reader, OSError if the disk fails."""
        if isinstance(self.format, Checkable) and self.remote is None:
            with self.guarded() as check:
                self.format.check(self.path, self.stored_schema)
                check()

    def check_versions(self, schemes: Collection[str]) -> None:
        """Raise CorruptArtifact if objects were replaced or removed that were read without versions.

        That is at an address of these schemes, and where the format's library reads.
        """
        if self.remote is None:
            return
        files = self.remote.files
        if not self.remote.placed or files.url.partition("://")[0] in schemes:
            ObjectStore(files.url).check_versions(files.objects)

    def guarded(self) -> AbstractContextManager[Callable[[], None]]:
        """Guard the maps of the files during the block; see `host.bus_errors.guarded`."""
        return guarded(self.path, self.empty_page)

    @property
    def forkable(self) -> bool:
        """True if a process may fork after it has opened a reader: not with a client of an object store."""
        return self.format.forkable and self.remote is None

    @property
    def empty_page(self) -> bytes:
        """Page that replaces one that a map has lost."""
        return self.format.empty_page if isinstance(self.format, Checkable) else b""
