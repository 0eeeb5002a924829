"""The dataset folder: which artifacts it holds, what is in them, and how to open one.

`DATA_DIR/NAME/manifest.json` is written last: an artifact that is not listed does not exist.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from iobench import formats
from iobench.dataset.staging import sync_directory
from iobench.errors import ManifestError
from iobench.formats import Field, Format, Reader, Schema, corrupt

Stored = TypeVar("Stored", "Schema", "FileStamp", "Artifact")

VERSION = 1
FILE_NAME = "manifest.json"
DATASET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=,-]*")
VARIANT = re.compile(r"[a-z][A-Za-z0-9._:=,+-]*")
AGAIN = "write it again with 'iobench prepare --overwrite'"


@dataclass(frozen=True)
class FileStamp:
    """Size and time of change of a data file when it was verified."""

    bytes: int
    mtime_ns: int


@dataclass(frozen=True)
class Artifact:
    """What prepare left on disk for one variant; times are those of the writing session."""

    variant: str
    files: dict[str, FileStamp]  # path below the artifact's folder → stamp
    stored_bytes: int
    write_s: float
    verify_s: float
    library: str


@dataclass(frozen=True)
class Opener:
    """What travels to a worker: picklable, and called there gives a reader."""

    format: Format
    path: Path
    schema: Schema
    random: bool = False  # rows will be asked for in random order

    def __call__(self) -> Reader:
        """A new reader of the artifact."""
        return self.format.open(self.path, self.schema, self.random)


@dataclass
class Manifest:
    """A dataset: its schema, its source, its checksums and its artifacts."""

    root: Path
    schema: Schema
    source: dict[str, Any]
    content: int | None = None
    ordered: int | None = None
    created: str = ""
    artifacts: dict[str, Artifact] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The dataset's name: that of its folder."""
        return self.root.name

    def path_of(self, variant: str) -> Path:
        """The folder of a variant's artifact."""
        return self.root / variant

    def files_of(self, variant: str) -> list[Path]:
        """Every data file of a prepared variant."""
        return [self.path_of(variant) / name for name in self.artifacts[variant].files]

    def opener(self, variant: str) -> Opener:
        """How to open a prepared variant.

        ManifestError where it is not prepared, CorruptArtifact where a file is missing or has
        another size than when it was verified.
        """
        if variant not in self.artifacts:
            prepared = ", ".join(self.artifacts) or "nothing"
            raise ManifestError(
                f"dataset {self.name}: {variant} is not prepared (there is {prepared}); "
                f"add it with 'iobench prepare --name {self.name} --format {variant}' and the same source"
            )
        for name, stamp in self.artifacts[variant].files.items():
            file = self.path_of(variant) / name
            size = file.stat().st_size if file.is_file() else None
            if size != stamp.bytes:
                found = "no such file" if size is None else f"{size} bytes"
                raise corrupt(file, f"{stamp.bytes} bytes", found)
        return Opener(formats.parse(variant), self.path_of(variant), self.schema)

    def unchanged(self, variant: str) -> bool:
        """Whether every file of a prepared variant has the size and time it was verified with."""
        return self.stamps_now(variant) == self.artifacts[variant].files

    def stamps_now(self, variant: str) -> dict[str, FileStamp]:
        """Size and time of change, now, of those files of a prepared variant that are there."""
        recorded = self.artifacts[variant].files
        return {name: s for name, s in stamps(self.path_of(variant)).items() if name in recorded}

    def save(self) -> None:
        """Replace the manifest file in one step, synced to disk."""
        body = {
            "manifest_version": VERSION,
            "created": self.created,
            "samples": self.schema.samples,
            "fields": [asdict(f) for f in self.schema.fields],
            "source": self.source,
            "checksum": {"content": _hex(self.content), "ordered": _hex(self.ordered)},
            "artifacts": {variant: asdict(a) for variant, a in self.artifacts.items()},
        }
        temporary = self.root / f".{FILE_NAME}.tmp"
        try:
            with open(temporary, "w") as file:
                json.dump(body, file, indent=2)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.root / FILE_NAME)
        finally:
            temporary.unlink(missing_ok=True)
        sync_directory(self.root)

    @classmethod
    def load(cls, root: Path) -> Manifest:
        """The manifest of a dataset folder.

        ManifestError where there is none, it is not JSON, of a newer version, lacks something,
        or names files outside the folder.
        """
        path = root / FILE_NAME
        try:
            body = json.loads(path.read_text())
        except FileNotFoundError:
            raise ManifestError(f"{root}: no dataset there; make one with 'iobench prepare'") from None
        except (OSError, ValueError, RecursionError) as error:
            raise ManifestError(f"{path}: not a manifest ({error}); {AGAIN}") from error
        version = body.get("manifest_version") if isinstance(body, dict) else None
        if type(version) is not int or version < 1:
            raise ManifestError(f"{path}: not a manifest of iobench: it has no manifest_version; {AGAIN}")
        if version > VERSION:
            raise ManifestError(
                f"{path}: manifest version {version}, this iobench reads up to {VERSION}; upgrade iobench"
            )
        try:
            return cls._from_body(root, body)
        except KeyError as error:
            raise ManifestError(f"{path}: damaged manifest (it has no {error}); {AGAIN}") from error
        except (TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise ManifestError(f"{path}: damaged manifest ({error}); {AGAIN}") from error

    @classmethod
    def _from_body(cls, root: Path, body: dict[str, Any]) -> Manifest:
        schema = Schema(
            body["samples"], tuple(Field(f["name"], tuple(f["shape"]), f["dtype"]) for f in body["fields"])
        )
        lengths = [n for f in schema.fields for n in (_typed(schema).samples, *f.shape)]
        if not lengths or any(type(n) is not int or n < 1 for n in lengths):
            raise ValueError(f"{schema.samples} samples of {schema.fields}")
        manifest = cls(
            root=root,
            schema=schema,
            source=dict(body["source"]),
            content=int(body["checksum"]["content"], 16),
            ordered=int(body["checksum"]["ordered"], 16),
            created=str(body["created"]),
        )
        for variant, entry in body["artifacts"].items():
            if not VARIANT.fullmatch(variant):
                raise ValueError(f"{variant!r} is no variant")
            _check_inside(root, variant)
            for name in entry["files"]:
                _check_inside(root / variant, name)
            stamped = {name: _typed(FileStamp(**stamp)) for name, stamp in entry["files"].items()}
            manifest.artifacts[variant] = _typed(Artifact(**{**entry, "files": stamped}))
        return manifest


def find_dataset(data_dir: Path, name: str | None = None) -> Manifest:
    """The dataset of that name, or the newest in the folder; ManifestError names the command to make one."""
    if name is not None:
        return Manifest.load(data_dir / check_name(name))
    found = [path.parent for path in data_dir.glob(f"*/{FILE_NAME}")]
    if not found:
        raise ManifestError(f"nothing is prepared in {data_dir}; run 'iobench prepare --size 1e7' first")
    return Manifest.load(max(found, key=lambda root: (root / FILE_NAME).stat().st_mtime_ns))


def check_name(name: str) -> str:
    """The name itself, if it can be a folder inside the data folder; else ManifestError."""
    if not DATASET_NAME.fullmatch(name) or name == "results":
        raise ManifestError(
            f"dataset name {name!r} must start with a letter or digit, hold only those and . _ - = , "
            "and not be 'results'"
        )
    return name


def stamps(folder: Path) -> dict[str, FileStamp]:
    """Every file below a folder with its size and time of change."""
    return {
        str(path.relative_to(folder)): FileStamp(path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def stored_bytes(folder: Path) -> int:
    """Bytes allocated on disk for all files below a folder."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def _check_inside(folder: Path, name: str) -> None:
    inside = (folder / name).resolve().is_relative_to(folder.resolve())
    if not inside or not Path(name).parts or ".." in Path(name).parts:
        raise ValueError(f"{name!r} points outside {folder.name}")


def _typed(made: Stored) -> Stored:
    """The same, if each number is a number and each text a text, else TypeError."""
    kinds = {"int": (int,), "float": (int, float), "str": (str,)}
    for spec in fields(made):
        value = getattr(made, spec.name)
        if type(value) not in kinds.get(str(spec.type), (type(value),)):
            raise TypeError(f"{spec.name} is {value!r}")
    return made


def _hex(value: int | None) -> str | None:
    return None if value is None else f"{value:016x}"
