"""tf.train.Example by hand: named features, each a list of bytes, floats or whole numbers.

Example  { Features features = 1; }
Features { map<string, Feature> feature = 1; }
Feature  { BytesList bytes = 1; FloatList floats = 2; Int64List ints = 3; }     one of them
…List    { repeated value = 1; }                                floats and ints packed into one run
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from iobench.formats._schema import Array, Field

BYTES, FLOATS, INTS = 1, 2, 3
VARINT, FIXED_8, RUN, FIXED_4 = 0, 1, 2, 5  # wire types
ENTRY = b"\x0a"  # field 1, a run of bytes
VALUE = b"\x12"  # field 2, a run of bytes
LONGEST_VARINT = 10


class BadExample(ValueError):
    """Bytes that are no Example; says why."""


@dataclass(frozen=True)
class Span:
    """Where the values of a feature lie in an Example; `end` is past the last byte."""

    kind: int
    begin: int
    end: int


@dataclass(frozen=True)
class ExampleLayout:
    """Where every feature's values lie in an Example of `size` bytes, and what lies between them."""

    size: int
    spans: Mapping[str, Span]

    @property
    def between(self) -> list[tuple[int, int]]:
        """The runs of bytes that are no values: begin and end of each."""
        edges = [0]
        for span in sorted(self.spans.values(), key=lambda span: span.begin):
            edges += [span.begin, span.end]
        edges.append(self.size)
        return [(low, high) for low, high in zip(edges[::2], edges[1::2], strict=True) if high > low]


def varint(value: int) -> bytes:
    """A whole number as seven bits to a byte, the lowest first."""
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])


def encoded(fields: Sequence[Field]) -> list[bytes | Field]:
    """An Example with each field as one value of bytes, in parts: a field stands where its bytes go."""
    entries: list[bytes | Field] = []
    total = 0
    for field in fields:
        head = b""
        for tag in (
            ENTRY,
            ENTRY,
            VALUE,
        ):  # of the value in its list, the list, the feature: from the inside out
            head = tag + varint(len(head) + field.sample_bytes) + head
        name = field.name.encode()
        key = ENTRY + varint(len(name)) + name
        size = len(key) + len(head) + field.sample_bytes
        head = ENTRY + varint(size) + key + head
        entries += [head, field]
        total += len(head) + field.sample_bytes
    return [ENTRY + varint(total), *entries]


def layout_of(data: memoryview) -> ExampleLayout:
    """Where the features of an Example lie; BadExample where it is none."""
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
    """The only run of values in a list; BadExample where there are several, or none."""
    single = {BYTES: RUN, FLOATS: FIXED_4, INTS: VARINT}[kind]
    found = [
        (low, high) for _, wire, low, high in _parts(data, begin, end, {1: None}) if wire in (RUN, single)
    ]
    if len(found) != 1:
        raise BadExample(f"feature {key} has {len(found)} values that are not in one run")
    return Span(kind, *found[0])


def _parts(
    data: memoryview, begin: int, end: int, wanted: Mapping[int, int | None]
) -> Iterator[tuple[int, int, int, int]]:
    """Number, wire type, begin and end of the wanted parts of a message; of others, nothing."""
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
        if number in wanted:
            if wanted[number] not in (None, wire):
                raise BadExample(f"part {number} of wire type {wire}")
            yield number, wire, start, place


def _varint(data: memoryview, place: int, end: int) -> tuple[int, int]:
    value = shift = 0
    for at in range(place, min(end, place + LONGEST_VARINT)):
        value |= (data[at] & 127) << shift
        if data[at] < 128:
            return value, at + 1
        shift += 7
    raise BadExample("a number that does not end")


def counts(packed: Array) -> Array:
    """How many numbers each row of packed ones holds; uint8 (rows, bytes)."""
    found: Array = (packed < 128).sum(1)
    return found


def unpacked(stored: memoryview) -> Array:
    """Packed numbers as int64; ValueError where the last does not end or one is too long."""
    raw = np.frombuffer(stored, np.uint8)
    ends = np.flatnonzero(raw < 128)
    if not raw.size or ends[-1] != len(raw) - 1:
        raise ValueError("numbers that do not end")
    begins = np.append(0, ends[:-1] + 1)
    within = np.arange(len(raw)) - np.repeat(begins, ends + 1 - begins)
    if within.max() >= LONGEST_VARINT:
        raise ValueError("a number of more than ten bytes")
    bits = (raw & 127).astype(np.uint64) << (7 * within).astype(np.uint64)
    found: Array = np.bitwise_or.reduceat(bits, begins).view(np.int64)
    return found
