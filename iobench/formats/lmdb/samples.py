"""Samples in LMDB: keys, header of a value and schema of ours; keys and values of other programs."""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.base.text import listed, shortened
from iobench.formats.array_schema import check_sample
from iobench.formats.lmdb.pages import Lookup
from iobench.formats.schema import Field, Schema

HEADER = struct.Struct("<2sBBI")
MAGIC, LAYOUT = b"IO", 1
CODECS: dict[str | None, int] = {None: 0, "lz4": 1}
SCHEMA_KEY = b"schema"
KEY = struct.Struct(">Q")
DATA_FILE = "data.mdb"


def data_file(path: Path) -> Path:
    """Return the data file of an environment, which is a folder or a single file."""
    return path / DATA_FILE if path.is_dir() or not path.exists() else path


def described(schema: Schema) -> bytes:
    """Return the fields as JSON, the value of the schema's key."""
    totals = {name: {"total": total} for name, total in schema.totals.items()}
    return json.dumps([asdict(field) | totals.get(field.name, {}) for field in schema.fields]).encode()


def read_described(file: Path, text: bytes, samples: int) -> Schema:
    """Parse the schema that `write` stored; CorruptArtifact if it is not JSON."""
    try:
        stored = json.loads(text)
        fields = [Field(one["name"], tuple(one["shape"]), one["dtype"]) for one in stored]
        totals = {one["name"]: int(one["total"]) for one in stored if "total" in one}
        return Schema(samples, tuple(fields), totals=totals)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise corrupt(file, "fields as JSON", shortened(repr(text))) from error


MOST_OTHERS = 16  # keys that are not samples': lengths, names and the like

_MAGIC = {b"\xff\xd8\xff": "JPEG images", b"\x89PNG": "PNG images", b"\x93NUMPY": ".npy files"}


@dataclass(frozen=True)
class Keys:
    """Notation of the samples' keys."""

    digits: bool  # True for decimal digits, False for big-endian integers
    width: int  # bytes of a key; 0 for digits without leading zeros
    start: int  # number of row 0

    def pack(self, row: int) -> bytes:
        """Return the key of a row."""
        number = row + self.start
        return b"%0*d" % (self.width, number) if self.digits else number.to_bytes(self.width, "big")

    def number(self, key: bytes) -> int | None:
        """Return the row of a key; None if it is not a sample's."""
        if self.width and len(key) != self.width:
            return None
        if not self.digits:
            return int.from_bytes(key, "big") - self.start
        plain = key.isdigit() and (self.width or len(key) == 1 or key[:1] != b"0")
        return int(key) - self.start if plain else None

    @property
    def ordered(self) -> bool:
        """True if the library's order of keys is that of the rows."""
        return self.width > 0


def keys_of(path: Path, stored: Lookup) -> Keys:
    """Return the notation of the samples' keys, taken from the first key.

    CorruptArtifact of kind ``not-sample-keys``: the first key is not a number.
    """
    first, second = [*(key for key, _, _ in itertools.islice(stored.entries(), 2)), b"", b""][:2]
    if first.isdigit():
        padded = len(first) > 1 and len(first) == len(second or first)
        keys = Keys(True, len(first) if padded else 0, int(first))
    else:
        keys = Keys(False, len(first), int.from_bytes(first, "big"))
    if not first or keys.start > 1 or (not keys.digits and len(first) not in (4, 8)):
        problem = "the keys are not sample numbers"
        expected = "numbers from 0 or 1, in digits or as big-endian integers of 4 or 8 bytes"
        found = f"{shortened(repr(first))} as the first key"
        raise CorruptArtifact(problem, "not-sample-keys", path, expected=expected, found=found)
    return keys


def others_at_end(stored: Lookup, keys: Keys) -> int:
    """Return the number of keys after the last sample's key, but no more than exceeds MOST_OTHERS."""
    last = itertools.islice(stored.entries(reverse=True), MOST_OTHERS + 1)
    return sum(itertools.takewhile(bool, (keys.number(key) is None for key, _, _ in last)))


def infer_schema(path: Path, stored: Lookup, fields: Sequence[Field]) -> Schema:
    """Return the schema of raw values that hold `fields`; checks all keys and the length of all values.

    Raises
    ------
    CorruptArtifact
        Kind ``not-sample-keys``, ``missing-samples``, ``unequal-shapes``, ``encoded-values``,
        ``fields-needed`` or ``fields-differ``.
    """
    samples, lengths = _scanned(path, stored)
    if len(lengths) > 1:
        problem, expected = "the samples differ in size", "values of one size"
        found = f"{min(lengths):,} to {max(lengths):,} bytes"
        hint = "pad the samples to one shape, or crop them to one, and write them again"
        raise CorruptArtifact(problem, "unequal-shapes", path, expected=expected, found=found, hint=hint)
    return _schema_of_values(path, samples, lengths.pop(), tuple(fields))


def _scanned(path: Path, stored: Lookup) -> tuple[int, set[int]]:
    """Return the number of samples and the lengths of their values; CorruptArtifact if some are missing."""
    keys, samples, highest = keys_of(path, stored), 0, -1
    others: list[str] = []
    lengths: set[int] = set()
    for key, offset, size in stored.entries():
        number = keys.number(key)
        if number is None:
            others.append(shortened(repr(key), 40))
            if len(others) > MOST_OTHERS:
                problem, expected = "too many keys that are not sample numbers", f"at most {MOST_OTHERS}"
                found = listed(others)
                raise CorruptArtifact(problem, "not-sample-keys", path, expected=expected, found=found)
            continue
        if not samples:
            _refuse_encoded(path, stored.value(offset, size))
        samples, highest = samples + 1, max(highest, number)
        lengths.add(size)
    if highest != samples - 1:  # keys are distinct, so the highest tells whether all are there
        problem = "samples are missing"
        expected = f"{highest + 1} samples, because the last key is {highest + keys.start}"
        raise CorruptArtifact(problem, "missing-samples", path, expected=expected, found=samples)
    return samples, lengths


def _schema_of_values(path: Path, samples: int, value_bytes: int, fields: tuple[Field, ...]) -> Schema:
    if not fields:
        problem = f"values of {value_bytes:,} bytes do not describe their fields"
        hint = "name them in stored order: --field 'x=float32[3,224,224]' --field 'y=int64'"
        raise CorruptArtifact(problem, "fields-needed", path, hint=hint)
    schema = Schema(samples, fields)
    if schema.sample_bytes != value_bytes:
        problem = "the fields given with --field do not match the values"
        expected, found = f"{schema.sample_bytes:,} bytes", f"{value_bytes:,} bytes"
        hint = "name all fields of a value in stored order, with dtypes and shapes as written"
        raise CorruptArtifact(problem, "fields-differ", path, expected=expected, found=found, hint=hint)
    check_sample("", (), schema.sample_bytes, path)
    return schema


def _refuse_encoded(path: Path, value: bytes) -> None:
    """Raise CorruptArtifact (``encoded-values``) if a value's first bytes show that it is not a raw array."""
    kinds = [kind for magic, kind in _MAGIC.items() if value.startswith(magic)]
    if value[:1] == b"\x80" and value[1:2] in (b"\2", b"\3", b"\4", b"\5") and value[-1:] == b".":
        kinds.append("pickles, which iobench never loads")
    if kinds:
        problem, hint = "the values are not raw arrays", "write array.tobytes(), or prepare another format"
        raise CorruptArtifact(problem, "encoded-values", path, found=kinds[0], hint=hint)
