"""What stands in a manifest, with the types and ranges that make it one, and what has to agree in it.

Version 2 adds to version 1 the folder of each artifact and the logical bytes of the whole, which
say exactly whether schema and data belong together, whatever a format compresses. A manifest of
version 1 is read as one whose artifacts lie in folders named like their variants. Version 3 adds
artifacts that others wrote and that lie elsewhere.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import PurePosixPath
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from iobench.formats import Field, Schema

DIMENSIONS = 32  # of one field with its axis of samples: what HDF5 stores
NAME_BYTES = 255  # of a file's name on nearly every file system
PATH_BYTES = 4096
NESTING = 16  # of what a source says of itself
VERSION_1_RATIO = 4096  # its formats compress no better: gzip reaches 1032, lz4 255

_VARIANT = re.compile(r"[a-z][A-Za-z0-9._:=,+-]*")
_MOST = (1 << 63) - 1

Count = Annotated[int, Meta(ge=1, le=_MOST)]
Bytes = Annotated[int, Meta(ge=0, le=_MOST)]
Seconds = Annotated[float, Meta(ge=0, le=1e15)]  # which infinity and NaN are not
Hash = Annotated[str, Meta(pattern=r"^[0-9a-fA-F]{1,16}$")]
Text = Annotated[str, Meta(pattern=r"^[^\x00-\x1f\ud800-\udfff]*$", max_length=1024)]


class FileStamp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Size and time of change of a data file when it was verified."""

    bytes: Bytes
    mtime_ns: Annotated[int, Meta(ge=-_MOST, le=_MOST)]


class Checksums(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content checksums in hexadecimal digits."""

    content: Hash
    ordered: Hash


class Stamp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What tells one state of all files of data that were added from another."""

    files: Count
    bytes: Bytes
    newest_ns: Annotated[int, Meta(ge=-_MOST, le=_MOST)]  # of the times of change
    digest: Hash  # of each file's name, size, time of change and inode


class Added(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Data that others wrote, where they lie: the absolute path of a file or folder.

    `names`: of the arrays in it that were chosen; none for all. `told`: whether the data do not say
    themselves what their fields are.
    """

    path: Annotated[str, Meta(pattern=r"^/[^\x00-\x1f\x7f\ud800-\udfff]*$", max_length=PATH_BYTES)]
    stamp: Stamp
    names: tuple[Text, ...] = ()
    told: bool = False

    @property
    def part(self) -> bool:
        """Whether the fields may be a part only of what the files hold."""
        return bool(self.names) or self.told


class Artifact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What prepare left on disk for one variant, or what was added; times are those of that session."""

    variant: str
    files: dict[str, FileStamp]  # path below the folder → stamp; empty where they were added
    stored_bytes: Bytes
    write_s: Seconds
    verify_s: Seconds
    library: Text
    folder: str = ""  # below the dataset's; empty in version 1, where the variant is its name
    checksum: Checksums | None = None  # of what a lossy format keeps of the data; else the dataset's
    added: Added | None = None

    @property
    def folder_name(self) -> str:
        """The folder's name, whatever the version."""
        return self.folder or self.variant

    @property
    def sealed(self) -> bool:
        """Whether the folder holds a seal, as those of version 2 do."""
        return self.folder_name != self.variant


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file as a whole."""

    manifest_version: int
    created: Text
    samples: Count
    fields: Annotated[tuple[Field, ...], Meta(min_length=1, max_length=100_000)]
    source: dict[str, Any]
    checksum: Checksums
    artifacts: dict[str, Artifact]
    logical_bytes: Count | None = None  # None in version 1

    @property
    def schema(self) -> Schema:
        """Samples and fields."""
        return Schema(self.samples, self.fields)


def storable(schema: Schema, description: dict[str, Any]) -> dict[str, Any]:
    """A source's description as a manifest gives it back; TypeError or ValueError where it could not."""
    _check_schema(schema)
    _check_depth(description)
    stored: dict[str, Any] = json.loads(json.dumps(description, allow_nan=False))
    return stored


def _check_schema(schema: Schema) -> None:
    """ValueError where fields have too long names or too many axes, or all is beyond 64 bits."""
    names: set[str] = set()
    for field in schema.fields:
        if field.name in names:
            raise ValueError(f"two fields are named {field.name[:NAME_BYTES]}")
        names.add(field.name)
        if len(field.name) > NAME_BYTES:
            raise ValueError(f"the name of field {field.name[:20]}… is longer than {NAME_BYTES} bytes")
        if len(field.shape) + 1 > DIMENSIONS:
            raise ValueError(
                f"field {field.name} has {len(field.shape) + 1} axes, at most {DIMENSIONS} can be stored"
            )
    if schema.logical_bytes > _MOST:
        raise ValueError(f"{schema.samples} samples of {schema.sample_bytes:.3g} bytes are beyond 64 bits")


def check(body: Body) -> None:
    """ValueError where what a manifest says is at odds with itself, or names what cannot be."""
    _check_schema(body.schema)
    _check_depth(body.source)
    expected = body.schema.logical_bytes
    if body.manifest_version > 1 and body.logical_bytes != expected:
        raise ValueError(f"logical_bytes is {body.logical_bytes}, samples and fields make {expected}")
    folders: set[str] = set()
    for variant, artifact in body.artifacts.items():
        _check_artifact(variant, artifact)
        if artifact.added:
            continue
        held = sum(stamp.bytes for stamp in artifact.files.values())
        if body.manifest_version == 1 and expected > VERSION_1_RATIO * held:
            raise ValueError(f"{variant} has {held} bytes in its files for {expected} of data")
        if artifact.folder_name in folders:
            raise ValueError(f"two artifacts are in {artifact.folder_name}")
        folders.add(artifact.folder_name)


def _check_artifact(variant: str, artifact: Artifact) -> None:
    for name in (variant, artifact.folder_name):
        if not _VARIANT.fullmatch(name) or len(name) > NAME_BYTES:
            raise ValueError(f"{name[:NAME_BYTES]!r} is no variant")
    if artifact.variant != variant:
        raise ValueError(f"{variant} says that it is {artifact.variant[:NAME_BYTES]!r}")
    if bool(artifact.files) == bool(artifact.added):
        raise ValueError(f"{variant} has no files, or is both prepared and added")
    for name in artifact.files:
        path = PurePosixPath(name)
        if not path.parts or path.is_absolute() or ".." in path.parts:
            raise ValueError(f"{name[:NAME_BYTES]!r} points outside {variant}")
        long = any(len(os.fsencode(part)) > NAME_BYTES for part in path.parts)
        if "\0" in name or long or len(os.fsencode(name)) > PATH_BYTES:
            raise ValueError(f"{name[:20]!r}… in {variant} is no file name")


def _check_depth(value: Any, levels: int = NESTING) -> None:
    if isinstance(value, (dict, list, tuple)):
        if not levels:
            raise ValueError(f"its source is nested more than {NESTING} levels deep")
        for inner in value.values() if isinstance(value, dict) else value:
            _check_depth(inner, levels - 1)
