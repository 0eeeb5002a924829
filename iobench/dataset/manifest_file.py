"""The file `manifest.json`: types, ranges and consistency of its content, reading and writing."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import threading
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import msgspec
from msgspec import Meta

from iobench.base.errors import ManifestError, SourceError, no_permission
from iobench.base.files import NAME_BYTES, PATH_BYTES, name_problem, replace_file
from iobench.base.text import listed, suggestion
from iobench.dataset.staging import sync_directory
from iobench.formats import Field, Schema

DIMENSIONS = 32  # of one field with its axis of samples: the maximum of HDF5
NESTING = 16  # levels of a source's description

_VARIANT = re.compile(r"[a-z][A-Za-z0-9._:=,+*-]*")
_MAX_INT = (1 << 63) - 1

Count = Annotated[int, Meta(ge=1, le=_MAX_INT)]
Bytes = Annotated[int, Meta(ge=0, le=_MAX_INT)]
Seconds = Annotated[float, Meta(ge=0, le=1e15)]  # excludes infinity and NaN
Hash = Annotated[str, Meta(pattern=r"^[0-9a-fA-F]{1,16}$")]
Text = Annotated[str, Meta(pattern=r"^[^\x00-\x1f\ud800-\udfff]*$", max_length=1024)]


class FileStamp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Size and time of change of a data file when it was verified."""

    bytes: Bytes
    mtime_ns: Annotated[int, Meta(ge=-_MAX_INT, le=_MAX_INT)]


class Checksums(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content checksums in hexadecimal digits."""

    content: Hash
    ordered: Hash

    @classmethod
    def of(cls, content: int | None, ordered: int | None) -> Checksums:
        """Return two checksums as digits."""
        return cls(f"{content or 0:016x}", f"{ordered or 0:016x}")

    @property
    def numbers(self) -> tuple[int, int]:
        """The two checksums."""
        return int(self.content, 16), int(self.ordered, 16)


class HashedPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The part of a dataset's rows that was hashed; see `checksum.HashedRows`."""

    piece_rows: Count
    pieces: Count


class TreeStamp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Identity of one state of all files of added data."""

    files: Count
    bytes: Bytes
    newest_ns: Annotated[int, Meta(ge=-_MAX_INT, le=_MAX_INT)]  # newest time of change
    digest: Hash  # of each file's name, size, time of change and inode


class ExternalData(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Data that iobench did not write, at their own path."""

    path: Annotated[  # absolute, of a file or folder
        str, Meta(pattern=r"^/[^\x00-\x1f\x7f\ud800-\udfff]*$", max_length=PATH_BYTES)
    ]
    stamp: TreeStamp  # state of its files when they were hashed
    names: tuple[Text, ...] = ()  # selected arrays; empty for all
    fields_given: bool = False  # whether the user described the fields, because the data do not
    others: tuple[Text, ...] = ()  # files below the folder of a file that hold some of its data
    samples: Count | None = None  # samples that the files hold, if the dataset has only the first of them
    totals: dict[str, Bytes] = {}  # with `samples`, the sums of the lengths of all of them, as in a schema

    def schema(self, first: Schema) -> Schema | None:
        """Return the schema of all samples of the files, if the dataset has only the `first` of them."""
        if self.samples is None:
            return None
        return Schema(self.samples, first.fields, totals=self.totals)

    @property
    def partial(self) -> bool:
        """True if the files may hold more than the fields."""
        return bool(self.names) or self.fields_given


class StoredPlacement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A placement of `formats` without its arrays; see `opener`."""

    kind: Literal["strided", "chunked", "listed"]
    files: tuple[str, ...]  # paths below the artifact's folder
    offset: Bytes = 0  # of a strided placement; `within` of a listed one
    stride: Bytes = 0  # of a strided placement or a chunked one
    arrays: dict[str, str] = {}  # names in the index file of the arrays that the placement has


class RemoteData(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Versions of the objects of an artifact in an object store, and the places of its rows in them."""

    etags: dict[str, Text]  # versions of the objects by path below the artifact's folder; empty until known
    placement: dict[str, StoredPlacement]  # location of each field; empty if the format's library finds them
    indexes: tuple[Text, ...] = ()  # names of the index files beside the manifest
    added: Text = ""  # address that was added; empty if prepare wrote the objects

    @property
    def placed(self) -> bool:
        """True if rows are at known places; else the format's library reads them by a client of its own."""
        return bool(self.placement)


class Artifact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One variant of a dataset: written by prepare, or added where it lies.

    The objects of one that prepare uploaded are in its folder, those of one that was added at the dataset's
    address.
    """

    variant: str
    files: dict[str, FileStamp]  # stamps by path below the folder; empty for added data
    stored_bytes: Bytes
    write_s: Seconds  # seconds that writing took
    verify_s: Seconds  # seconds that verifying took
    library: Text
    folder: str = ""  # name of the folder in the dataset; empty for added data
    checksum: Checksums | None = None  # of what a lossy format stores; None if it is the dataset's
    added: ExternalData | None = None  # location of added data
    remote: RemoteData | None = None  # versions and places of rows of an artifact in an object store

    @property
    def external(self) -> bool:
        """True if other programs wrote the data."""
        return self.added is not None or (self.remote is not None and bool(self.remote.added))


class ManifestBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of `manifest.json`.

    `logical_bytes` has to be what samples and fields make, whatever the formats compress. `hashed` is the
    part of the rows that `checksum` covers; null for all of them, as wherever prepare wrote an artifact.
    `url` is where a dataset is read in an object store; empty for one on a disk.
    `totals` holds the sum of the lengths of each field whose samples differ in length.
    """

    manifest_version: int
    created: Text
    samples: Count
    fields: Annotated[tuple[Field, ...], Meta(min_length=1, max_length=100_000)]
    source: dict[str, Any]
    checksum: Checksums
    artifacts: dict[str, Artifact]
    logical_bytes: Count
    hashed: HashedPart | None = None
    url: Text = ""
    totals: dict[str, Bytes] = {}

    @property
    def schema(self) -> Schema:
        """Samples and fields."""
        return Schema(self.samples, self.fields, totals=self.totals)


def storable(schema: Schema, description: dict[str, Any], path: Path | None = None) -> dict[str, Any]:
    """Return a source's description as a manifest would restore it.

    Raises SourceError, about `path`, if a manifest cannot store the schema or the description.
    """
    try:
        _check_schema(schema)
        _check_depth(description)
        stored: dict[str, Any] = json.loads(json.dumps(description, allow_nan=False))
    except (TypeError, ValueError) as error:
        problem = f"cannot be stored in a manifest: {error}"
        raise SourceError(problem, "not-storable", path) from error
    return stored


def _check_schema(schema: Schema) -> None:
    """Raise ValueError for duplicate names, missing extents, too many axes, or a size beyond 64 bits."""
    names: set[str] = set()
    for field in schema.fields:
        if field.name in names:
            raise ValueError(f"two fields are named {field.name[:NAME_BYTES]}")
        names.add(field.name)
        if len(field.shape) + 1 > DIMENSIONS:
            raise ValueError(f"field {field.name} has {len(field.shape) + 1} axes, at most {DIMENSIONS}")
        if (own := field.extents) and own not in schema.fields:
            raise ValueError(f"field {field.name} varies in {field.varying} axes, but {own.typed} is missing")
    if schema.logical_bytes > _MAX_INT:
        raise ValueError(f"{schema.samples} samples of {schema.sample_bytes:.3g} bytes exceed 64 bits")


def check(body: ManifestBody) -> None:
    """Raise ValueError if parts of a manifest contradict each other or a name is invalid."""
    _check_schema(body.schema)
    _check_depth(body.source)
    expected = body.schema.logical_bytes
    if body.logical_bytes != expected:
        raise ValueError(f"logical_bytes is {body.logical_bytes}, but samples and fields make {expected}")
    if part := body.hashed:
        if part.piece_rows * part.pieces >= body.samples:
            hashed = f"{part.pieces} hashed pieces of {part.piece_rows} rows"
            raise ValueError(f"{hashed} are no part of the samples")
        if any(not artifact.external or artifact.checksum for artifact in body.artifacts.values()):
            raise ValueError("an artifact that prepare wrote is hashed in part")
    folders: set[str] = set()
    for variant, artifact in body.artifacts.items():
        _check_artifact(variant, artifact)
        if artifact.added:
            if (held := artifact.added.samples) is not None and held <= body.samples:
                raise ValueError(f"{variant} holds {held} samples, no more than the dataset")
            artifact.added.schema(body.schema)  # ValueError if its totals are not those of these fields
            continue
        if artifact.folder in folders:
            raise ValueError(f"two artifacts are in {artifact.folder}")
        folders.add(artifact.folder)


def _check_artifact(variant: str, artifact: Artifact) -> None:
    for name in (variant,) if artifact.added else (variant, artifact.folder):
        if not _VARIANT.fullmatch(name) or len(name) > NAME_BYTES:
            raise ValueError(f"{name[:NAME_BYTES]!r} is not a variant")
    if artifact.variant != variant:
        raise ValueError(f"the entry of {variant} is for {artifact.variant[:NAME_BYTES]!r}")
    if bool(artifact.files) == bool(artifact.added):
        raise ValueError(f"{variant} has no files, or is both prepared and added")
    if (remote := artifact.remote) is not None:
        if remote.etags.keys() != artifact.files.keys():
            raise ValueError(f"{variant} has files without a version")
        placed_in = [place.files for place in remote.placement.values()]
        if any(not files or set(files) - artifact.files.keys() for files in placed_in):
            raise ValueError(f"{variant} places a field in files that it does not have")
        if any(not _VARIANT.fullmatch(name) for name in remote.indexes):
            raise ValueError(f"{variant} has an index of an invalid name")
    for name in (*artifact.files, *(artifact.added.others if artifact.added else ())):
        if problem := name_problem(name):
            raise ValueError(f"{name[:NAME_BYTES]!r} is no file in {variant}: {problem}")


def _check_depth(value: Any, levels: int = NESTING) -> None:
    if isinstance(value, (dict, list, tuple)):
        if not levels:
            raise ValueError(f"its source is nested more than {NESTING} levels deep")
        for inner in value.values() if isinstance(value, dict) else value:
            _check_depth(inner, levels - 1)


VERSION = 2
FILE_NAME = "manifest.json"
REWRITE = "write it again with 'iobench prepare --overwrite'"

_converting = threading.Lock()  # msgspec has crashed when two threads converted a type for the first time


def check_readable(root: Path) -> None:
    """Raise ManifestError if the path of a dataset is not UTF-8, which LMDB and HDF5 cannot open."""
    try:
        str(root).encode()
    except UnicodeEncodeError:
        raise ManifestError(
            "the folder's name is not UTF-8, which LMDB and HDF5 cannot open",
            kind="invalid-name",
            path=os.fsencode(root).decode(errors="backslashreplace"),
            hint="rename it, or use another --data-dir",
        ) from None


def read(path: Path) -> ManifestBody:
    """Read and check a manifest file.

    ManifestError if there is none (`no-dataset`), it is not a manifest (`not-a-manifest`), has another
    version (`unknown-version`), or a value is missing, unknown, of another type, out of range or in
    contradiction to the others (`damaged-manifest`).
    """
    try:
        if path.exists() and not path.is_file():  # opening a FIFO would block
            raise OSError("it is not a file")
        content = path.read_bytes()
    except FileNotFoundError:
        raise ManifestError("there is no dataset", "no-dataset", path.parent, hint=_instead(path)) from None
    except PermissionError as error:
        raise no_permission(ManifestError, path) from error
    except OSError as error:
        problem = f"not a manifest ({_line(error)})"
        raise ManifestError(problem, "not-a-manifest", path, hint=REWRITE) from error
    return parse(content, path)


def _instead(path: Path) -> str:
    """Return what to do where a manifest is missing: give another name, or make a dataset."""
    with contextlib.suppress(OSError):
        others = sorted(one.parent.name for one in path.parent.parent.glob(f"*/{path.name}"))
        if others:
            known = f"{suggestion(path.parent.name, others)}there are: {listed(others)}"
            return f"{known}; or make one with 'iobench prepare'"
    return "make one with 'iobench prepare'"


def parse(content: bytes, path: Path | str) -> ManifestBody:
    """Return a checked manifest from its text; raises ManifestError, about `path`, as `read` does."""
    try:
        body = json.loads(
            content.decode(), object_pairs_hook=_unique_keys, parse_constant=_not_finite, parse_float=_finite
        )
    except (ValueError, RecursionError) as error:
        problem = f"not a manifest ({_line(error)})"
        raise ManifestError(problem, "not-a-manifest", path, hint=REWRITE) from error
    version = body.get("manifest_version") if isinstance(body, dict) else None
    if type(version) is not int or version < 1:
        problem = "not a manifest of iobench (no manifest_version)"
        raise ManifestError(problem, "not-a-manifest", path, hint=REWRITE)
    if version != VERSION:
        expected, found = f"manifest version {VERSION}", f"version {str(version)[:20]}"
        hint = f"use the iobench that wrote it, or {REWRITE}"
        raise ManifestError(kind="unknown-version", path=path, expected=expected, found=found, hint=hint)
    try:
        with _converting:
            converted = msgspec.convert(body, ManifestBody)
        check(converted)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        problem = f"damaged manifest ({_line(error)})"
        raise ManifestError(problem, "damaged-manifest", path, hint=REWRITE) from error
    return converted


def write(root: Path, body: ManifestBody) -> None:
    """Replace the manifest of a dataset folder atomically and sync both to disk.

    A crash leaves the old manifest or the new one.
    """
    replace_file(root / FILE_NAME, encoded(body), sync=True)
    sync_directory(root)


def encoded(body: ManifestBody) -> bytes:
    """Return a manifest's text."""
    return json.dumps(msgspec.to_builtins(body), indent=2, allow_nan=False).encode()


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        keys = [key for key, _ in pairs]
        duplicate = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {duplicate[:NAME_BYTES]!r} appears twice")
    return unique


def _finite(text: str) -> float:
    return value if math.isfinite(value := float(text)) else _not_finite(text)


def _not_finite(text: str) -> NoReturn:
    raise ValueError(f"{text[:NAME_BYTES]} is not a finite number")


def _line(error: Exception) -> str:
    """Return an error's message as one line of at most 500 characters."""
    return " ".join(str(error).split())[:500] or type(error).__name__
