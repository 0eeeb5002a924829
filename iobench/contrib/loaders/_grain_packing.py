"""Rows that Grain packs, and which of their elements belong to which sample.

Grain's packers give each element the number of its sample in the row (segment id, from 1 on; 0 is padding)
and its position in the sample. Where samples begin and how long they are follows from these alone, so that
the content check verifies them, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from iobench.base.errors import LoaderFailed
from iobench.formats import Array, Schema, offsets_of
from iobench.loading.portable_error import PortableError

PACKERS = {"best-fit": "BestFitPackIterDataset", "first-fit": "FirstFitPackIterDataset"}
MARK = "/sample"  # in each sample, because one without elements has no segment


def packed(samples: Any, packer: str, schema: Schema, length: int, batch_size: int) -> Any:
    """Return a dataset of batches of rows of `length`, packed by Grain from a dataset of samples.

    A batch has as many rows as `batch_size` samples of mean length fill.
    """
    import grain.experimental

    names = [field.name for field in schema.ragged]
    mean = max(schema.rows(field) for field in schema.ragged) / schema.samples
    rows = max(1, round(batch_size * mean / length))
    packs = getattr(grain.experimental, PACKERS[packer])(
        samples.map(partial(_marked, names, length)),
        length_struct=dict.fromkeys(names, length),
        num_packing_bins=rows,
        meta_features=[MARK, *(field.name for field in schema.fields if not field.is_ragged)],
    )
    return packs.batch(rows, batch_fn=partial(_joined, schema))


def _marked(names: Sequence[str], length: int, sample: Mapping[str, Array]) -> dict[str, Any]:
    """Return a sample with its mark; PortableError if it is longer than a row."""
    longest = max(len(sample[name]) for name in names)
    if longest > length:
        error = LoaderFailed(
            "Grain packs only samples that fit into a row, and one is longer",
            kind="too-long",
            expected=f"at most {length:,}",
            found=f"{longest:,}",
            hint="use longer rows, or omit the option packing",
        )
        raise PortableError.wrap(error)
    return {**sample, MARK: 0}


def _joined(schema: Schema, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a batch of rows: per ragged field the parts of a `Dense`, others stacked sample by sample."""
    counts = np.array([len(row[MARK]) for row in rows])
    return {
        field.name: _dense(counts, *packed_columns(field.name, rows))
        if field.is_ragged
        else np.stack([one for row in rows for one in row[field.name]])
        for field in schema.fields
    }


def packed_columns(name: str, rows: Sequence[Mapping[str, Any]]) -> list[Array]:
    """Return a field's values of packed rows, their segment ids and their positions."""
    keys = (name, f"{name}_segment_ids", f"{name}_positions")
    return [np.stack([row[key] for row in rows]) for key in keys]


def _dense(counts: Array, values: Array, segments: Array, positions: Array) -> dict[str, Any]:
    """Return the parts of a `Dense`, of rows with `counts` samples."""
    real = np.flatnonzero(segments)
    sample = (segments + offsets_of(counts)[:-1, None] - 1).ravel()[real]
    lengths = np.bincount(sample, minlength=counts.sum())
    starts, first = np.zeros(len(lengths), np.int64), positions.ravel()[real] == 0
    starts[sample[first]] = real[first]
    return {"values": values, "lengths": lengths, "total": len(real), "starts": starts}
