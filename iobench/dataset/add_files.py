"""Add files that iobench did not write to a dataset: sniff, describe, hash, list in the manifest.

The data are only read; all writes go to the dataset's folder.
"""

from __future__ import annotations

import dataclasses
import math
import os
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from iobench import formats
from iobench.base.errors import SourceError
from iobench.base.finding import Finding
from iobench.base.text import listed, printable, shortened, utc_now
from iobench.dataset import sandbox, seal
from iobench.dataset.added_source import untrusted
from iobench.dataset.artifact_writer import CLOCK_S, Prepared, library_of
from iobench.dataset.checksum import Checksum
from iobench.dataset.dataset_folders import check_name
from iobench.dataset.extension import check_free, extended
from iobench.dataset.file_tree import FileTree
from iobench.dataset.hashed_rows import HashedRows
from iobench.dataset.hashing import PART_S, hash_rows, hashed_in_part, rows_to_hash
from iobench.dataset.manifest import Manifest
from iobench.dataset.manifest_body import Artifact, ExternalData, HashedPart, storable
from iobench.dataset.manifest_file import FILE_NAME, check_readable
from iobench.dataset.prepare import sweep_and_load
from iobench.dataset.sample_hashes import HashWriter
from iobench.dataset.sources import check_selectable, convertible, default_name
from iobench.dataset.sources._regular_files import (
    CLOSE_WRITERS,
    LABELLED,
    no_such_path,
    refused_by_system,
    usual_format,
)
from iobench.dataset.staging import locked, os_errors
from iobench.dataset.untrusted_data import UntrustedData
from iobench.dataset.verify import Progress, no_progress
from iobench.formats import Field, Schema


@dataclass(frozen=True)
class AddOptions:
    """Options of `add`, and of its callers within iobench.

    Attributes
    ----------
    format, name, fields, data_dir, overwrite, hash, hash_s, progress, warn
        As in `add`.
    first : Schema or None
        Make a dataset of the first samples, of which all are hashed: their number, and their totals.
    accept : callable
        Called with the data and their schema before they are hashed; may raise.
    """

    format: str | None = None
    name: str | None = None
    fields: Sequence[Field] = ()
    data_dir: str | Path = Path("data")
    overwrite: bool = False
    hash: str = "auto"
    hash_s: float = PART_S
    progress: Progress = no_progress
    warn: Callable[[Finding], None] = lambda finding: None
    first: Schema | None = None
    accept: Callable[[UntrustedData, Schema], None] = lambda data, schema: None


def add_files(path: str | Path, options: AddOptions) -> tuple[Manifest, Prepared]:
    """Add files where they lie, after hashing their samples once; see `add`."""
    path, names = formats.split_selection(Path(path))
    tree = FileTree.of(_resolved(path))
    stem = "-".join((path.resolve().stem, *names))
    root = Path(options.data_dir) / check_name(options.name or default_name(stem))
    check_readable(root)
    _check_separate(tree.path, root)
    form = formats.parse(options.format or _sniffed(tree.path))
    check_selectable(path, form, names)
    selected = formats.with_selection(tree.path, names)
    held = _described(UntrustedData(selected, form.variant, tree.stamp.bytes), options)
    schema = _first_samples(held, options.first)
    _check_fields(path, schema, options.fields)
    stored = () if schema is held else (held.samples, held.totals)
    added = ExternalData(str(tree.path), tree.stamp, names, bool(options.fields), *stored)
    data = untrusted(tree.path, form.variant, added, schema)
    options.accept(data, schema)
    with os_errors(root), locked(root), HashWriter.temporary(root) as writer:
        present = sweep_and_load(root, options.overwrite)
        before = None if options.overwrite else present
        check_free(before, form.variant, schema, added)
        others = before if before is not None and set(before.artifacts) - {form.variant} else None
        rows = rows_to_hash(others, schema, options.hash, options.hash_s)
        seconds = options.hash_s if others is None else math.inf
        began, report = time.perf_counter(), partial(options.progress, f"hashing {form.variant}")
        check, hashed = hash_rows(data, schema, rows, seconds, writer, report)
        artifact = _artifact(form, tree, added, began)
        made = _manifest(root, schema, artifact, check, hashed)
        if options.first is not None:
            made.source["first"] = schema.samples
        manifest = extended(before, made)
        manifest.save()
        writer.keep(manifest, form.variant)
        seal.sweep(root, manifest.folders)
    if manifest.part is not None:
        options.warn(hashed_in_part(manifest))
    return manifest, Prepared(form.variant, "added", artifact, schema.logical_bytes)


def check_shard(path: Path, options: AddOptions) -> None:
    """Raise as `add_files` for one of several shards, where all would be refused before they are hashed."""
    form = formats.parse(options.format or _sniffed(path))
    data = UntrustedData(path, form.variant, path.stat().st_size)
    options.accept(data, _described(data, dataclasses.replace(options, warn=lambda note: None)))


def _check_fields(path: Path, schema: Schema, fields: Sequence[Field]) -> None:
    """Raise SourceError if the data describe other fields than those given."""
    if fields and schema.fields != tuple(fields):
        raise SourceError(
            "the data have other fields than --field",
            kind="fields-differ",
            path=path,
            expected=_text(fields),
            found=_text(schema.fields),
        )


def _resolved(path: Path) -> Path:
    """Return the path without links; raises SourceError if it is missing or not printable."""
    try:
        resolved = Path(os.path.realpath(path, strict=True))
    except FileNotFoundError:
        raise no_such_path(path) from None
    except OSError as error:
        raise refused_by_system(error, path) from error
    if printable(str(resolved)) != str(resolved):
        raise SourceError(
            "the name contains control characters or bytes that are not UTF-8",
            kind="invalid-name",
            path=resolved,
            hint="rename it",
        )
    return resolved


def _check_separate(path: Path, root: Path) -> None:
    """Raise SourceError if iobench would write into the data, or prepare could remove them."""
    target = Path(os.path.realpath(root))
    if target == path or path in target.parents:
        raise SourceError(
            f"the dataset's folder {root} would be inside the data",
            kind="nested-folders",
            path=path,
            hint="use another --data-dir",
        )
    for folder in (path, *path.parents):
        if (folder / seal.FILE_NAME).exists() and (folder.parent / FILE_NAME).exists():
            raise SourceError(
                "written by prepare, which may replace it",
                kind="managed-data",
                path=path,
                hint=f"measure it with 'iobench run --name {folder.parent.name}', or add a copy",
            )


def _sniffed(path: Path) -> str:
    """Return the only format that recognizes the data; raises SourceError if it is not exactly one."""
    result = sandbox.sniff(path)
    if result.ambiguity:
        choice = f"give --format {result.formats[0]}" if result.formats else "give --format"
        hint = f"name the entry to add, or {choice}" if result.members else choice
        raise SourceError(result.ambiguity, kind="ambiguous-format", path=path, hint=hint)
    if name := result.first_format(path):
        return name
    if convertible(path):
        problem = f"{path.suffix} is not read in place"
        hint = f"convert it with 'iobench prepare --source {shlex.quote(str(path))}'"
        if path.is_dir():
            problem = "images are read in place only from a folder that holds nothing but subfolders"
            hint = f"{LABELLED}, and other files elsewhere"
        raise SourceError(problem, kind="unrecognized", path=path, hint=hint)
    asked = ", ".join(name for name in formats.names() if name not in result.missing)
    missing = f"; libraries missing for {listed(result.missing)}" if result.missing else ""
    raise SourceError(
        f"no format recognizes it by its name and first bytes ({asked}{missing})",
        kind="unrecognized",
        path=path,
        hint=(usual_format(path, "--format") or "give --format if it is one of them; ")
        + "otherwise convert it first"
        + (f"; {LABELLED}" if path.is_dir() else ""),
    )


def _described(data: UntrustedData, options: AddOptions) -> Schema:
    """Infer the schema of data; an error names the format that recognizes them if another was given."""
    try:
        description = sandbox.describe(data, options.fields)
    except SourceError as error:
        names = sandbox.sniff(data.file).formats if options.format else ()
        if len(names) != 1 or names[0] == formats.parse(data.kind).name:
            raise
        hint = f"{names[0]} recognizes it: give --format {names[0]}, or omit --format"
        raise error.changed(hint=hint) from None
    for note in description.notes:
        options.warn(note)
    return description.schema


def _first_samples(held: Schema, first: Schema | None) -> Schema:
    """Return the schema of the first samples, or of all if these are not fewer."""
    if first is None or first.samples >= held.samples:
        return held
    return dataclasses.replace(held, samples=first.samples, totals=first.totals)


def _artifact(form: formats.Format, tree: FileTree, added: ExternalData, began: float) -> Artifact:
    """Return the entry of data hashed from `began` on; SourceError if they changed meanwhile."""
    if FileTree.of(tree.path).stamp != tree.stamp:
        raise SourceError("changed while it was hashed", kind="changed", path=tree.path, hint=CLOSE_WRITERS)
    return Artifact(
        variant=form.variant,
        files={},
        stored_bytes=tree.disk_bytes,
        write_s=0.0,
        verify_s=max(time.perf_counter() - began, CLOCK_S),
        library=library_of(form),
        added=added,
    )


def _manifest(
    root: Path, schema: Schema, artifact: Artifact, check: Checksum, hashed: HashedRows
) -> Manifest:
    """Return a manifest of this artifact alone."""
    assert artifact.added is not None
    source: dict[str, Any] = {"kind": "added", "format": artifact.variant, "path": artifact.added.path}
    source["arrays"] = list(artifact.added.names)
    source |= {"renamed": schema.renamed} if schema.renamed else {}
    described = storable(schema, source, Path(artifact.added.path))
    part = None if hashed.whole else HashedPart(hashed.piece_rows, hashed.pieces)
    artifacts = {artifact.variant: artifact}
    return Manifest(root, schema, described, check.content, check.ordered, utc_now(), artifacts, part)


def _text(fields: Sequence[Field]) -> str:
    return shortened(" ".join(field.typed for field in fields), 300)
