"""LMDB environments as others write them: which key each sample has, and what their values are."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iobench.base.errors import (
    CorruptArtifact,
)
from iobench.base.text import listed, shortened
from iobench.formats._arrays import check_sample
from iobench.formats._schema import Field, Schema

MOST_OTHERS = 16  # keys beside those of samples, which hold lengths, names and the like

_MAGIC = {b"\xff\xd8\xff": "JPEG images", b"\x89PNG": "PNG images", b"\x93NUMPY": ".npy files"}


@dataclass(frozen=True)
class Keys:
    """How the key of a sample is written.

    `width`: bytes of a key, 0 for decimal digits without leading zeros. `start`: the number of row 0.
    """

    digits: bool
    width: int
    start: int

    def pack(self, row: int) -> bytes:
        """The key of a row."""
        number = row + self.start
        return b"%0*d" % (self.width, number) if self.digits else number.to_bytes(self.width, "big")

    def number(self, key: bytes) -> int | None:
        """The row that a key is of; None where it is no sample's."""
        if self.width and len(key) != self.width:
            return None
        if not self.digits:
            return int.from_bytes(key, "big") - self.start
        plain = key.isdigit() and (self.width or len(key) == 1 or key[:1] != b"0")
        return int(key) - self.start if plain else None

    @property
    def ordered(self) -> bool:
        """Whether the library holds the keys in the order of the rows."""
        return self.width > 0


def keys_of(path: Path, txn: Any) -> Keys:
    """How the samples' keys are written, by the first key; CorruptArtifact where they are no numbers."""
    with txn.cursor() as cursor:
        first = bytes(cursor.key()) if cursor.first() else b""
        second = bytes(cursor.key()) if cursor.next() else first
    if first.isdigit():
        padded = len(first) > 1 and len(first) == len(second)
        found = Keys(True, len(first) if padded else 0, int(first))
    else:
        found = Keys(False, len(first), int.from_bytes(first, "big"))
    if not first or found.start > 1 or (not found.digits and len(first) not in (4, 8)):
        raise CorruptArtifact(
            f"{path}: its first key is {shortened(repr(first))}; the keys of samples must be their numbers "
            "from 0 or 1 on, in digits or as big-endian integers of 4 or 8 bytes"
        )
    return found


def others_at_end(txn: Any, keys: Keys) -> int:
    """How many keys that are no samples' come after the last one that is."""
    with txn.cursor() as cursor:
        found = (keys.number(bytes(key)) is None for key in cursor.iterprev(values=False))
        return sum(itertools.takewhile(bool, found))


def infer_schema(path: Path, txn: Any, fields: Sequence[Field]) -> Schema:
    """The schema of raw values whose fields are told; looks at every key and at every value's length."""
    keys, samples, highest = keys_of(path, txn), 0, -1
    others: list[str] = []
    lengths: set[int] = set()
    for key, value in txn.cursor():
        number = keys.number(bytes(key))
        if number is None:
            others.append(shortened(repr(bytes(key)), 40))
            if len(others) > MOST_OTHERS:
                raise CorruptArtifact(f"{path}: its keys are not those of samples alone: {listed(others)}")
            continue
        if not samples:
            _refuse_packed(path, bytes(value))
        samples, highest = samples + 1, max(highest, number)
        lengths.add(len(value))
    if highest != samples - 1:  # keys are distinct, so as many as the highest are all
        raise CorruptArtifact(f"{path}: {samples} samples, and the last is number {highest + keys.start}")
    if len(lengths) > 1:
        raise CorruptArtifact(
            f"{path}: its values have {min(lengths):,} to {max(lengths):,} bytes; samples must be all of one "
            "shape: pad them, or cut them to a fixed crop, and write them again"
        )
    return _told(path, samples, lengths.pop(), tuple(fields))


def _told(path: Path, samples: int, value_bytes: int, fields: tuple[Field, ...]) -> Schema:
    if not fields:
        raise CorruptArtifact(
            f"{path}: its values of {value_bytes:,} bytes do not say what is in them; say it to "
            "'iobench add' in the order in which it lies: --field 'x=float32[3,224,224]' --field 'y=int64'"
        )
    schema = Schema(samples, fields)
    if schema.sample_bytes != value_bytes:
        raise CorruptArtifact(
            f"{path}: its values have {value_bytes:,} bytes, and the fields that were told make "
            f"{schema.sample_bytes:,}: tell all that is in a value, in the order in which it lies, and its "
            "dtypes and shapes as they were written"
        )
    check_sample(f"{path}", (), schema.sample_bytes)
    return schema


def _refuse_packed(path: Path, value: bytes) -> None:
    """CorruptArtifact where a value is no raw array, as far as its first bytes show."""
    kinds = [kind for magic, kind in _MAGIC.items() if value.startswith(magic)]
    if value[:1] == b"\x80" and value[1:2] in (b"\2", b"\3", b"\4", b"\5") and value[-1:] == b".":
        kinds.append("pickled, and nothing is unpickled here")
    if kinds:
        raise CorruptArtifact(
            f"{path}: its values are {kinds[0]}; write raw arrays, array.tobytes(), or prepare another format"
        )
