"""Locations of a beton's arrays, from its metadata and its table of arrays, which must agree."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from iobench.base.errors import corrupt
from iobench.contrib.formats.ffcv.beton import BYTES, ENTRY, JSON_TEXT, RGB_IMAGE, Beton, Column
from iobench.contrib.formats.ffcv.images import BetonImages, image_lists, unequal, unequal_shapes
from iobench.contrib.formats.shared.external import check_lengths
from iobench.contrib.formats.shared.placed_reader import FieldLocations
from iobench.contrib.formats.shared.scaled_images import ScaledDecoder
from iobench.formats import Array, Field, Listed, ListedSpans, LoadOrBuild, Placement, Schema, Strided


def locations_in(
    beton: Beton, schema: Schema, decode: ScaledDecoder | None, load_or_build: LoadOrBuild
) -> FieldLocations:
    """Return the locations of the fields; those of arrays come through `load_or_build`.

    `decode` scales images; without it, they have exactly their field's shape.
    """
    columns, files = beton.selected(schema.fields), (beton.path,)
    lists: Mapping[str, Array] = {}
    if any(column.number is not None for column in columns):
        shape = None if decode is None else decode.shape
        lists = load_or_build("arrays", lambda: [listed(beton, schema.fields, shape)])
    placement: dict[str, Placement] = {}
    blocks = []
    file = np.broadcast_to(np.int64(0), beton.samples)
    for field, column in zip(schema.fields, columns, strict=True):
        if column.number is None:
            placement[field.name] = Strided(files, column.at, beton.stride)
            continue
        offset = lists[f"{field.name}.offset"]
        if field.is_ragged:
            placement[field.name] = ListedSpans(files, file, offset, lists[f"{field.name}.size"])
            continue
        images = BetonImages.of(field, lists) if column.kind == RGB_IMAGE else None
        if images is not None and (decode is not None or images.encoded):
            blocks.append(images.blocks(files, field, decode))
        else:
            placement[field.name] = Listed(files, file, offset)
    return FieldLocations(placement, blocks)


def listed(
    beton: Beton, fields: Sequence[Field], scaled_shape: tuple[int, ...] | None = None
) -> dict[str, Array]:
    """Return the offset of each array, of ragged fields and images also the bytes, of images the size.

    CorruptArtifact, which names the sample, if metadata and table contradict each other or an array lies
    elsewhere than between them, or (``unequal-shapes``) if an array has another size than its field.
    """
    lists: dict[str, Array] = {}
    table = _table(beton)
    for field, column in zip(fields, beton.selected(fields), strict=True):
        if column.number is None:
            continue
        entries = table[:, column.number]
        _compare(beton, field, column, entries)
        lists[f"{field.name}.offset"] = entries["offset"].astype(np.int64)
        if column.kind == RGB_IMAGE:
            lists |= image_lists(beton.path, field.name, column.metadata, entries["bytes"])
        elif field.is_ragged:
            lists[f"{field.name}.size"] = entries["bytes"].astype(np.int64)
        if column.kind == RGB_IMAGE and not field.is_ragged:
            _check_pixels(beton, field, column, scaled_shape)
        else:
            check_lengths(field, entries["bytes"], field.sample_bytes, "bytes", lambda _: beton.path, 0)
    return lists


def image_files(
    beton: Beton, fields: Sequence[Field], scaled_shape: tuple[int, ...] | None, most: int
) -> list[memoryview]:
    """Return image files of at most so many samples, spread over the data, of the first such field."""
    columns = zip(fields, beton.selected(fields), strict=True)
    fields = [one for one, column in columns if column.kind == RGB_IMAGE and not one.is_ragged][:1]
    lists = listed(beton, fields, scaled_shape)
    rows = range(0, beton.samples, math.ceil(beton.samples / most))
    return [BetonImages.of(field, lists).image_in(beton.stored, row) for field in fields for row in rows]


def _table(beton: Beton) -> Array:
    """Return the table by sample, (samples, arrays), a sample's arrays in the order of its fields."""
    held, count = len(beton.stored) - beton.table, beton.samples * beton.arrays
    if beton.table < beton.end or held != count * ENTRY.itemsize:
        raise corrupt(beton.path, f"a table of {count} arrays at the end", f"{held} bytes")
    table: Array = beton.stored[beton.table :].view(ENTRY)
    samples = np.repeat(np.arange(beton.samples, dtype=np.uint64), beton.arrays)
    if (table["sample"] != samples).any():  # of several writers: each lists its own samples
        table = table[np.argsort(table["sample"], kind="stable")]
        if (wrong := np.flatnonzero(table["sample"] != samples)).size:
            sample = min(samples[wrong[0]], table["sample"][wrong[0]])
            raise corrupt(beton.path, f"{beton.arrays} arrays of sample {sample} in the table", "others")
    _check_separate(beton, table)
    return table.reshape(beton.samples, beton.arrays)


def _check_separate(beton: Beton, table: Array) -> None:
    """Raise CorruptArtifact if arrays lie elsewhere than between metadata and table, or overlap.

    An empty array may lie anywhere in the file.
    """
    offset, size = table["offset"], table["bytes"]
    low = np.where(size > 0, np.uint64(beton.end), np.uint64(0))
    outside = (offset < low) | (offset > beton.table) | (size > beton.table - np.minimum(offset, beton.table))
    order = np.argsort(offset, kind="stable")
    order = order[size[order] > 0]
    ends = (offset + size)[order]
    wrong = np.append(np.flatnonzero(outside), order[1:][ends[:-1] > offset[order][1:]])
    if wrong.size:
        one = table[wrong[0]]
        raise corrupt(
            beton.path,
            f"separate arrays of sample {one['sample']} in bytes {beton.end:,} to {beton.table:,}",
            f"{one['bytes']:,} bytes at {one['offset']:,}",
        )


def _compare(beton: Beton, field: Field, column: Column, entries: Array) -> None:
    """Raise CorruptArtifact if arrays lie elsewhere than their metadata say, or have another size."""
    offsets, sizes = column.offsets, entries["bytes"]
    wrong = entries["offset"] != offsets
    if column.kind in (BYTES, JSON_TEXT):
        wrong |= sizes != column.metadata["bytes"]
    if wrong.any():
        row = int(wrong.argmax())
        place = f"{sizes[row]:,} bytes at {entries['offset'][row]:,}"
        expected = f"{field.name} of sample {row} at {offsets[row]:,}, as in its metadata"
        raise corrupt(beton.path, expected, f"{place} in the table of arrays")


def _check_pixels(beton: Beton, field: Field, column: Column, scaled_shape: tuple[int, ...] | None) -> None:
    """Raise CorruptArtifact if images, unless they are scaled, have another shape than their field."""
    if scaled_shape is None and (row := unequal(column.metadata)) is not None:
        raise unequal_shapes(beton.path, field.name, column.metadata, row)
    held = column.as_field(field.name, scaled_shape)
    if held is not None and held != field:
        raise corrupt(beton.path, field.typed, held.typed)
