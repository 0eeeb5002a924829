"""Placements of rows as stored beside a manifest, so that they are known without the format's library."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from iobench.base.errors import CorruptArtifact, InvalidSettings
from iobench.base.text import listed
from iobench.dataset.index_cache import IndexCache
from iobench.dataset.manifest_body import Artifact, StoredPlacement
from iobench.formats import Addressable, Array, Chunked, Format, Listed, Placement, Schema, Strided
from iobench.objects.client import StoredObject
from iobench.objects.object_file import ObjectFile
from iobench.objects.reader import RangeReader, RemoteFiles

NAME = "placement"  # of the index

_ARRAYS = {"strided": (), "chunked": ("first", "file", "offset"), "listed": ("file", "offset")}


def read_by_library(format: Format, url: str) -> bool:
    """Return whether the library of a format reads at an address, so that its rows need no places."""
    return isinstance(format, Addressable) and format.reads_at(url)


def check_ranges(schema: Schema, placed: Collection[str], asked: str, hint: str) -> None:
    """Raise InvalidSettings if a field is not among those `placed`: `asked` needs rows at known places."""
    if schema.ragged:
        raise InvalidSettings(
            f"{asked}: samples that differ in length cannot be read by ranges yet",
            kind="ragged",
            expected="fields of fixed shape",
            found=", ".join(field.typed for field in schema.ragged),
            hint=hint,
        )
    if encoded := [field.name for field in schema.fields if field.name not in placed]:
        raise InvalidSettings(
            f"{asked}: it cannot be read by ranges yet",
            kind="no-placement",
            expected="samples that are stored as they are in memory",
            found=f"{listed(encoded)} stored encoded",
            hint=hint,
        )


def stored(
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


def restored(fields: Mapping[str, StoredPlacement], arrays: Mapping[str, Array]) -> dict[str, Placement]:
    """Return the placements that `stored` has taken apart; KeyError if an array is missing."""
    placements: dict[str, Placement] = {}
    for name, one in fields.items():
        files = tuple(map(Path, one.files))
        own: dict[str, Any] = {part: arrays[one.arrays[part]] for part in _ARRAYS[one.kind]}
        if one.kind == "strided":
            placements[name] = Strided(files, one.offset, one.stride)
        elif one.kind == "chunked":
            placements[name] = Chunked(files, stride=one.stride, **own)
        else:
            placements[name] = Listed(files, within=one.offset, **own)
    return placements


def index_of(path: Path, artifact: Artifact) -> IndexCache:
    """Return the cache with the arrays of an artifact's placements; a folder's name is used only once."""
    return IndexCache(path, lambda: f"placement of {artifact.folder}")


@dataclass(frozen=True)
class RemoteOpener:
    """Picklable opener of an artifact in an object store."""

    files: RemoteFiles  # its objects
    artifact: Artifact  # its entry in the manifest
    index: Path  # path of its cached indexes without their names

    @classmethod
    def of(cls, artifact: Artifact, url: str, index: Path) -> RemoteOpener | None:
        """Return the opener of an artifact; None if it is on a disk."""
        if not url or artifact.remote is None:
            return None
        etags = artifact.remote.etags
        objects = {name: StoredObject(stamp.bytes, etags[name]) for name, stamp in artifact.files.items()}
        address = url if artifact.external else f"{url}/{artifact.folder}"
        return cls(RemoteFiles(address, objects), artifact, index)

    @property
    def placed(self) -> bool:
        """True if rows are at known places; else the format's library reads them by a client of its own."""
        assert self.artifact.remote is not None
        return self.artifact.remote.placed

    def changed(self, **fields: Any) -> RemoteOpener:
        """Return it with other values of these fields of `files`."""
        return replace(self, files=replace(self.files, **fields))

    def placements(self) -> dict[str, Placement]:
        """Return where the fields' rows are; CorruptArtifact if the cached index is gone."""
        assert self.artifact.remote is not None
        fields = self.artifact.remote.placement
        needed = any(one.arrays for one in fields.values())
        arrays = index_of(self.index, self.artifact).cached(NAME) if needed else {}
        try:
            return restored(fields, arrays or {})
        except KeyError:
            raise CorruptArtifact(
                "the cached places of its rows are missing or damaged",
                kind="missing-index",
                path=self.index.parent,
                hint=f"{'add' if self.artifact.external else 'open'} the dataset again by its address",
            ) from None

    def open(self, schema: Schema) -> RangeReader:
        """Open a reader of whole batches by ranges."""
        return RangeReader(schema, self.placements(), self.files)

    def file(self, name: str) -> ObjectFile:
        """Open one of its objects as a file that is read from its first byte to its last."""
        return ObjectFile(self.files, name)
