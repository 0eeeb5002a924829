"""Datasets in words: one that was written, added or is to be measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from iobench import formats
from iobench.base.finding import Finding
from iobench.base.text import listed, shortened
from iobench.base.units import bytes_text, counted, seconds_text
from iobench.dataset.manifest import Manifest
from iobench.dataset.prepare import Prepared
from iobench.formats import Schema
from iobench.formats.folders import NOT_READ
from iobench.results.display import Block, table
from iobench.results.metrics import mib_text
from iobench.terminal import display

_VERIFIED = {
    "written": "yes",
    "present": "yes, existing",
    "repaired": "yes, repaired",
    "added": "hashed in place",
}


def warn_or_keep(notes: list[Finding], one: Finding) -> None:
    """Print a warning about data, unless it belongs at the end; keep it."""
    notes.append(one)
    if one.kind != NOT_READ:
        display.warning(one)


def show(
    manifest: Manifest, rows: Sequence[Prepared], notes: Sequence[Finding], to_json: bool, *lines: str
) -> None:
    """Print a dataset that was written or added, and what of its source was not read."""
    if to_json:
        display.as_json(dataset_values(manifest, rows, notes))
        return
    display.result(dataset_line(manifest))
    display.blocks([artifacts_table(rows)])
    display.result(*lines)
    if files := files_read(manifest, notes):
        rest = "and something was left out"
        if complete(notes):
            rest = "the selected fields of them" if selected(manifest) else "all that they hold"
        display.note(f"read: {counted(files, 'file')}, {rest}")
    for one in notes:
        if one.kind == NOT_READ:
            display.note(one.sentence)


def dataset_line(manifest: Manifest, newest_in: Path | None = None) -> str:
    """Describe a dataset in one line: name, elements, samples and bytes.

    `newest_in` is the folder in which it is the newest, if it was not named.
    """
    schema = manifest.schema
    counts = f"{counted(schema.elements, 'element')}, {counted(schema.samples, 'sample')}"
    sample, whole = bytes_text(schema.sample_bytes), bytes_text(schema.logical_bytes)
    source = manifest.source
    packed = {field: f"{names[0]} … {names[-1]}" for field, names in source.get("packed", {}).items()}
    fields = schema.describe({**source.get("renamed", {}), **packed})
    newest = f" (the newest in {newest_in})" if newest_in else ""
    return f"dataset {manifest.name}: {counts} of {sample} ({fields}), {whole}{newest}"


def dataset_values(manifest: Manifest, rows: Sequence[Prepared], notes: Sequence[Finding]) -> dict[str, Any]:
    """Return a dataset, its artifacts and the notes about its source, for JSON."""
    schema = manifest.schema
    return {
        "name": manifest.name,
        "address": manifest.url or str(manifest.root),
        "samples": schema.samples,
        "fields": [field.typed for field in schema.fields],
        "logical_bytes": schema.logical_bytes,
        "artifacts": [
            {"variant": row.variant, "state": row.state, "stored_bytes": row.artifact.stored_bytes}
            for row in rows
        ],
        "read": {
            "files": files_read(manifest, notes),
            "complete": complete(notes) and not selected(manifest),
        },
        "notes": list(map(asdict, notes)),
    }


def files_read(manifest: Manifest, notes: Sequence[Finding]) -> int | None:
    """Return how many files of a source were read; None for generated data."""
    added = next(iter(manifest.added.values()), None)
    files = added.stamp.files if added else manifest.source.get("files")
    for values in (one.values for one in notes if one.kind == NOT_READ and "not_read" in one.values):
        skipped = sum(int(one.values.get("skipped", 0)) for one in notes)
        return int(values["files"]) - int(values["not_read"]) - skipped
    return None if files is None else int(files)


def selected(manifest: Manifest) -> bool:
    """Return whether arrays or fields of the source were named to be read."""
    if manifest.added:
        return any(one.partial for one in manifest.added.values())
    return bool({"arrays", "fields"} & manifest.source.keys())


def complete(notes: Sequence[Finding]) -> bool:
    """Return whether no note says that something was not read."""
    return not any(one.kind in (NOT_READ, "coverage", "damaged-skipped") for one in notes)


def artifacts_table(rows: Sequence[Prepared]) -> Block:
    """Return the artifacts that prepare wrote or add registered, one per row."""
    titles = ("format", "options", "stored", "ratio", "write", "MiB/s", "read back", "verified")
    return table(titles, map(_artifact_cells, rows), heads=2)


def _artifact_cells(row: Prepared) -> Sequence[str | None]:
    name, _, options = row.variant.partition(":")
    artifact, added = row.artifact, row.artifact.added
    return (
        name,
        options or ("default" if added is None else "existing"),
        bytes_text(artifact.stored_bytes),
        None if added is not None and added.partial else f"{row.ratio:.2f}",
        seconds_text(artifact.write_s) if added is None else None,
        mib_text(row.write_bytes_per_s) if added is None else None,
        seconds_text(artifact.verify_s),
        _VERIFIED[row.state],
    )


def renamed_lines(rows: Sequence[Prepared], schema: Schema) -> list[str]:
    """Return a line for each artifact whose files have other names of fields."""
    every = ((row.variant, formats.parse(row.variant).renamed(schema)) for row in rows)
    return [
        f"{variant} stores {listed([f'{shortened(field, 30)} as {own}' for field, own in renamed.items()])}"
        for variant, renamed in every
        if renamed
    ]
