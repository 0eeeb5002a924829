"""Openers of artifacts, which travel to workers in place of open readers; placements of rows in a store.

The placements of rows are stored beside a manifest, so that they are known without the format's library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from iobench import formats
from iobench.base.errors import CorruptArtifact, InvalidSettings
from iobench.base.text import listed
from iobench.dataset.index_cache import IndexCache, stamp_of
from iobench.dataset.manifest_file import Artifact, RemoteData, StoredPlacement
from iobench.formats import Addressable, Array, Checkable, Chunked, Format, Placement, Reader, Schema, Strided
from iobench.formats.reader import FirstRows
from iobench.host.maps import guarded
from iobench.objects.cache import ObjectCache
from iobench.objects.client import ObjectStore, StoredObject
from iobench.objects.reader import ObjectFile, RangeReader, RemoteFiles
from iobench.objects.request_log import WorkerLog
from iobench.objects.url import store_address

PLACES = "placement"  # of the index

_ARRAYS = {"strided": (), "chunked": ("first", "file", "offset"), "listed": ("file", "offset")}


def read_by_library(format: Format, url: str) -> bool:
    """Return whether the library of a format reads at an address, so that its rows need no places."""
    return isinstance(format, Addressable) and format.reads_at(url)


def check_ranges(schema: Schema, placed: Collection[str], asked: str, hint: str) -> None:
    """Raise InvalidSettings if a field is not among those `placed`: `asked` needs rows at known places."""
    if schema.ragged:
        problem = f"{asked}: samples that differ in length cannot be read by ranges yet"
        found = ", ".join(field.typed for field in schema.ragged)
        raise InvalidSettings(problem, "ragged", expected="fields of fixed shape", found=found, hint=hint)
    if encoded := [field.name for field in schema.fields if field.name not in placed]:
        problem = f"{asked}: it cannot be read by ranges yet"
        expected, found = "samples that are stored as they are in memory", f"{listed(encoded)} stored encoded"
        raise InvalidSettings(problem, "no-placement", expected=expected, found=found, hint=hint)


def stored_places(
    placements: Mapping[str, Placement], folder: Path
) -> tuple[dict[str, StoredPlacement], dict[str, Array]]:
    """Return placements without their arrays, and the arrays by name; fields may share an array."""
    arrays: dict[int, tuple[str, Array]] = {}
    fields = {}
    for name, place in placements.items():
        kind = type(place).__name__.lower()
        own = {}
        for part in _ARRAYS[kind]:
            array = getattr(place, part)
            own[part] = arrays.setdefault(id(array), (f"a{len(arrays)}", array))[0]
        fields[name] = StoredPlacement(
            kind=cast("Any", kind),  # the names of the classes
            files=tuple(str(file.relative_to(folder)) for file in place.files),
            offset=place.offset if isinstance(place, Strided) else getattr(place, "within", 0),
            stride=getattr(place, "stride", 0),
            arrays=own,
        )
    return fields, dict(arrays.values())


def index_of(path: Path) -> IndexCache:
    """Return the cache with the arrays of an artifact's placements; a folder's name is used only once."""
    return IndexCache(path, lambda: f"placement of {path.name}")


@dataclass(frozen=True)
class RemoteOpener:
    """Picklable opener of an artifact in an object store."""

    files: RemoteFiles  # its objects
    data: RemoteData  # their entry in the manifest
    index: Path  # path of its cached indexes without their names

    @classmethod
    def of(cls, artifact: Artifact, url: str, index: Path, until: float) -> RemoteOpener | None:
        """Return the opener of an artifact, `until` as in `RemoteFiles`; None if it is on a disk."""
        if not url or artifact.remote is None:
            return None
        etags = artifact.remote.etags
        objects = {name: StoredObject(stamp.bytes, etags[name]) for name, stamp in artifact.files.items()}
        address = url if artifact.external else f"{url}/{artifact.folder}"
        return cls(RemoteFiles(address, objects, until=until), artifact.remote, index)

    @property
    def placed(self) -> bool:
        """True if rows are at known places; else the format's library reads them by a client of its own."""
        return self.data.placed

    def changed(self, **fields: Any) -> RemoteOpener:
        """Return it with other values of these fields of `files`."""
        return replace(self, files=replace(self.files, **fields))

    def placements(self) -> dict[str, Placement]:
        """Return where the fields' rows are; CorruptArtifact if the cached index is gone."""
        fields, placements = self.data.placement, dict[str, Placement]()
        needed = any(one.arrays for one in fields.values())
        arrays = (index_of(self.index).cached(PLACES) if needed else None) or {}
        known = {name for name, array in arrays.items() if np.can_cast(array.dtype, np.int64)}
        for name, one in fields.items():
            if not known.issuperset(one.arrays.get(part, "") for part in _ARRAYS[one.kind]):
                problem = "the cached places of its rows are missing or damaged"
                hint = f"{'add' if self.data.added else 'open'} the dataset again by its address"
                raise CorruptArtifact(problem, "missing-index", self.index.parent, hint=hint)
            own: dict[str, Any] = {part: arrays[one.arrays[part]] for part in _ARRAYS[one.kind]}
            files = tuple(map(Path, one.files))
            if one.kind == "strided":
                placements[name] = Strided(files, one.offset, one.stride)
            elif one.kind == "chunked":
                placements[name] = Chunked(files, stride=one.stride, **own)
            else:
                placements[name] = formats.Listed(files, within=one.offset, **own)
        return placements

    def open(self, schema: Schema) -> RangeReader:
        """Open a reader of whole batches by ranges."""
        return RangeReader(schema, self.placements(), self.files)

    def file(self, name: str) -> ObjectFile:
        """Open one of its objects as a file that is read from its first byte to its last."""
        return ObjectFile(self.files, name)


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
        if self.remote is not None and self.remote.placed:
            return self.remote.open(self.schema)
        if self.remote is not None:
            assert isinstance(self.format, Addressable)  # checked by `check_places`
            files = self.remote.files
            return self.format.open_at(store_address(files.url, files.objects), self.schema)
        reader = self.format.open(self.path, self.stored_schema, self.random)
        reader.load_or_build = self.index_cache
        return reader if self.stored is None else FirstRows(reader, self.schema)

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
        """Guard the maps of the files during the block; see `host.maps.guarded`."""
        return guarded(self.path, self.empty_page)

    @property
    def forkable(self) -> bool:
        """True if a process may fork after it has opened a reader: not with a client of an object store."""
        return self.format.forkable and self.remote is None

    @property
    def empty_page(self) -> bytes:
        """Page that replaces one that a map has lost."""
        return self.format.empty_page if isinstance(self.format, Checkable) else b""
