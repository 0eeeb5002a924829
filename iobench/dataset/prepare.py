"""source → batches → write to a temporary path → fsync → read back, compare → rename → manifest LAST.

In which order that reaches the disk is the protocol that `iobench.dataset.staging` describes.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from iobench import formats
from iobench.base.errors import (
    ArtifactExists,
    IobenchError,
    SourceError,
)
from iobench.base.units import bytes_text, counted
from iobench.dataset import seal
from iobench.dataset.manifest import FILE_NAME, Manifest, check_name, check_readable
from iobench.dataset.manifest_body import storable
from iobench.dataset.sources import Source
from iobench.dataset.staging import locked, os_errors, remove_temporary
from iobench.dataset.verify import Progress, silent
from iobench.dataset.writer import Prepared, Writer
from iobench.formats import Schema

__all__ = ["DEFAULT_FORMATS", "Prepared", "prepare", "writable"]

DEFAULT_FORMATS = ("npy", "hdf5", "lmdb", "memmap")


def prepare(
    source: Source,
    variants: Sequence[str] = DEFAULT_FORMATS,
    *,
    data_dir: Path = Path("data"),
    name: str | None = None,
    overwrite: bool = False,
    progress: Progress = silent,
) -> tuple[Manifest, list[Prepared]]:
    """Write `source` into every variant that is missing; the manifest and one row per variant.

    What is there and intact is skipped. Each artifact is read back through its reader and
    compared with the source before it gets its name. UnsupportedSchema where a variant cannot hold
    such samples, before anything is written. ArtifactExists where the folder holds other data and
    `overwrite` is not given; PrepareError where disk or folder refuse; WrongContent where what is
    read back differs.
    """
    root = Path(data_dir) / check_name(source.name if name is None else name)
    check_readable(root)
    forms = [formats.parse(v) for v in variants]
    for form in forms:
        form.check_schema(source.schema)
    wanted = list(dict.fromkeys(form.variant for form in forms))
    described = _described(source)
    with os_errors(root), locked(root):
        before = swept(root, overwrite)
        manifest = _manifest_for(root, before, source.schema, described, overwrite)
        return manifest, Writer(source, manifest, before, overwrite, progress).write_all(wanted)


def writable(schema: Schema) -> tuple[list[str], list[str]]:
    """Every format that can hold such samples and is installed, and why each of the others is left out."""
    found, left_out = [], []
    for name in formats.names():
        try:
            formats.parse(name).check_schema(schema)
        except IobenchError as error:
            left_out.append(str(error))
        else:
            found.append(name)
    return found, left_out


def _described(source: Source) -> dict[str, Any]:
    """What the source says of itself, as it comes back out of a manifest; SourceError where it cannot."""
    try:
        return storable(source.schema, source.description)
    except (TypeError, ValueError) as error:
        raise SourceError(f"--source {source.name}: it cannot be stored: {error}") from error


def swept(root: Path, overwrite: bool) -> Manifest | None:
    """Step 1: the manifest on disk, if any, and nothing beside what it lists.

    Where it cannot be read, nobody knows what belongs to it: only `overwrite` goes on then, and
    all sealed folders stay until a new manifest is listed.
    """
    remove_temporary(root)
    if not os.path.lexists(root / FILE_NAME):
        seal.sweep(root, ())
        return None
    try:
        before = Manifest.load(root)
    except IobenchError:
        if overwrite:
            return None
        raise
    seal.sweep(root, before.folders)
    return before


def _manifest_for(
    root: Path, before: Manifest | None, schema: Schema, described: dict[str, Any], overwrite: bool
) -> Manifest:
    """The manifest to extend, or to begin; ArtifactExists where that would replace other data unasked.

    What was added of the same data stays listed, whatever is overwritten.
    """
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    same = before is not None and (before.schema, before.source) == (schema, described)
    if before is not None and same and before.added:
        kept = {v: a for v, a in before.artifacts.items() if a.added or not overwrite}
        return dataclasses.replace(before, artifacts=kept)
    if before is None or overwrite:
        return Manifest(root, schema, described, created=now)
    if not same:
        raise ArtifactExists(
            f"{root} holds other data ({_summary(before.schema, before.source)}); "
            "use --overwrite to replace it, or another --name"
        )
    return dataclasses.replace(before, artifacts=dict(before.artifacts))


def _summary(schema: Schema, source: dict[str, object]) -> str:
    shown = ", ".join(f"{key} {value}" for key, value in source.items() if key not in ("mtime_ns", "labels"))
    return f"{counted(schema.samples, 'sample')} of {bytes_text(schema.sample_bytes)}, {shown}"
