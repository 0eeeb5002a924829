"""Encoder and parser of tf.train.Example: named features, each a list of bytes, floats or integers.

Example  { Features features = 1; }
Features { map<string, Feature> feature = 1; }
Feature  { BytesList bytes = 1; FloatList floats = 2; Int64List ints = 3; }     one of them
…List    { repeated value = 1; }                                floats and ints are packed
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.contrib.formats.shared.mapped_files import runs
from iobench.contrib.formats.shared.records import Records
from iobench.formats import Array, Field, Index

BYTES, FLOATS, INTS = 1, 2, 3
VARINT, FIXED_8, RUN, FIXED_4 = 0, 1, 2, 5  # wire types
ENTRY = b"\x0a"  # field 1, a run of bytes
VALUE = b"\x12"  # field 2, a run of bytes
LONGEST_VARINT = 10
AT_ONCE, LAYOUTS = 4096, 16  # records compared together, and layouts tried among them


class BadExample(ValueError):
    """The bytes are not an Example; the message gives the reason."""


@dataclass(frozen=True)
class Span:
    """Range of bytes of a feature's values in an Example; `end` is exclusive."""

    kind: int
    begin: int
    end: int


@dataclass(frozen=True)
class ExampleLayout:
    """Layout of an Example of `size` bytes: the range of each feature's values."""

    size: int
    spans: Mapping[str, Span]

    @property
    def between(self) -> list[tuple[int, int]]:
        """Begin and end of each range of bytes that are not values."""
        edges = [0]
        for span in sorted(self.spans.values(), key=lambda span: span.begin):
            edges += [span.begin, span.end]
        edges.append(self.size)
        return [(low, high) for low, high in zip(edges[::2], edges[1::2], strict=True) if high > low]


def varint(value: int) -> bytes:
    """Return a non-negative integer as a varint: seven bits per byte, lowest first."""
    encoding = bytearray()
    while value > 127:
        encoding.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoding, value])


def encoded(fields: Sequence[Field], sizes: Sequence[int]) -> list[bytes | Field]:
    """Return the parts of an Example with a value of so many bytes per field; a Field marks its place."""
    entries: list[bytes | Field] = []
    total = 0
    for field, size in zip(fields, sizes, strict=True):
        head = b""
        for tag in (ENTRY, ENTRY, VALUE):  # inside out: the value in its list, the list, the feature
            head = tag + varint(len(head) + size) + head
        name = field.name.encode()
        key = ENTRY + varint(len(name)) + name
        head = ENTRY + varint(len(key) + len(head) + size) + key + head
        entries += [head, field]
        total += len(head) + size
    return [ENTRY + varint(total), *entries]


def layout_of(data: memoryview) -> ExampleLayout:
    """Return the layout of an Example; BadExample if the bytes are not one."""
    spans: dict[str, Span] = {}
    for _, wire, begin, end in _parts(data, 0, len(data), {1: RUN}):
        for _, _, low, high in _parts(data, begin, end, {1: wire}):
            key, span = _entry(data, low, high)
            spans[key] = span
    return ExampleLayout(len(data), spans)


def _entry(data: memoryview, begin: int, end: int) -> tuple[str, Span]:
    key, span = "", Span(BYTES, begin, begin)
    for number, _, low, high in _parts(data, begin, end, {1: RUN, 2: RUN}):
        if number == 1:
            key = bytes(data[low:high]).decode("utf-8", "replace")
        else:
            for kind, _, first, last in _parts(data, low, high, {BYTES: RUN, FLOATS: RUN, INTS: RUN}):
                span = _values(data, key, kind, first, last)
    return key, span


def _values(data: memoryview, key: str, kind: int, begin: int, end: int) -> Span:
    """Return the range of a list's values, which may be none; BadExample unless they are in one run."""
    single = {BYTES: RUN, FLOATS: FIXED_4, INTS: VARINT}[kind]
    ranges = [
        (low, high) for _, wire, low, high in _parts(data, begin, end, {1: None}) if wire in (RUN, single)
    ]
    if not ranges:
        return Span(kind, begin, begin)
    if len(ranges) > 1:
        raise BadExample(f"feature {key} has {len(ranges)} separate values, not one packed list")
    return Span(kind, *ranges[0])


def _parts(
    data: memoryview, begin: int, end: int, requested: Mapping[int, int | None]
) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, wire type, begin and end of the requested parts of a message; skip others."""
    place = begin
    while place < end:
        tag, place = _varint(data, place, end)
        number, wire = tag >> 3, tag & 7
        size = {FIXED_8: 8, FIXED_4: 4}.get(wire, 0)
        start = place
        if wire == VARINT:
            _, place = _varint(data, place, end)
        elif wire == RUN:
            size, start = _varint(data, place, end)
        elif not size:
            raise BadExample(f"a part of wire type {wire}")
        place = max(place, start + size)
        if place > end:
            raise BadExample(f"a part of {size} bytes where {end - start} are left")
        if number in requested:
            if requested[number] not in (None, wire):
                raise BadExample(f"part {number} of wire type {wire}")
            yield number, wire, start, place


def _varint(data: memoryview, place: int, end: int) -> tuple[int, int]:
    value = shift = 0
    for at in range(place, min(end, place + LONGEST_VARINT)):
        value |= (data[at] & 127) << shift
        if data[at] < 128:
            return value, at + 1
        shift += 7
    raise BadExample("an unterminated number")


def unpacked(stored: memoryview) -> Array:
    """Return packed varints as int64; ValueError if the last is unterminated or one is too long."""
    raw = np.frombuffer(stored, np.uint8)
    if not raw.size:
        return np.empty(0, np.int64)
    ends = np.flatnonzero(raw < 128)
    if not ends.size or ends[-1] != len(raw) - 1:
        raise ValueError("an unterminated number")
    begins = np.append(0, ends[:-1] + 1)
    within = np.arange(len(raw)) - np.repeat(begins, ends + 1 - begins)
    if within.max() >= LONGEST_VARINT:
        raise ValueError("a number of more than ten bytes")
    bits = (raw & 127).astype(np.uint64) << (7 * within).astype(np.uint64)
    numbers: Array = np.bitwise_or.reduceat(bits, begins).view(np.int64)
    return numbers


def layout_in(records: Records, row: int) -> ExampleLayout:
    """Return the layout of a record; CorruptArtifact if it is not an Example."""
    try:
        return layout_of(records.data(row))
    except BadExample as error:
        expected = f"record {records.first + row} as a tf.train.Example"
        raise corrupt(records.path(row), expected, error) from error


def spans_of(
    records: Records, features: Mapping[str, int], options: str | None = None
) -> tuple[Array, Array]:
    """Return offsets and bytes of the values of each feature, int64 (features, records).

    With `options`, which select the features, a record with others is refused.

    Parses one record and compares many others with it at once: records whose bytes between the values are
    equal have the same layout. This avoids parsing each record.
    """
    count = len(records)
    begin, size = np.empty((len(features), count), np.int64), np.empty((len(features), count), np.int64)
    for low in range(0, count, AT_ONCE):
        left, tried = np.arange(low, min(low + AT_ONCE, count)), 0
        while left.size:
            row, tried = int(left[0]), tried + 1
            layout = layout_in(records, row)
            alike = _alike(records, left, row, layout) if tried <= LAYOUTS else left == row
            if options is not None and (others := layout.spans.keys() - features.keys()):
                raise CorruptArtifact(
                    f"record {records.first + row} has a feature that the first one lacks: {min(others)}",
                    kind="fields-differ",
                    path=records.path(row),
                    hint=f"write it to all records, or name the fields to read: {options}",
                )
            for number, (key, kind) in enumerate(features.items()):
                span = layout.spans.get(key)
                if span is None or (span.kind != kind and span.begin < span.end):
                    actual, where = "none" if span is None else "values of another type", records.first + row
                    raise corrupt(records.path(row), f"feature {key} in record {where}", actual)
                begin[number, left[alike]] = records.offset[left[alike]] + span.begin
                size[number, left[alike]] = span.end - span.begin
            left = left[~alike]
    return begin, size


def _alike(records: Records, rows: Index, row: int, layout: ExampleLayout) -> Array:
    """Return a mask of the records that equal record `row` in all bytes between the values."""
    alike: Array = records.length[rows] == layout.size
    data, stored = np.frombuffer(records.data(row), np.uint8), records.maps[int(records.file[row])]
    for low, high in layout.between:
        at = np.flatnonzero(alike)
        for some, piece in runs(stored, records.offset[rows[at]] + low, high - low):
            alike[at[some]] = (piece == data[low:high]).all(1)
    return alike


def counts_of(records: Records, begin: Index, size: Index) -> Index:
    """Return the number of packed integers in each record, of values at these places."""
    counts, stored = np.zeros(len(size), np.int64), records.maps[int(records.file[0])]
    for width in np.unique(size[size > 0]).tolist():
        rows = np.flatnonzero(size == width)
        for some, packed in runs(stored, begin[rows], width):
            counts[rows[some]] = (packed < 128).sum(1)
    return counts
