"""Samples that differ in length, as a batch and as a source, for all tests of ragged fields."""

import itertools
import math
from dataclasses import replace

import numpy as np
import torch
from conftest import installed_formats
from record_cases import delivered, run_once

from iobench import formats
from iobench.dataset.sources import Source, checked
from iobench.formats import Field, Ragged, Schema, joined, offsets_of, with_extents
from iobench.formats.ragged import element_mask
from iobench.loading.collate import COLLATED, Collate

TOKENS, LABEL = Field("tokens", (-1,), "uint16"), Field("label", (), "int64")
AUDIO = Field("audio", (-1, 2), "float32")
NARROW = {"audio"}  # which holds only certain ragged fields
HOLDERS = [name for name in installed_formats() if formats.class_of(name).holds_ragged and name not in NARROW]


def batch_of(lengths, seed=0):
    """Return a schema and a batch of three fields with these lengths, audio with them in reverse."""
    rng, lengths = np.random.default_rng(seed), np.array(lengths, np.int64)
    total = int(lengths.sum())
    tokens = rng.integers(0, 1 << 16, total, dtype=np.uint16)
    audio = rng.random((total, 2), np.float32)
    batch = {
        "tokens": Ragged(tokens, offsets_of(lengths)),
        "label": rng.integers(0, 1 << 40, len(lengths)),
        "audio": Ragged(audio, offsets_of(lengths[::-1])),
    }
    return Schema(len(lengths), (TOKENS, LABEL, AUDIO), totals={"tokens": total, "audio": total}), batch


def pictures_of(extents, seed=0):
    """Return a schema and a batch of images of these heights and widths, labels, and masks of the reverse."""
    rng, extents = np.random.default_rng(seed), np.array(extents, np.int32).reshape(-1, 2)
    lengths = extents.prod(1, dtype=np.int64)
    total = int(lengths.sum())
    batch = {
        "image": Ragged(rng.integers(1, 256, (total, 3), dtype=np.uint8), offsets_of(lengths)),
        "image_extents": extents,
        "label": rng.integers(0, 1 << 40, len(lengths)),
        "mask": Ragged(rng.random(total) < 0.5, offsets_of(lengths)),
        "mask_extents": np.ascontiguousarray(extents[:, ::-1]),
    }
    fields = (Field("image", (-1, -1, 3), "uint8"), LABEL, Field("mask", (-1, -1), "bool"))
    return Schema(len(lengths), with_extents(fields), totals={"image": total, "mask": total}), batch


def clips_of(lengths, shape=(-1,), dtype="int16"):
    """Return a schema and a batch of clips of these lengths, with labels."""
    rng, total = np.random.default_rng(1), sum(lengths)
    values = rng.integers(-(1 << 15), 1 << 15, (total, *shape[1:])).astype(np.int16)
    values = values if dtype == "int16" else (values / 40_000).astype(np.float32)
    batch = {"audio": Ragged(values, offsets_of(np.array(lengths))), "label": np.arange(len(lengths)) * 3}
    fields = (Field("audio", shape, dtype), Field("label", (), "int64"))
    return Schema(len(lengths), fields, totals={"audio": total}), batch


def samples(field):
    """Return the samples as bytes, one by one."""
    offsets = field.offsets.tolist()
    return [np.asarray(field.values[a:b]).tobytes() for a, b in itertools.pairwise(offsets)]


def assert_reads(reader, batch, *selections):
    """Assert that a reader returns a batch in these selections of rows and in samples, fields in order."""
    ragged = {field.name: samples(batch[field.name]) for field in reader.schema.ragged}
    for some in selections:
        rows = np.arange(len(reader))[some]
        for read in (reader.batch(some), reader.native(some)):
            assert list(read) == [field.name for field in reader.schema.fields]
            for name, field in read.items():
                if name in ragged:
                    assert samples(field) == [ragged[name][row] for row in rows]
                else:
                    np.testing.assert_array_equal(np.asarray(field), batch[name][rows], strict=True)
    for row in range(len(reader)):
        for name, array in reader.sample(row).items():
            assert array.tobytes() == (ragged[name][row] if name in ragged else batch[name][row].tobytes())


class BatchSource(Source):
    """One batch of samples."""

    name, description = "ragged", {"kind": "test"}

    def __init__(self, schema, batch):
        self.schema, self.batch = schema, batch

    def batches(self):
        """Yield all samples."""
        yield self.batch


class PictureSource(BatchSource):
    """Samples of `pictures_of`, in one batch."""

    def __init__(self, extents):
        super().__init__(*pictures_of(extents))


class RaggedSource(BatchSource):
    """Samples of `batch_of`, in one batch."""

    def __init__(self, lengths):
        super().__init__(*batch_of(lengths))


def everything(source):
    """Return all samples of a source as one batch."""
    batches = list(checked(source))
    return {name: joined([batch[name] for batch in batches]) for name in batches[0]}


def collating(change):
    """Return a `Collate.__call__` that changes each field that it has made."""
    original = Collate.__call__

    def collated(self, batch):
        fields = original(self, batch).items()
        return {name: change(one) if isinstance(one, COLLATED) else one for name, one in fields}

    return collated


def volumes(dtype, extents, inner=()):
    """Return a schema and a batch of tensors of a field `x` of these extents along its first axes.

    No element is zero, so that padding differs from all.
    """
    extents = np.array(extents, np.int32)
    lengths = extents.prod(1, dtype=np.int64)
    values = np.arange(lengths.sum() * math.prod(inner)).reshape(-1, *inner) % 100 + 1
    x = Ragged(torch.from_numpy(values.astype(dtype)), torch.from_numpy(offsets_of(lengths)))
    fields = with_extents([Field("x", (*[-1] * extents.shape[1], *inner), dtype)])
    schema = Schema(len(extents), fields, totals={"x": int(lengths.sum())})
    return schema, {"x": x, **{name: torch.from_numpy(extents) for name in schema.extents.values()}}


def columns_of(batch):
    """Return the tensors of each sample of a batch, as a Dataset returns them."""
    return {name: [*one.split()] if isinstance(one, Ragged) else [*one] for name, one in batch.items()}


ONCE = {"order": ("sequential",), "batch_size": (64,)}


def collated_run(manifest, folder, loaders, ways, **options):
    """Run each case once with batches made in these ways."""
    return run_once(
        manifest, ("npy",), loaders, folder / "records.jsonl", **{**ONCE, "collate": ways, **options}
    )


def collated(manifest, folder, loaders, ways, variant="npy"):
    """Return the records of such a run: none failed, and each sample came once."""
    out = folder / "records.jsonl"
    return delivered(manifest, (variant,), loaders, out, isolate=False, collate=ways, **ONCE)


def not_zero(dense):
    """Write into the first padding."""
    values, varying = dense.values.clone(), dense.extents.shape[1]
    inside = element_mask(dense.extents, values.shape[1 : 1 + varying])
    if dense.starts is not None:
        inside = torch.zeros(values.shape[:2], dtype=torch.bool)
        for start, size in zip(dense.starts.tolist(), dense.lengths.tolist(), strict=True):
            inside.view(-1)[start : start + size] = True
    values[tuple((~inside).nonzero()[0].tolist())] = 1
    return replace(dense, values=values)


def of_list(change):
    """Change the tensors of a list."""
    return lambda one: replace(one, tensors=change(one.tensors))
