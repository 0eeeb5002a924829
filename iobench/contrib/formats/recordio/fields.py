"""Locations of fields in the data of records, which iobench or another program wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.contrib.formats.recordio.records import HEAD, IR_HEADER, WORD, RecordIORecords, joined
from iobench.contrib.formats.shared.external import check_lengths, unequal_samples
from iobench.contrib.formats.shared.placed_reader import EncodedSpans, FieldLocations
from iobench.formats import (
    Array,
    Blocks,
    Field,
    Index,
    Listed,
    ListedSpans,
    LoadOrBuild,
    Placement,
    Schema,
)
from iobench.formats.payloads import LENGTH

LABEL_AT = 4  # in an IRHeader


@dataclass(frozen=True)
class RecordField:
    """Location of a field in a file, as if each record consisted of one part.

    It is `within` bytes behind the record's `offset`, both int64; a ragged field has `size` bytes.
    """

    field: Field
    offset: Index
    within: int = 0
    size: Index | None = None


def written_fields(records: RecordIORecords, schema: Schema, load_or_build: LoadOrBuild) -> FieldLocations:
    """Return the locations of the fields in records that iobench wrote.

    CorruptArtifact if there are more or fewer records, or if one has another size than its fields.
    """
    _check_count(records, schema)
    lists: Mapping[str, Array] = {}
    if schema.ragged:
        lists = load_or_build("fields", lambda: (_own_lists(one, schema) for one in records.pieces()))
    else:
        _check_sizes(records, IR_HEADER.size + schema.sample_bytes)
    places = schema.fixed.offsets(HEAD.size + IR_HEADER.size)
    fixed = [RecordField(field, records.begin, places[field.name]) for field in schema.fixed.fields]
    return _locations(records, fixed + [_listed(lists, field) for field in schema.ragged])


def foreign_fields(records: RecordIORecords, schema: Schema, load_or_build: LoadOrBuild) -> FieldLocations:
    """Return the locations of the fields in records that another program wrote; raises as `foreign_lists`."""
    _check_count(records, schema)
    lists = load_or_build("fields", lambda: (foreign_lists(one, schema.fields) for one in records.pieces()))
    return _locations(records, [_listed(lists, field) for field in schema.fields])


def foreign_lists(records: RecordIORecords, fields: Sequence[Field]) -> dict[str, Array]:
    """Return the offset and the size of `label` and one other field in records that another program wrote.

    Raises
    ------
    CorruptArtifact
        Kind ``too-many-arrays``; ``fields-differ`` if `label` has another dtype; ``truncated``; and
        ``unequal-shapes`` if a field of a record has another length.
    """
    _check_names(records.path, fields)
    records.check_least(np.full(len(records.begin), IR_HEADER.size))
    more = records.read(0, WORD).view("<u4")[:, 0].astype(np.int64)  # labels behind the header
    behind = IR_HEADER.size + WORD * more
    records.check_least(behind)
    lists: dict[str, Array] = {}
    for field in fields:
        at, size = behind, records.length - behind
        if field.name == "label":
            at, size = np.where(more > 0, IR_HEADER.size, LABEL_AT), WORD * np.maximum(1, more)
        check_lengths(field, size, field.sample_bytes, "bytes", lambda _: records.path, records.first)
        lists |= _lists(field, records.begin + HEAD.size + at, size)
    return lists


def _check_count(records: RecordIORecords, schema: Schema) -> None:
    if len(records.begin) != schema.samples:
        raise corrupt(records.path, f"{schema.samples} records", len(records.begin))


def _check_sizes(records: RecordIORecords, size: int) -> None:
    """Raise CorruptArtifact (``unequal-shapes``) if a record does not hold `size` bytes of data."""
    if (wrong := np.flatnonzero(records.length != size)).size:
        row = int(wrong[0])
        found = f"{records.length[row]} bytes"
        raise unequal_samples(records.path, f"record {row} has another size", f"{size} bytes", found)


def _check_names(path: Path, fields: Sequence[Field]) -> None:
    """Raise CorruptArtifact unless the fields are `label`, of float32, and at most one other."""
    others = [field.name for field in fields if field.name != "label"]
    if len(others) > 1:
        raise CorruptArtifact(
            "too many fields",
            kind="too-many-arrays",
            path=path,
            expected="label and at most one other field",
            found=", ".join(others),
        )
    if wrong := [field.dtype for field in fields if field.name == "label" and field.dtype != "float32"]:
        raise CorruptArtifact(
            "label has another dtype", kind="fields-differ", path=path, expected=wrong[0], found="float32"
        )


def _own_lists(records: RecordIORecords, schema: Schema) -> dict[str, Array]:
    """Return the offset and the size of each ragged field in records of payloads.

    CorruptArtifact if the lengths in a record do not add up to its size.
    """
    at, width = IR_HEADER.size + schema.fixed.sample_bytes, LENGTH.itemsize * len(schema.ragged)
    place = np.full(len(records.begin), at + width)
    records.check_least(place)
    lengths = records.read(at, width).view(LENGTH).astype(np.int64)
    wrong = np.zeros(len(place), np.bool_)
    lists: dict[str, Array] = {}
    for field, length in zip(schema.ragged, lengths.T, strict=True):
        wrong |= (length < 0) | (length > records.length // field.sample_bytes)
        size = np.where(wrong, 0, length) * field.sample_bytes
        lists |= _lists(field, records.begin + HEAD.size + place, size)
        place = place + size
    wrong |= place != records.length
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        expected = f"record {records.first + row} as long as its lengths say"
        raise corrupt(records.path, expected, f"{records.length[row]} bytes")
    return lists


def _lists(field: Field, offset: Index, size: Index) -> dict[str, Array]:
    """Return the arrays of an index cache."""
    return {f"{field.name}.offset": offset} | ({f"{field.name}.size": size} if field.is_ragged else {})


def _listed(lists: Mapping[str, Array], field: Field) -> RecordField:
    return RecordField(field, lists[f"{field.name}.offset"], size=lists.get(f"{field.name}.size"))


def _locations(records: RecordIORecords, fields: Sequence[RecordField]) -> FieldLocations:
    """Return the locations of fields; if a record consists of several parts, all records are decoded."""
    files, file = (records.path,), np.broadcast_to(np.int64(0), records.begin.shape)
    if records.in_parts.any():
        decoder, places = _Decoder(records), ListedSpans(files, file, records.begin, records.size)
        fixed = [one for one in fields if one.size is None]
        ragged = [one for one in fields if one.size is not None]
        spans = {one.field.name: EncodedSpans(places, partial(decoder.elements, one)) for one in ragged}
        return FieldLocations(blocks=[decoder.blocks(fixed, places)] if fixed else [], spans=spans)
    placement: dict[str, Placement] = {}
    for one in fields:
        if one.size is None:
            placement[one.field.name] = Listed(files, file, one.offset, one.within)
        else:
            placement[one.field.name] = ListedSpans(files, file, one.offset, one.size)
    return FieldLocations(placement)


@dataclass(frozen=True)
class _Decoder:
    """Joins the parts of a record, and takes fields out of it."""

    records: RecordIORecords

    def blocks(self, fields: Sequence[RecordField], places: ListedSpans) -> Blocks:
        """Return each record as a block of these fields, of one shape."""
        named = {one.field.name: one for one in fields}

        def decode(row: int, stored: memoryview, out: Mapping[str, Array]) -> None:
            data = joined(stored, self.records.path)
            for name, target in out.items():
                target.reshape(-1).view(np.uint8)[:] = self._within(named[name], row, data)

        rows = np.arange(len(self.records.begin))
        return Blocks(tuple(named), places.files, rows, places.file, places.offset, places.size, decode)

    def elements(self, one: RecordField, row: int, stored: memoryview) -> Array:
        """Return the elements of a ragged field of a record from its stored bytes."""
        return self._within(one, row, joined(stored, self.records.path)).view(one.field.dtype)

    def _within(self, one: RecordField, row: int, data: bytes) -> Array:
        begin = int(one.offset[row] - self.records.begin[row]) + one.within - HEAD.size
        end = begin + (one.field.sample_bytes if one.size is None else int(one.size[row]))
        if len(data) < end:
            raise corrupt(self.records.path, f"record {row} of at least {end} bytes", len(data))
        return np.frombuffer(data, np.uint8)[begin:end]
