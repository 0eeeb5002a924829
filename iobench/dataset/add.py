"""Data that others wrote, registered where they lie: recognise → describe → hash → manifest.

They are read only: everything that is written goes into the dataset's folder.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from iobench import formats
from iobench.base.errors import (
    ArtifactExists,
    SourceError,
)
from iobench.base.text import listed, printable, shortened
from iobench.dataset import apart, seal
from iobench.dataset.apart import Data
from iobench.dataset.manifest import FILE_NAME, Artifact, Manifest, check_name, check_readable
from iobench.dataset.manifest_body import Added, storable
from iobench.dataset.prepare import swept
from iobench.dataset.sources import Source, default_name, read_by_prepare
from iobench.dataset.staging import locked, os_errors
from iobench.dataset.tree import Tree
from iobench.dataset.verify import Progress, silent
from iobench.dataset.writer import CLOCK_S, Prepared, library_of
from iobench.formats import Batch, Field, Schema

__all__ = ["AddedSource", "add"]


def add(
    path: Path,
    format: str | None = None,
    *,
    name: str | None = None,
    fields: Sequence[Field] = (),
    data_dir: Path = Path("data"),
    overwrite: bool = False,
    progress: Progress = silent,
    warn: Callable[[str], None] = lambda sentence: None,
) -> tuple[Manifest, Prepared]:
    """List data that others wrote in a dataset, after each sample was hashed once; manifest and its new row.

    `path` is a file or folder, and may end in `::NAME,NAME` where the format can tell arrays apart.
    `format` is a word, by default the one that recognises them; `fields` are what data hold that do not
    say it themselves; `warn` is told what should be known of them. SourceError where they cannot be read,
    or change meanwhile; ArtifactExists where the dataset has other data and `overwrite` is not given, which
    forgets what it has.
    """
    path, names = formats.choice(Path(path))
    tree = Tree.of(_resolved(path))
    root = Path(data_dir) / check_name(name or default_name("-".join((path.resolve().stem, *names))))
    check_readable(root)
    _check_apart(tree.path, root)
    form = formats.parse(format or _recognised(tree.path))
    if names and not form.chooses:
        raise SourceError(
            f"{path}: format {form.name} cannot take arrays by name; leave out ::{','.join(names)} to add all"
        )
    whole = f"{tree.path}::{','.join(names)}" if names else tree.path
    described = _described(Data(Path(whole), form.variant, tree.stamp.bytes), fields, format)
    schema = described.schema
    for remark in described.remarks:
        warn(remark)
    if fields and schema.fields != tuple(fields):
        raise SourceError(f"{path}: it has other fields than --field says: {_text(schema)}")
    added = Added(str(tree.path), tree.stamp, names, bool(fields))
    with os_errors(root), locked(root):
        before = swept(root, overwrite)
        _check_free(before, form.variant, schema, added, overwrite)
        made = _hashed(root, schema, form, tree, added, progress)
        manifest = _extended(before, made, overwrite)
        manifest.save()
        seal.sweep(root, manifest.folders)
    return manifest, Prepared(form.variant, "added", made.artifacts[form.variant], schema.logical_bytes)


class AddedSource(Source):
    """What was added to a dataset, as the source of other formats of it."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest, self.schema, self.name = manifest, manifest.schema, manifest.name
        self._variant, self._added = next(iter(manifest.added.items()))

    @property
    def description(self) -> dict[str, Any]:
        """The dataset's own."""
        return self.manifest.source

    def batches(self) -> Iterator[Batch]:
        """All samples in order; CorruptArtifact where they changed since they were added, or meanwhile."""
        place = self.manifest.place_of(self._variant)
        place.check()
        yield from apart.batches(Data(place.path, self._variant, self._added.stamp.bytes), self.schema)
        place.check()


def _resolved(path: Path) -> Path:
    """The path without links; SourceError where there is nothing, or its name cannot be kept."""
    try:
        found = Path(os.path.realpath(path, strict=True))
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from error
    if printable(str(found)) != str(found):
        raise SourceError(
            f"{found}: the name holds bytes that are no text, or control characters; rename it, or give it "
            "a plain name by a link to it in another folder"
        )
    return found


def _check_apart(path: Path, root: Path) -> None:
    """Nothing is written into what is added, and nothing is added that prepare may remove."""
    target = Path(os.path.realpath(root))
    if target == path or path in target.parents:
        raise SourceError(
            f"{path}: the dataset's own folder, {root}, would lie in it; give another --data-dir"
        )
    for folder in (path, *path.parents):
        if (folder / seal.FILE_NAME).exists() and (folder.parent / FILE_NAME).exists():
            raise SourceError(
                f"{path}: prepare wrote it, and may replace it; measure it with 'iobench run --name "
                f"{folder.parent.name}', or add a copy"
            )


def _recognised(path: Path) -> str:
    """The word of the only format that recognises data; SourceError where none does, or several do."""
    found = apart.recognise(path)
    if found.mixed:
        raise SourceError(f"{path}: {found.mixed}, or say with --format what all of it is")
    if len(found.formats) == 1:
        return found.formats[0]
    if found.formats:
        raise SourceError(
            f"{path}: {' and '.join(found.formats)} both recognise it; say which with --format "
            f"{found.formats[0]}"
        )
    asked = [name for name in formats.names() if name not in found.missing]
    missing = f"; not asked, as their libraries are missing: {listed(found.missing)}" if found.missing else ""
    raise SourceError(
        f"{path}: no format recognises it, by its name and first bytes ({', '.join(asked)}){missing}; "
        f"{_what_else(path)}"
    )


def _what_else(path: Path) -> str:
    """What to do with data that no format recognises."""
    if read_by_prepare(path):
        return f"'iobench prepare --source {shlex.quote(str(path))}' reads it"
    return "if it is one of these, say so with --format, else write it in one of them first"


def _described(data: Data, fields: Sequence[Field], format: str | None) -> apart.Described:
    """What is in data; SourceError names the format that recognises them where another was asked for."""
    try:
        return apart.describe(data, fields)
    except SourceError as error:
        found = apart.recognise(data.file).formats if format else ()
        if len(found) != 1 or found[0] == formats.parse(data.kind).name:
            raise
        raise SourceError(f"{error}; {found[0]} recognises it: give --format {found[0]}, or none") from None


def _check_free(before: Manifest | None, variant: str, schema: Schema, added: Added, overwrite: bool) -> None:
    """ArtifactExists where the dataset has the variant from elsewhere, or other fields."""
    if before is None or overwrite:
        return
    if before.schema != schema and set(before.artifacts) - {variant}:
        raise _holds_others(before)
    if variant not in before.artifacts:
        return
    there = before.added.get(variant)
    if there is None or (there.path, there.names) != (added.path, added.names):
        what = "prepared" if there is None else f"from {there.path}"
        raise ArtifactExists(
            f"dataset {before.name} has {variant} already ({what}); give another --name, or --overwrite to "
            "forget what is there"
        )


def _hashed(
    root: Path, schema: Schema, form: formats.Format, tree: Tree, added: Added, progress: Progress
) -> Manifest:
    """The manifest of this alone, after every sample was read in order."""
    variant, started = form.variant, time.perf_counter()
    progress(f"hashing {variant}", 0, schema.logical_bytes)
    data = Data(tree.path, variant, tree.stamp.bytes)
    content, ordered = apart.checksum(
        data, schema, lambda done, total: progress(f"hashing {variant}", done, total)
    )
    if Tree.of(tree.path).stamp != tree.stamp:
        raise SourceError(
            f"{tree.path}: it changed while it was hashed; add it again when nothing writes to it"
        )
    artifact = Artifact(
        variant=variant,
        files={},
        stored_bytes=tree.disk_bytes,
        write_s=0.0,
        verify_s=max(time.perf_counter() - started, CLOCK_S),
        library=library_of(form),
        added=added,
    )
    source = {"kind": "added", "format": variant, "path": added.path, "arrays": list(added.names)}
    try:
        described = storable(schema, source)
    except (TypeError, ValueError) as error:
        raise SourceError(f"{tree.path}: it cannot be written into a manifest: {error}") from error
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Manifest(root, schema, described, content, ordered, now, {variant: artifact})


def _extended(before: Manifest | None, made: Manifest, overwrite: bool) -> Manifest:
    """What was there and holds the same data, with what is new; ArtifactExists where it holds other data."""
    if before is None or overwrite or set(before.artifacts) <= set(made.artifacts):
        return made
    if (before.schema, before.content, before.ordered) == (made.schema, made.content, made.ordered):
        return dataclasses.replace(before, artifacts={**before.artifacts, **made.artifacts})
    raise _holds_others(before)


def _holds_others(before: Manifest) -> ArtifactExists:
    return ArtifactExists(
        f"dataset {before.name} holds other data in {', '.join(before.artifacts)}; give another --name, or "
        "'iobench add --overwrite' to forget them: folders that prepare wrote are removed, data that were "
        "added stay"
    )


def _text(schema: Schema) -> str:
    return shortened(" ".join(field.typed for field in schema.fields), 300)
