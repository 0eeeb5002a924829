"""Format ffcv: FFCV's beton, version 2, in one file `data.beton`, written and read without FFCV.

Layout: header; description of each field; metadata per sample and field: the value of an int64 or float64
scalar, otherwise the offset of the array, and of bytes their number; from the next page on the arrays, those
of a sample in one page; table of the arrays (sample, offset, bytes). Other scalars are stored as arrays of
shape (1,), fields whose samples differ in length as the bytes of their elements. Images of existing betons
are pixels, or JPEG files, which are decoded when they are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from iobench.base.errors import UnsupportedSchema, corrupt
from iobench.base.finding import Finding
from iobench.contrib.formats.ffcv.arrays import image_files, listed, locations_in
from iobench.contrib.formats.ffcv.beton import Beton, stored_name
from iobench.contrib.formats.ffcv.writer import MOST_PAGE_BYTES, most_bytes, write_beton
from iobench.contrib.formats.shared.external import totals_of
from iobench.contrib.formats.shared.placed_reader import Maps, PlacedReader
from iobench.contrib.formats.shared.scaled_images import COMPARED, ScaledImages
from iobench.formats import Batch, Detectable, Field, Schema

DATA_FILE = "data.beton"
MOST_AXES = 31


@dataclass(frozen=True)
class Ffcv(ScaledImages, Detectable):
    """One beton: NDArrayField, IntField, FloatField, and BytesField for samples of different lengths."""

    name: ClassVar[str] = "ffcv"
    summary: ClassVar[str] = "FFCV's beton, without FFCV"
    library: ClassVar[str] = "numpy"
    holds_ragged: ClassVar[bool] = True

    def check_schema(self, schema: Schema) -> None:
        """Raise UnsupportedSchema also for many axes and samples larger than a page."""
        super().check_schema(schema)
        for field in schema.fields:
            if len(field.shape) > MOST_AXES:
                raise UnsupportedSchema(
                    f"format {self.name} cannot hold field {field.name}",
                    kind="too-many-axes",
                    expected=f"at most {MOST_AXES} axes",
                    found=len(field.shape),
                )
        self._refuse_large(schema, schema.sample_bytes, MOST_PAGE_BYTES, "a page")

    def stored_name(self, name: str) -> str:
        """Return a name of at most 15 ASCII characters."""
        return stored_name(name)

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write metadata and arrays, then header and table."""
        path.mkdir()
        write_beton(path / DATA_FILE, schema, batches)

    def open(self, path: Path, schema: Schema, random: bool = False) -> PlacedReader:
        """Check header and number of samples, and return a reader."""
        maps = Maps([path / DATA_FILE if path.is_dir() else path])
        beton = Beton(maps)
        if beton.samples != schema.samples:
            raise corrupt(beton.path, f"{schema.samples} samples", beton.samples)
        decode = self.decode()
        reader = PlacedReader(schema, maps, lambda cached: locations_in(beton, schema, decode, cached))
        if decode is not None:
            reader.epoch = decode.epoch
        return reader

    def notes(self, path: Path, schema: Schema) -> list[Finding]:
        """Return how far the pixels of some images are from Pillow's, for another decoder or scale."""
        if self.lossless:
            return []
        with closing(Maps([path])) as maps:
            files = image_files(Beton(maps), schema.fields, self.scaled_shape, COMPARED)
            return self.other_pixels([(path, file) for file in files]) if files else []

    def size_bound(self, schema: Schema) -> int:
        """Return metadata, arrays with the gaps between pages, and table."""
        return most_bytes(schema)

    def sniff(self, path: Path) -> bool:
        """Return True for a file whose name ends in .beton."""
        return path.suffix == ".beton" and path.is_file()

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema that the file describes, or that of `fields` if given."""
        with closing(Maps([path])) as maps:
            beton = Beton(maps)
            known = tuple(fields) or beton.known(self.scaled_shape)
            lists = listed(beton, known, self.scaled_shape)
            return Schema(beton.samples, known, totals=totals_of(lists, known))
