"""What the contract suite runs on: every variant of every format, random data, and its artifacts."""

import contextlib
import dataclasses
import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from iobench import formats
from iobench.formats import CorruptArtifact, Field, Format, Schema

MORE_VALUES = {("hdf5", "chunk_bytes"): (0, 4096)}

SCHEMA = Schema(
    23,
    (
        Field("rgb", (3,), "uint8"),
        Field("signal", (2, 5), "float32"),
        Field("label", (), "int64"),
        Field("mask", (7,), "bool"),
    ),
)


@dataclass(frozen=True)
class Artifact:
    format: Format
    path: Path
    schema: Schema
    source: formats.Batch

    def open(self):
        return self.format.open(self.path, self.schema)


def variants():
    """Every format with every combination of option values that it accepts, defaults first."""
    found = []
    for name in formats.names():
        specs = dataclasses.fields(formats.type_of(name))
        for values in itertools.product(*(_values(name, spec) for spec in specs)):
            options = {spec.name: value for spec, value in zip(specs, values, strict=True)}
            with contextlib.suppress(formats.InvalidOption):
                found.append(formats.get(name, **options))
    return found


def _values(name, spec):
    return spec.metadata["choices"] or (spec.default, *MORE_VALUES.get((name, spec.name), ()))


def random_batch(schema, seed=0):
    """All samples of a schema, made of random bytes, which no codec can shrink."""
    rng = np.random.default_rng(seed)
    return {f.name: _random(rng, (schema.samples, *f.shape), np.dtype(f.dtype)) for f in schema.fields}


def _random(rng, shape, dtype):
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    return np.frombuffer(rng.bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)


def store(fmt, path, schema, batch_sizes=(5,)):
    """The artifact of random data, written in batches of these sizes, the last one for the rest."""
    source = random_batch(schema)
    edges = [0, *itertools.accumulate(batch_sizes, initial=0), schema.samples]
    edges = [min(edge, schema.samples) for edge in edges]
    batches = ({name: a[low:high] for name, a in source.items()} for low, high in itertools.pairwise(edges))
    fmt.write(path, schema, batches)
    return Artifact(fmt, path, schema, source)


def assert_same(found, expected):
    """Equal shape, dtype and bytes, so that NaN equals itself; for arrays and tensors."""
    found = np.asarray(found)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert found.tobytes() == expected.tobytes()


def assert_rows(batch, source, rows):
    """The batch holds these rows of all its fields, and has a field at all."""
    assert batch
    for name, array in batch.items():
        assert_same(array, source[name][rows])


def read_all(fmt, path, schema):
    """Every sample, or None where the format says that the artifact is corrupt."""
    try:
        with fmt.open(path, schema) as reader:
            return reader.batch(slice(None))
    except CorruptArtifact:
        return None
