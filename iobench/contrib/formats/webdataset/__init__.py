"""Format webdataset: tar shards; a sample's files are consecutive and have one name up to the first dot.

iobench writes `000000.tar`, …; field x of sample 12 is the file `000000012.x.npy` in one of them. Existing
data are one archive, or a folder of them, whose samples all have the same files: `.npy` arrays, which may
differ along the first axis, `.png`, `.jpg` and `.jpeg` images, which are decoded when they are read, and, if
they differ in size, scaled to one `shape` or kept as they are by `*x*x3`, `.cls` and other integers as text,
and files of raw bytes whose fields the caller names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.base.files import regular
from iobench.base.finding import Finding
from iobench.base.options import option
from iobench.contrib.formats.shared.placed_reader import FieldLocations, Maps, PlacedReader
from iobench.contrib.formats.shared.scaled_images import COMPARED, ScaledImages
from iobench.contrib.formats.webdataset.tar import BLOCK, is_tar
from iobench.contrib.formats.webdataset.tar_columns import columns_of
from iobench.contrib.formats.webdataset.tar_fields import (
    check_fields,
    fields_of,
    lists_of,
    locations_of,
    stored_name,
)
from iobench.contrib.formats.webdataset.writer import most_bytes, write_shards
from iobench.formats import Array, Batch, Detectable, Field, LoadOrBuild, Schema, fields_by_name, with_extents


@dataclass(frozen=True)
class WebDataset(ScaledImages, Detectable):
    """Tar shards of .npy files, one file per field and sample."""

    name: ClassVar[str] = "webdataset"
    summary: ClassVar[str] = "tar shards, one .npy file per field and sample"
    library: ClassVar[str] = "numpy"
    holds_ragged: ClassVar[bool] = True
    keeps_sizes: ClassVar[bool] = True

    shard_bytes: int = option(64 << 20, "maximum bytes per shard", minimum=1, unit="bytes")

    def stored_name(self, name: str) -> str:
        """Return the name in lower case, in which webdataset reads every name."""
        return stored_name(name)

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write the shards."""
        path.mkdir()
        write_shards(path, schema, batches, self.shard_bytes)

    def open(self, path: Path, schema: Schema, random: bool = False) -> PlacedReader:
        """Return a reader, which scans the shards' headers when rows are first read."""
        maps, decode = Maps(_shards(path)), self.decode()

        def locate(load_or_build: LoadOrBuild) -> FieldLocations:
            lists = load_or_build("members", lambda: lists_of(maps, schema.samples, schema.fields, self))
            return locations_of(maps, schema, lists, self, decode)

        reader = PlacedReader(schema, maps, locate)
        if decode is not None:
            reader.epoch = decode.epoch
        return reader

    def notes(self, path: Path, schema: Schema) -> list[Finding]:
        """Return how far the pixels of some images are from Pillow's, for another decoder or scale."""
        if self.lossless:
            return []
        with closing(self.open(path, schema)) as reader:
            images = next(one for one in reader.blocks() if schema.field(one.fields[0]).shape)
            rows = range(0, schema.samples, math.ceil(schema.samples / COMPARED))
            stored = [(images.files[images.file[row]], reader.stored_block(images, row)) for row in rows]
            return self.other_pixels(stored)

    def size_bound(self, schema: Schema) -> int:
        """Return the bytes of the records plus two empty blocks per shard."""
        return most_bytes(schema, self.shard_bytes)

    def sniff(self, path: Path) -> bool:
        """Return True for an archive, or a folder with archives, named .tar."""
        try:
            first = _shards(path)[0]
            with open(regular(first), "rb") as file:
                return first.suffix == ".tar" and is_tar(file.read(BLOCK))
        except (CorruptArtifact, OSError):
            return False

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema of the files that all samples have, or that of `fields`."""
        with closing(Maps(_shards(path))) as maps:
            samples, columns = columns_of(maps)
            fields_by_name(path, (suffix.removesuffix(".npy") for suffix in columns))
            check_fields(columns, maps, fields, self)
            known = tuple(fields) or with_extents(fields_of(columns, maps, self))
            totals = dict.fromkeys((field.name for field in known if field.is_ragged), 0)
            for lists in lists_of(maps, samples, known, self, thorough=True):
                for number, field in enumerate(known):
                    if field.is_ragged:
                        totals[field.name] += _length(lists, number, field)
            return Schema(samples, known, totals=totals)


def _length(lists: Mapping[str, Array], number: int, field: Field) -> int:
    """Return the sum of the lengths of the samples in a piece of `lists_of`."""
    of_images = lists.get(f"length_{number}")
    if of_images is not None:
        return int(of_images.sum())
    return int(lists[f"size_{number}"].sum()) // field.sample_bytes


def _shards(path: Path) -> list[Path]:
    """Return a single archive, or the archives of a folder in the order of their names."""
    if path.is_dir():
        shards = sorted(file for file in path.iterdir() if file.suffix == ".tar")
        if not shards:
            packed = next((f for f in path.iterdir() if ".tar." in f.name or f.suffix == ".tgz"), None)
            if packed is not None:
                raise CorruptArtifact(
                    "the archive is compressed",
                    kind="compressed",
                    path=packed,
                    hint="decompress it to a plain .tar",
                )
            raise corrupt(path, "a folder of .tar shards", "none")
        return shards
    if not path.is_file():
        raise corrupt(path, "tar shards", "no such folder")
    return [path]
