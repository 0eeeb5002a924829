"""Prepare a dataset: write a source into formats, read each back and compare, list them in the manifest.

`iobench.dataset.staging` describes the protocol on disk.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from iobench import formats
from iobench.base.errors import ArtifactExists, IobenchError
from iobench.base.text import utc_now
from iobench.base.units import bytes_text, counted
from iobench.dataset import index_cache, seal
from iobench.dataset.artifact_writer import ArtifactWriter, Prepared
from iobench.dataset.dataset_folders import check_name
from iobench.dataset.hashing import hash_rest
from iobench.dataset.manifest import Manifest
from iobench.dataset.manifest_body import storable
from iobench.dataset.manifest_file import FILE_NAME, check_readable
from iobench.dataset.sources import Source
from iobench.dataset.staging import locked, os_errors, remove_temporary
from iobench.dataset.verify import Progress, no_progress
from iobench.formats import Schema

__all__ = ["DEFAULT_FORMATS", "Prepared", "prepare", "writable_formats"]

DEFAULT_FORMATS = ("npy", "hdf5", "lmdb", "memmap")


def prepare(
    source: Source,
    variants: Sequence[str] = DEFAULT_FORMATS,
    *,
    data_dir: str | Path = Path("data"),
    name: str | None = None,
    overwrite: bool = False,
    progress: Progress = no_progress,
) -> tuple[Manifest, list[Prepared]]:
    """Write a source into every variant that is missing or damaged.

    Intact variants are skipped. Each artifact is read back and compared with the source before it gets its
    name.

    Parameters
    ----------
    source : Source
        The samples to write.
    variants : sequence of str
        Formats with options, such as ``hdf5:compression=gzip``.
    data_dir : str or Path
        Folder of all datasets.
    name : str, optional
        Name of the dataset; by default the source's.
    overwrite : bool
        Replace the data of an existing dataset.
    progress : callable
        Called with the activity, the bytes done and the bytes in total.

    Returns
    -------
    manifest : Manifest
        The dataset.
    rows : list of Prepared
        The result for each variant.

    Raises
    ------
    UnsupportedSchema
        If a variant cannot hold such samples; nothing is written then.
    ArtifactExists
        If the dataset holds other data and `overwrite` is not given.
    PrepareError
        If the disk or the folder refuses a write.
    WrongContent
        If the data read back differ.
    """
    root = Path(data_dir) / check_name(source.name if name is None else name)
    check_readable(root)
    forms = [formats.parse(v) for v in variants]
    for form in forms:
        form.check_schema(source.schema)
    requested = list(dict.fromkeys(form.variant for form in forms))
    described = storable(source.schema, source.description)
    with os_errors(root), locked(root):
        before = sweep_and_load(root, overwrite)
        manifest = _manifest_for(root, before, source.schema, described, overwrite)
        if manifest.part is not None and set(requested) - set(manifest.artifacts):
            hash_rest(manifest, progress)  # what is written is compared with all of it
        return manifest, ArtifactWriter(source, manifest, before, overwrite, progress).write_all(requested)


def writable_formats(schema: Schema) -> tuple[list[str], list[IobenchError]]:
    """Return the installed formats that can hold such samples, and the errors of the others."""
    writable, skipped = [], []
    for name in formats.names():
        try:
            formats.parse(name).check_schema(schema)
        except IobenchError as error:
            skipped.append(error)
        else:
            writable.append(name)
    return writable, skipped


def free_name(source: Source, data_dir: Path, added: Path | None = None) -> str:
    """Return a name for the dataset of a source, or of its files `added` where they lie.

    It is the source's own, with a number if a dataset of other data has that.
    """
    numbered = (f"{source.name}-{number}" for number in itertools.count(2))
    names = itertools.chain([source.name], numbered)
    return next(name for name in names if is_free(data_dir / name, source, added))


def is_free(root: Path, source: Source, added: Path | None = None) -> bool:
    """Return whether a folder holds no dataset, or one of that source, or of its files `added`."""
    if not os.path.lexists(root / FILE_NAME):
        return True
    try:
        there = Manifest.load(root)
    except IobenchError:
        return False
    paths = [formats.with_selection(Path(one.path), one.names) for one in there.added.values()]
    same = there.source == storable(source.schema, source.description)
    return there.schema == source.schema and (same or (added is not None and added.absolute() in paths))


def sweep_and_load(root: Path, overwrite: bool) -> Manifest | None:
    """Run step 1: load the manifest on disk, if any, and remove folders and indexes that it does not list.

    If it cannot be read, the folders that belong to it are unknown: prepare continues only with `overwrite`,
    and all sealed folders stay until a new manifest is listed.
    """
    remove_temporary(root)
    if not os.path.lexists(root / FILE_NAME):
        seal.sweep(root, ())
        index_cache.sweep(root, ())
        return None
    try:
        before = Manifest.load(root)
    except IobenchError:
        if overwrite:
            return None
        raise
    if before.url and not overwrite:
        raise ArtifactExists(
            f"the dataset is that of objects at {before.url}, which are only read",
            kind="remote-dataset",
            path=root,
            hint="use another --name, or --overwrite to forget it; the objects are kept",
        )
    seal.sweep(root, before.folders)
    index_cache.sweep(root, {*before.folders, *before.added})
    return None if before.url else before


def _manifest_for(
    root: Path, before: Manifest | None, schema: Schema, described: dict[str, Any], overwrite: bool
) -> Manifest:
    """Return the manifest to extend or to begin.

    Added data of the same content stay listed even with `overwrite`. Raises ArtifactExists if the folder
    holds other data and `overwrite` is not given.
    """
    same = before is not None and (before.schema, before.source) == (schema, described)
    if before is not None and same and before.added:
        staying = {v: a for v, a in before.artifacts.items() if a.added or not overwrite}
        return dataclasses.replace(before, artifacts=staying)
    if before is None or overwrite:
        return Manifest(root, schema, described, created=utc_now())
    if not same:
        raise ArtifactExists(
            f"the dataset holds other data ({_summary(before.schema, before.source)})",
            kind="other-data",
            path=root,
            hint="use --overwrite to replace it, or another --name",
        )
    return dataclasses.replace(before, artifacts=dict(before.artifacts))


def _summary(schema: Schema, source: dict[str, object]) -> str:
    shown = ", ".join(
        f"{key} {value}" for key, value in source.items() if key not in ("mtime_ns", "labels", "packed")
    )
    return f"{counted(schema.samples, 'sample')} of {bytes_text(schema.sample_bytes)}, {shown}"
