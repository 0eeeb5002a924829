"""Writing of shards that begin with a table of sample offsets: see `offset_shards`."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from iobench.base.errors import UnsupportedSchema
from iobench.contrib.formats.shared.offset_shards import MOST_SAMPLE_BYTES, MOST_SHARD_BYTES, WORD
from iobench.contrib.formats.shared.record_writer import filled, sample_bytes
from iobench.formats import Batch, Field, Index

Prefix: TypeAlias = Callable[[Field, int], bytes]


def write_ragged_shards(
    path_of: Callable[[int], Path], records: Iterable[bytes], shard_bytes: int, description: bytes = b""
) -> list[int]:
    """Write samples that differ in length into shards of this size; return the samples of each.

    The samples of a shard are in memory until it is full.
    """
    counts, most = [], shard_bytes - 2 * WORD - len(description)
    for number, shard in enumerate(filled(records, most, WORD)):
        with open(path_of(number), "xb") as file:
            file.write(table(np.array(list(map(len, shard)), np.int64), description))
            file.writelines(shard)
        counts.append(len(shard))
    return counts


def ragged_records(
    format_name: str, fields: Sequence[Field], batches: Iterable[Batch], prefix: Prefix | None = None
) -> Iterator[bytes]:
    """Yield the bytes of each sample: sizes of columns, then the columns.

    Without `prefix` only ragged columns have a size. With it all have, and it returns the bytes before the
    values of a field, of which a sample has this length. UnsupportedSchema if a sample is too large.
    """
    sized = [prefix is not None or field.is_ragged for field in fields]
    for batch in batches:
        columns = [(memory, edges.tolist()) for memory, edges in (sample_bytes(batch, f) for f in fields)]
        for row in range(len(columns[0][1]) - 1):
            parts = [memory[edges[row] : edges[row + 1]] for memory, edges in columns]
            heads = [b""] * len(parts)
            if prefix is not None:
                heads = [prefix(f, len(p) // f.sample_bytes) for f, p in zip(fields, parts, strict=True)]
            sizes = [len(head) + len(part) for head, part in zip(heads, parts, strict=True)]
            if sum(sizes) > MOST_SAMPLE_BYTES:
                raise UnsupportedSchema(
                    f"format {format_name} cannot hold sample {row} of a batch",
                    kind="sample-too-large",
                    expected=f"at most {MOST_SAMPLE_BYTES:,} bytes",
                    found=f"{sum(sizes):,}",
                )
            stated = [size for size, states in zip(sizes, sized, strict=True) if states]
            both = [one for pair in zip(heads, parts, strict=True) for one in pair]
            yield b"".join([struct.pack(f"<{len(stated)}I", *stated), *both])


def table(sizes: Index, description: bytes = b"") -> bytes:
    """Return the start of a shard of samples of so many bytes: table and description."""
    begin = WORD * (len(sizes) + 2) + len(description)
    edges = begin + np.append(0, np.cumsum(sizes))
    return struct.pack("<I", len(sizes)) + edges.astype("<u4").tobytes() + description


def rows_in_shard(shard_bytes: int, sample_bytes: int, extra: int) -> int:
    """Return the samples per shard: at least one, and no more than a u32 offset allows."""
    return max(1, (min(shard_bytes, MOST_SHARD_BYTES) - extra) // (sample_bytes + WORD))
