"""Add data that iobench did not write to a dataset: sniff, describe, hash, list in the manifest.

The data are only read; all writes go to the dataset's folder.
"""

from __future__ import annotations

import dataclasses
import math
import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from iobench import formats
from iobench.base.errors import ArtifactExists, SourceError
from iobench.base.finding import Finding
from iobench.base.text import listed, printable, shortened
from iobench.dataset import sandbox, seal
from iobench.dataset.artifact_writer import CLOCK_S, Prepared, library_of
from iobench.dataset.checksum import Checksum
from iobench.dataset.dataset_folders import check_name
from iobench.dataset.file_tree import FileTree
from iobench.dataset.hashed_rows import HashedRows
from iobench.dataset.hashing import PART_S, hash_rows, hashed_in_part, rows_to_hash
from iobench.dataset.manifest import Manifest
from iobench.dataset.manifest_body import Artifact, Checksums, ExternalData, HashedPart, storable
from iobench.dataset.manifest_file import FILE_NAME, check_readable
from iobench.dataset.prepare import sweep_and_load
from iobench.dataset.sample_hashes import HashWriter
from iobench.dataset.sandbox import Description
from iobench.dataset.sources import Source, convertible, default_name
from iobench.dataset.sources._regular_files import CLOSE_WRITERS, no_such_path, refused_by_system
from iobench.dataset.staging import locked, os_errors
from iobench.dataset.untrusted_data import UntrustedData
from iobench.dataset.verify import Progress, no_progress
from iobench.formats import Batch, Field, Schema

__all__ = ["AddedSource", "add"]


def add(
    path: str | Path,
    format: str | None = None,
    *,
    name: str | None = None,
    fields: Sequence[Field] = (),
    data_dir: str | Path = Path("data"),
    overwrite: bool = False,
    hash: str = "auto",
    first: Schema | None = None,
    hash_s: float = PART_S,
    progress: Progress = no_progress,
    warn: Callable[[Finding], None] = lambda finding: None,
) -> tuple[Manifest, Prepared]:
    """Add existing data to a dataset where they lie, after hashing their samples once.

    Parameters
    ----------
    path : str or Path
        File or folder; may end in `::NAME,NAME` to select arrays.
    format : str, optional
        Format with options; by default the one that recognizes the data.
    name : str, optional
        Name of the dataset; by default made from the path.
    fields : sequence of Field
        Fields of data that do not describe themselves.
    data_dir : str or Path
        Folder of all datasets.
    overwrite : bool
        Replace the data of an existing dataset.
    hash : str
        ``full`` for every sample; ``auto`` for a part of large data, see `hashing`.
    first : Schema, optional
        Make a dataset of the first samples, of which all are hashed: their number, and their totals.
    hash_s : float
        Seconds for hashing, with ``auto``: of data that would take longer, a part is hashed.
    progress : callable
        Called with the activity, the bytes done and the bytes in total.
    warn : callable
        Called with each warning about the data.

    Returns
    -------
    manifest : Manifest
        The dataset.
    row : Prepared
        The new artifact.

    Raises
    ------
    SourceError
        If the data cannot be read, or change while they are hashed.
    ArtifactExists
        If the dataset holds other data and `overwrite` is not given.
    """
    path, names = formats.split_selection(Path(path))
    tree = FileTree.of(_resolved(path))
    root = Path(data_dir) / check_name(name or default_name("-".join((path.resolve().stem, *names))))
    check_readable(root)
    _check_separate(tree.path, root)
    form = formats.parse(format or _sniffed(tree.path))
    _check_selectable(path, form, names)
    selected = formats.with_selection(tree.path, names)
    description = _describe(UntrustedData(selected, form.variant, tree.stamp.bytes), fields, format)
    held = description.schema
    part = first if first and first.samples < held.samples else None
    schema = dataclasses.replace(held, samples=part.samples, totals=part.totals) if part else held
    for note in description.notes:
        warn(note)
    _check_fields(path, schema, fields)
    stored = (held.samples, held.totals) if part else ()
    added = ExternalData(str(tree.path), tree.stamp, names, bool(fields), *stored)
    with os_errors(root), locked(root), HashWriter.temporary(root) as writer:
        before = sweep_and_load(root, overwrite)
        _check_free(before, form.variant, schema, added, overwrite)
        others = before is not None and not overwrite and bool(set(before.artifacts) - {form.variant})
        hashed = rows_to_hash(before if others else None, schema, hash, hash_s)
        report = partial(progress, f"hashing {form.variant}")
        read = partial(
            hash_rows,
            schema=schema,
            hashed=hashed,
            part_s=math.inf if others else hash_s,
            writer=writer,
            report=report,
        )
        made = _hashed(root, schema, form, tree, added, read)
        if first is not None:
            made.source["first"] = schema.samples
        manifest = _extended(before, made, overwrite)
        manifest.save()
        writer.keep(manifest, form.variant)
        seal.sweep(root, manifest.folders)
    if manifest.part is not None:
        warn(hashed_in_part(manifest))
    return manifest, Prepared(form.variant, "added", made.artifacts[form.variant], schema.logical_bytes)


class AddedSource(Source):
    """Added data of a dataset, as the source of its other formats."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest, self.schema, self.name = manifest, manifest.schema, manifest.name
        self._variant, self._added = next(iter(manifest.added.items()))

    @property
    def description(self) -> dict[str, Any]:
        """Description of the dataset's source."""
        return self.manifest.source

    def in_place(self) -> tuple[Path, str] | None:
        """Return the added data."""
        return formats.with_selection(Path(self._added.path), self._added.names), self._variant

    def batches(self) -> Iterator[Batch]:
        """Yield all samples in order; raises CorruptArtifact if they changed since they were added."""
        location = self.manifest.location_of(self._variant)
        location.check()
        data = _untrusted(location.path, self._variant, self._added, self.schema)
        try:
            yield from sandbox.batches(data, self.schema)
        except SourceError as error:
            raise error.changed(hint=error.hint or location.hint) from error
        location.check()


def _check_selectable(path: Path, form: formats.Format, names: Sequence[str]) -> None:
    """Raise SourceError if arrays are named in data whose format has none to select."""
    if names and not (isinstance(form, formats.Detectable) and form.selectable):
        raise SourceError(
            f"format {form.name} cannot select arrays by name",
            kind="not-selectable",
            path=path,
            hint=f"omit ::{','.join(names)} to add all arrays",
        )


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
    asked = ", ".join(name for name in formats.names() if name not in result.missing)
    missing = f"; libraries missing for {listed(result.missing)}" if result.missing else ""
    raise SourceError(
        f"no format recognizes it by its name and first bytes ({asked}{missing})",
        kind="unrecognized",
        path=path,
        hint=_alternative(path),
    )


def _alternative(path: Path) -> str:
    """Return the hint for data that no format recognizes."""
    if convertible(path):
        return f"convert it with 'iobench prepare --source {shlex.quote(str(path))}'"
    return "if it is one of these formats, give --format; otherwise write it in one of them first"


def _describe(data: UntrustedData, fields: Sequence[Field], format: str | None) -> Description:
    """Infer the schema of data; an error names the format that recognizes them if another was given."""
    try:
        return sandbox.describe(data, fields)
    except SourceError as error:
        names = sandbox.sniff(data.file).formats if format else ()
        if len(names) != 1 or names[0] == formats.parse(data.kind).name:
            raise
        hint = f"{names[0]} recognizes it: give --format {names[0]}, or omit --format"
        raise error.changed(hint=hint) from None


def _check_free(
    before: Manifest | None, variant: str, schema: Schema, added: ExternalData, overwrite: bool
) -> None:
    """Raise ArtifactExists if the dataset has the variant from elsewhere, or other fields."""
    if before is None or overwrite:
        return
    if before.schema != schema and set(before.artifacts) - {variant}:
        raise _other_data(before)
    if variant not in before.artifacts:
        return
    existing = before.added.get(variant)
    if existing is None or (existing.path, existing.names) != (added.path, added.names):
        origin = "prepared" if existing is None else f"added from {existing.path}"
        raise ArtifactExists(
            f"dataset {before.name} already has {variant} ({origin})",
            kind="variant-exists",
            hint="use another --name, or --overwrite to replace the dataset",
        )


def _untrusted(path: Path, variant: str, added: ExternalData, schema: Schema) -> UntrustedData:
    return UntrustedData(path, variant, added.stamp.bytes, stored=added.schema(schema))


def _hashed(
    root: Path,
    schema: Schema,
    form: formats.Format,
    tree: FileTree,
    added: ExternalData,
    read: Callable[[UntrustedData], tuple[Checksum, HashedRows]],
) -> Manifest:
    """Read the rows to hash and return a manifest of this artifact alone."""
    variant, started = form.variant, time.perf_counter()
    check, hashed = read(_untrusted(tree.path, variant, added, schema))
    if FileTree.of(tree.path).stamp != tree.stamp:
        raise SourceError("changed while it was hashed", kind="changed", path=tree.path, hint=CLOSE_WRITERS)
    artifact = Artifact(
        variant=variant,
        files={},
        stored_bytes=tree.disk_bytes,
        write_s=0.0,
        verify_s=max(time.perf_counter() - started, CLOCK_S),
        library=library_of(form),
        added=added,
    )
    source: dict[str, Any] = {"kind": "added", "format": variant, "path": added.path}
    source["arrays"] = list(added.names)
    source |= {"renamed": schema.renamed} if schema.renamed else {}
    described = storable(schema, source, tree.path)
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    part = None if hashed.whole else HashedPart(hashed.piece_rows, hashed.pieces)
    return Manifest(root, schema, described, check.content, check.ordered, now, {variant: artifact}, part)


def _extended(before: Manifest | None, made: Manifest, overwrite: bool) -> Manifest:
    """Add the new artifact to a dataset of the same data; raises ArtifactExists if it holds other data."""
    if before is None or overwrite or set(before.artifacts) <= set(made.artifacts):
        return made
    if _data_of(before) == _data_of(made):
        return dataclasses.replace(before, artifacts={**before.artifacts, **made.artifacts})
    ((variant, artifact),) = made.artifacts.items()
    if not formats.parse(variant).lossless and _same_files(before, made):
        artifact = msgspec.structs.replace(artifact, checksum=Checksums.of(made.content, made.ordered))
        return dataclasses.replace(before, artifacts={**before.artifacts, variant: artifact})
    raise _other_data(before)


def _data_of(manifest: Manifest) -> tuple[object, ...]:
    return manifest.schema, manifest.part, manifest.content, manifest.ordered


def _same_files(before: Manifest, made: Manifest) -> bool:
    """Return whether both describe the same samples of the same files, which are decoded in other ways."""
    if (before.schema, before.part) != (made.schema, made.part):
        return False
    (added,) = made.added.values()
    return any((one.path, one.stamp) == (added.path, added.stamp) for one in before.added.values())


def _other_data(before: Manifest) -> ArtifactExists:
    return ArtifactExists(
        f"dataset {before.name} holds other data in {', '.join(before.artifacts)}",
        kind="other-data",
        hint="use another --name, or 'iobench add --overwrite' to replace the dataset: folders that prepare "
        "wrote are removed, added data stay",
    )


def _text(fields: Sequence[Field]) -> str:
    return shortened(" ".join(field.typed for field in fields), 300)
