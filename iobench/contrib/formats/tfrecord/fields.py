"""Features of tf.train.Example records as fields: dtypes, shapes and locations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.contrib.formats.shared.external import as_options, check_lengths, not_fixed
from iobench.contrib.formats.shared.placed_reader import EncodedSpans, FieldLocations, runs
from iobench.contrib.formats.tfrecord import example
from iobench.contrib.formats.tfrecord.example import BYTES, FLOATS, INTS, ExampleLayout
from iobench.contrib.formats.tfrecord.records import TFRecords
from iobench.formats import (
    VARIES,
    Array,
    Blocks,
    Decode,
    Field,
    Index,
    Listed,
    ListedSpans,
    Placement,
    Schema,
    fields_by_name,
)

AT_ONCE, LAYOUTS = 4096, 16  # records compared together, and layouts tried among them


def fields_of(path: Path, records: TFRecords) -> tuple[Field, ...]:
    """Return the fields of the first record's features.

    CorruptArtifact of kind ``name-clash``, or ``fields-needed``: a feature of bytes does not state its dtype
    and shape.
    """
    layout = records.layout(0)
    names = fields_by_name(path, sorted(layout.spans))
    kinds = {key: layout.spans[key].kind for key in names.values()}
    begin, size = _spans(records, kinds)
    places = {key: (begin[number], size[number]) for number, key in enumerate(kinds)}
    known = [
        _field(records, name, kinds[key], *places[key]) for name, key in names.items() if kinds[key] != BYTES
    ]
    if unknown := [key for key in names.values() if kinds[key] == BYTES]:
        typed = [as_options(known)] if known else []
        typed += [
            f"--field '{name}=DTYPE[{'SHAPE' if np.ptp(places[key][1]) == 0 else '*'}]'"
            for name, key in names.items()
            if key in unknown
        ]
        raise CorruptArtifact(
            f"bytes of {', '.join(unknown)} do not describe dtype and shape",
            kind="fields-needed",
            path=path,
            hint=f"name the fields to read: {' '.join(typed)}",
        )
    return tuple(known)


def _field(records: TFRecords, name: str, kind: int, begin: Index, size: Index) -> Field:
    """Return the field of a list of floats or integers; one value is a scalar."""
    counts = size // 4 if kind == FLOATS else _counts(records, begin, size)
    dtype, count = "float32" if kind == FLOATS else "int64", int(counts.max())
    if not count:
        raise not_fixed(records.path(0), f"feature {name}", "only empty lists")
    if counts.min() < count:
        return Field(name, (VARIES,), dtype)
    return Field(name, () if count == 1 else (count,), dtype)


def locations_of(records: TFRecords, schema: Schema, lists: Mapping[str, Array]) -> FieldLocations:
    """Return the locations of the fields, from the arrays of `lists_of`."""
    files = records.maps.files
    placement: dict[str, Placement] = {}
    blocks, spans = [], {}
    for number, field in enumerate(schema.fields):
        begin, size = lists[f"begin_{number}"], lists.get(f"size_{number}")
        if size is None:
            placement[field.name] = Listed(files, records.file, begin)
        elif field.is_ragged and f"count_{number}" in lists:
            places = ListedSpans(files, records.file, begin, size)
            spans[field.name] = EncodedSpans(places, partial(_unpacked, records, field.name))
        elif field.is_ragged:
            placement[field.name] = ListedSpans(files, records.file, begin, size)
        else:
            decode, rows = _decoder(records, field.name), np.arange(schema.samples)
            blocks.append(Blocks((field.name,), files, rows, records.file, begin, size, decode))
    return FieldLocations(placement, blocks, spans)


def totals_of(lists: Mapping[str, Array], fields: Sequence[Field]) -> dict[str, int]:
    """Return the sum of the lengths of each ragged field in a piece of `lists_of`."""
    totals = {}
    for number, field in enumerate(fields):
        if field.is_ragged:
            counts = lists.get(f"count_{number}")
            elements = counts if counts is not None else lists[f"size_{number}"] // field.sample_bytes
            totals[field.name] = int(elements.sum()) // (field.elements if counts is not None else 1)
    return totals


def lists_of(pieces: Iterable[TFRecords], fields: Sequence[Field]) -> Iterator[dict[str, Array]]:
    """Yield int64 arrays per field number: each record's value offset, and its bytes where they may differ.

    Of ragged fields of packed integers, also their number.

    Raises
    ------
    CorruptArtifact
        The records do not match `fields`; kind ``fields-differ`` if a feature has another dtype, and
        ``unequal-shapes`` if it has another length.
    """
    features: dict[str, int] = {}
    for records in pieces:
        features = features or _features(records, fields)
        yield _lists(records, fields, features)


def _features(records: TFRecords, fields: Sequence[Field]) -> dict[str, int]:
    """Return the kind of the feature of each field, by its name in the first record."""
    layout, folder = records.layout(0), records.maps.files[0].parent
    names = fields_by_name(folder, sorted(layout.spans))
    if missing := [field.name for field in fields if field.name not in names]:
        raise corrupt(folder, f"features {', '.join(missing)}", ", ".join(names) or "none")
    features = {}
    for field in fields:
        kind = features[names[field.name]] = layout.spans[names[field.name]].kind
        stored = {FLOATS: "float32", INTS: "int64"}.get(kind, field.dtype)
        if field.dtype != stored:
            raise CorruptArtifact(
                f"feature {field.name} has another dtype",
                kind="fields-differ",
                path=records.path(0),
                expected=field.dtype,
                found=stored,
            )
    return features


def _lists(records: TFRecords, fields: Sequence[Field], features: Mapping[str, int]) -> dict[str, Array]:
    begin, size = _spans(records, features)
    lists: dict[str, Array] = {}
    for number, (field, kind) in enumerate(zip(fields, features.values(), strict=True)):
        lists[f"begin_{number}"] = begin[number]
        if kind == INTS or field.is_ragged:
            lists[f"size_{number}"] = size[number]
        if kind == INTS:
            counts = _counts(records, begin[number], size[number])
            check_lengths(field, counts, field.elements, "numbers", records.path, records.first)
            if field.is_ragged:
                lists[f"count_{number}"] = counts
        else:
            check_lengths(field, size[number], field.sample_bytes, "bytes", records.path, records.first)
    return lists


def _spans(records: TFRecords, features: Mapping[str, int]) -> tuple[Array, Array]:
    """Return offsets and bytes of the values of each feature, int64 (features, records).

    Parses one record and compares many others with it at once: records whose bytes between the values are
    equal have the same layout. This avoids parsing each record.
    """
    count = len(records.file)
    begin, size = np.empty((len(features), count), np.int64), np.empty((len(features), count), np.int64)
    for low in range(0, count, AT_ONCE):
        left, tried = np.arange(low, min(low + AT_ONCE, count)), 0
        while left.size:
            row, tried = int(left[0]), tried + 1
            layout = records.layout(row)
            alike = _alike(records, left, row, layout) if tried <= LAYOUTS else left == row
            for number, (key, kind) in enumerate(features.items()):
                span = layout.spans.get(key)
                if span is None or (span.kind != kind and span.begin < span.end):
                    actual, where = "none" if span is None else "values of another type", records.first + row
                    raise corrupt(records.path(row), f"feature {key} in record {where}", actual)
                begin[number, left[alike]] = records.offset[left[alike]] + span.begin
                size[number, left[alike]] = span.end - span.begin
            left = left[~alike]
    return begin, size


def _alike(records: TFRecords, rows: Index, row: int, layout: ExampleLayout) -> Array:
    """Return a mask of the records that equal record `row` in all bytes between the values."""
    alike: Array = (records.length[rows] == layout.size) & (records.file[rows] == records.file[row])
    data, stored = np.frombuffer(records.data(row), np.uint8), records.maps[int(records.file[row])]
    for low, high in layout.between:
        at = np.flatnonzero(alike)
        for some, piece in runs(stored, records.offset[rows[at]] + low, high - low):
            alike[at[some]] = (piece == data[low:high]).all(1)
    return alike


def _counts(records: TFRecords, begin: Index, size: Index) -> Index:
    """Return the number of packed integers in each record."""
    counts = np.zeros(len(size), np.int64)
    for number in np.unique(records.file).tolist():
        for width in np.unique(size[records.file == number]).tolist():
            rows = np.flatnonzero((records.file == number) & (size == width))
            for some, packed in runs(records.maps[number], begin[rows], max(1, width)):
                counts[rows[some]] = example.counts(packed) if width else 0
    return counts


def _decoder(records: TFRecords, name: str) -> Decode:
    """Return the decoder of packed integers, one record per block."""

    def decode(number: int, stored: memoryview, out: Mapping[str, Array]) -> None:
        target, numbers = out[name], _unpacked(records, name, number, stored)
        if numbers.size != target.size:
            raise corrupt(records.path(number), f"{target.size} numbers", numbers.size)
        target[...] = numbers.reshape(target.shape)

    return decode


def _unpacked(records: TFRecords, name: str, number: int, stored: memoryview) -> Array:
    """Return the packed integers of a record."""
    try:
        return example.unpacked(stored)
    except ValueError as error:
        raise corrupt(records.path(number), f"{name} of record {number}", error) from error
