"""Format ffcv: a beton in one file `data.beton`, which FFCV's own classes write and describe.

FFCV's Reader returns the metadata of all samples and the table of arrays; where the values lie follows from
these. int64 and float64 scalars are stored in the metadata. Other scalars are arrays of shape (1,), fields
whose samples differ in length the bytes of their elements. Images of existing betons are pixels, or JPEG
files, which are decoded when they are read.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from iobench.base.errors import CorruptArtifact, UnsupportedSchema, corrupt, expecting
from iobench.base.finding import Finding
from iobench.base.options import option
from iobench.contrib.formats.shared.external import (
    as_options,
    check_lengths,
    first_true,
    imported,
    unequal_samples,
)
from iobench.contrib.formats.shared.mapped_files import Maps
from iobench.contrib.formats.shared.record_writer import refuse_large, sample_bytes
from iobench.contrib.formats.shared.records import (
    Column,
    Decoder,
    RecordFormat,
    Records,
    RecordSource,
    pixels_of_others,
)
from iobench.contrib.formats.shared.scaled_images import ScaledImages
from iobench.formats import (
    DTYPES,
    VARIES,
    Array,
    Batch,
    Field,
    Index,
    Schema,
    fields_by_name,
    names_within,
    stored_names,
)

DATA_FILE = "data.beton"
MOST_AXES = 31
PAGE_BYTES, LEAST_PAGE_BYTES, MOST_PAGE_BYTES = 8 << 20, 1 << 21, 1 << 31  # FFCV's default, and its limits
SCALARS = {"float64": "FloatField", "int64": "IntField"}
MOST_NAME = 15  # FFCV truncates longer names, and decodes them as ASCII
MOST_STEM = 9  # of a similar name: a number of up to five digits may follow, for the most fields of a file
RAW = 1  # mode of an image that is stored as pixels


def stored_name(name: str) -> str:
    """Return a similar name that FFCV reads: the name itself if it does."""
    if name.isascii() and len(name) <= MOST_NAME:
        return name
    letters = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub("_+", "_", letters).strip("_")[:MOST_STEM] or "f"


def library() -> Any:
    """Import FFCV; InvalidSettings if it is installed but cannot be imported."""
    hint = "install OpenCV and TurboJPEG where the system finds their libraries"
    modules = (f"ffcv.{name}" for name in ("fields", "loader", "memory_allocator", "reader", "writer"))
    return imported("ffcv: FFCV", hint, *modules)


@dataclass(frozen=True)
class Ffcv(ScaledImages, RecordFormat):
    """One beton: NDArrayField, IntField, FloatField, and BytesField for samples of different lengths."""

    name: ClassVar[str] = "ffcv"
    summary: ClassVar[str] = "a beton, written and described by FFCV"
    library: ClassVar[str] = "ffcv"
    modules: ClassVar[tuple[str, ...]] = ("ffcv",)
    holds_ragged: ClassVar[bool] = True

    page_bytes: int = option(
        PAGE_BYTES,
        "bytes of a page, a power of two; it holds whole samples, and grows for those of one size",
        minimum=LEAST_PAGE_BYTES,
        maximum=MOST_PAGE_BYTES,
        unit="bytes",
    )

    def check_schema(self, schema: Schema) -> None:
        """Raise UnsupportedSchema also for many axes and samples larger than a page."""
        super().check_schema(schema)
        for field in schema.fields:
            if len(field.shape) > MOST_AXES:
                problem = f"format {self.name} cannot hold field {field.name}"
                expected = f"at most {MOST_AXES} axes"
                raise UnsupportedSchema(problem, "too-many-axes", expected=expected, found=len(field.shape))
        self._refuse_large(schema, schema.fixed.sample_bytes, MOST_PAGE_BYTES, "a page")

    def stored_name(self, name: str) -> str:
        """Return a name of at most 15 ASCII characters."""
        return stored_name(name)

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write sample by sample, as FFCV's DatasetWriter does in its processes."""
        path.mkdir()
        ffcv, names = library(), stored_names(schema.fields, stored_name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of dtypes that torch lacks
            fields = {names[field.name]: _ffcv_field(ffcv.fields, field) for field in schema.fields}
        page = self._page(schema)
        writer = ffcv.writer.DatasetWriter(str(path / DATA_FILE), fields, page_size=page, num_workers=1)
        writer.num_samples = schema.samples
        writer.prepare()
        try:
            allocator = ffcv.memory_allocator.MemoryAllocator(writer.fname, writer.data_region_start, page)
            _handle(ffcv.writer, writer, allocator, _samples(schema, batches, page))
            writer.finalize(allocator.allocations)
        finally:
            with contextlib.suppress(BufferError):  # an error's frames may hold a view of it
                writer.metadata_sm.close()
            writer.metadata_sm.unlink()

    def _page(self, schema: Schema) -> int:
        """Return the bytes of a page, which hold the samples of one size."""
        return max(1 << (self.page_bytes - 1).bit_length(), 1 << (schema.fixed.sample_bytes - 1).bit_length())

    def size_bound(self, schema: Schema) -> int:
        """Return the metadata, the pages, and the table of arrays."""
        page = self._page(schema)
        pages = 2 + 2 * schema.logical_bytes // page
        return pages * page + schema.samples * 48 * len(schema.fields) + (1 << 20)

    def source(self, path: Path, schema: Schema | None = None) -> Beton:
        """Open the file."""
        return Beton(path / DATA_FILE if path.is_dir() else path, self)

    def notes(self, path: Path, schema: Schema) -> list[Finding]:
        """Return how far the pixels of some images are from Pillow's, for another decoder or scale."""
        return pixels_of_others(self, path, schema)

    def sniff(self, path: Path) -> bool:
        """Return True for a file whose name ends in .beton."""
        return path.suffix == ".beton" and path.is_file()


class Beton(RecordSource):
    """A file, whose samples FFCV's Reader describes; images are decoded as the format says."""

    def __init__(self, path: Path, images: ScaledImages) -> None:
        self.path, self.maps, self._images = path, Maps([path]), images
        self._decode = images.decode()
        self.epoch = self._decode.epoch if self._decode else None
        self._reader = self._described()  # now: a later one would read what replaces the file

    def _described(self) -> Any:
        """Return FFCV's Reader of the file, which must end with a table of all arrays."""
        reader = library().reader.Reader
        with expecting(self.path, "a beton of version 2 with FFCV's own types", Exception):
            opened = reader(str(self.path))
        if not opened.num_samples or len(opened.metadata) != opened.num_samples:
            raise corrupt(self.path, f"{opened.num_samples} samples", f"metadata of {len(opened.metadata)}")
        kinds = [type(handler).__name__ for handler in opened.handlers.values()]
        arrays = int(opened.num_samples) * sum(kind not in SCALARS.values() for kind in kinds)
        held = len(self.maps[0]) - int(opened.header["alloc_table_ptr"])
        if held != arrays * opened.alloc_table.itemsize:
            raise corrupt(self.path, f"a table of {arrays} arrays at the end", f"{held} bytes")
        return opened

    def scan(self) -> Iterator[Records]:
        """Yield the metadata of all samples."""
        metadata, described = self._reader.metadata, self._reader.field_descriptors.nbytes
        begin = self._reader.header.nbytes + described + np.arange(len(metadata)) * metadata.itemsize
        length = np.full(len(metadata), metadata.itemsize)
        yield Records(self.maps, np.zeros(len(metadata), np.int64), begin, length)

    def fields(self, records: Records) -> tuple[Field, ...]:
        """Return the fields that the file describes.

        CorruptArtifact of kind ``encoded-values`` for JSON, ``unequal-shapes`` for images of several sizes.
        """
        names = fields_by_name(self.path, self._reader.field_names)
        fields = {name: self._field(name, own) for name, own in names.items()}
        if None not in fields.values():
            return tuple(field for field in fields.values() if field is not None)
        stored = as_options(field or Field(name, (VARIES,), "uint8") for name, field in fields.items())
        name = next(name for name, field in fields.items() if field is None)
        if self._is_image(names[name]):
            raise self._unequal(name, names[name], stored)
        raise CorruptArtifact(
            f"field {name} does not describe dtype and shape",
            kind="encoded-values",
            path=self.path,
            found=type(self._reader.handlers[names[name]]).__name__,
            hint=f"read its bytes, not decoded: {stored}",
        )

    def columns(
        self, records: Records, fields: Sequence[Field], thorough: bool = False
    ) -> Mapping[str, Column]:
        """Return the values of the fields; CorruptArtifact, naming the sample, for places beyond the file."""
        names = names_within(self._reader.field_names, fields, stored_name)
        columns = {}
        for field in fields:
            own = names[field.name]
            if own not in self._reader.field_names:
                raise corrupt(self.path, f"field {field.name}", ", ".join(self._reader.field_names))
            metadata, within = self._metadata(own)
            if type(self._reader.handlers[own]).__name__ in SCALARS.values():
                self._compare(field, own)
                columns[field.name] = Column(records.offset + within)
                continue
            named = metadata.dtype.names
            pointer = metadata if named is None else metadata["ptr" if "ptr" in named else "data_ptr"]
            begin, size = pointer.astype(np.int64), self._bytes_of(field, own, metadata, pointer)
            row = first_true((begin < 0) | (size < 0) | (begin > len(self.maps[0]) - size))
            if row is not None:
                expected = f"{field.name} of sample {row} within {len(self.maps[0]):,} bytes"
                raise corrupt(self.path, expected, f"{size[row]:,} bytes at {begin[row]:,}")
            encoded = self._is_image(own) and not field.is_ragged and self._encoded(field, own, metadata)
            if encoded:
                columns[field.name] = Column(begin, size, True)
                continue
            check_lengths(field, size, field.sample_bytes, "bytes", records.path, 0)
            columns[field.name] = Column.of(field, begin, size)
        return columns

    def decoder(self, field: Field) -> Decoder:
        """Return the decoder of images: pixels, or JPEG files."""
        names = names_within(self._reader.field_names, [field], stored_name)
        metadata, _ = self._metadata(names[field.name])

        def into(path: Path, stored: memoryview, row: int, out: Array) -> None:
            from iobench.formats.image_decoding import decoded

            if self._decode is not None:
                out[...] = self._decode.decode(path, _image_file(metadata[row], stored))
            elif metadata["mode"][row] == RAW:
                out[...] = np.frombuffer(stored, np.uint8).reshape(out.shape)
            else:
                decoded(path, stored, out)

        return Decoder(into=into)

    def _metadata(self, own: str) -> tuple[Any, int]:
        """Return the metadata of a field, and the byte at which they lie in those of a sample."""
        part = f"f{self._reader.field_names.index(own)}"
        return self._reader.metadata[part], int(self._reader.metadata.dtype.fields[part][1])

    def _is_image(self, own: str) -> bool:
        return type(self._reader.handlers[own]).__name__ == "RGBImageField"

    def _bytes_of(self, field: Field, own: str, metadata: Any, pointer: Array) -> Index:
        """Return the bytes of each sample's array; those of images are in the table, as FFCV finds them."""
        if self._is_image(own):
            table = np.sort(self._reader.alloc_table, order="ptr")
            at = np.minimum(np.searchsorted(table["ptr"], pointer), max(0, len(table) - 1))
            if not len(table) or (wrong := np.flatnonzero(table["ptr"][at] != pointer)).size:
                row = int(wrong[0]) if len(table) else 0
                raise corrupt(self.path, f"{field.name} of sample {row} in the table of arrays", "none")
            size: Index = table["size"][at].astype(np.int64)
            pixels = metadata["width"].astype(np.int64) * metadata["height"] * 3
            bad = (metadata["mode"] > RAW) | (pixels == 0) | ((metadata["mode"] == RAW) & (pixels != size))
            if (odd := first_true(bad)) is not None:
                expected = (
                    f"{field.name} of sample {odd} as a JPEG file, or as {pixels[odd]:,} bytes of pixels"
                )
                raise corrupt(self.path, expected, f"mode {metadata['mode'][odd]} in {size[odd]:,} bytes")
            return size
        if metadata.dtype.names is not None:
            return np.asarray(metadata["size"].astype(np.int64))
        self._compare(field, own)
        return np.full(len(metadata), field.sample_bytes)

    def _encoded(self, field: Field, own: str, metadata: Any) -> bool:
        """Return whether images are decoded for a field; CorruptArtifact if they have another shape."""
        known = self._field(field.name, own)
        if known is None:
            raise self._unequal(field.name, own)
        if known != field:
            raise corrupt(self.path, field.typed, known.typed)
        return self._decode is not None or not (metadata["mode"] == RAW).all()

    def _field(self, name: str, own: str) -> Field | None:
        """Return the field that a column describes; None for JSON, and for images of several shapes."""
        handler, (metadata, _) = self._reader.handlers[own], self._metadata(own)
        if self._is_image(own):
            shapes = np.unique(np.stack([metadata["height"], metadata["width"]], 1), axis=0)
            own_shape = (*map(int, shapes[0]), 3) if len(shapes) == 1 else None
            shape = self._images.scaled_shape or own_shape
            return None if shape is None else Field(name, shape, "uint8")
        if (kind := type(handler).__name__) == "BytesField":
            return Field(name, (VARIES,), "uint8")
        for dtype, scalar in SCALARS.items():
            if kind == scalar:
                return Field(name, (), dtype)
        if not hasattr(handler, "shape"):
            return None
        dtype, shape = np.dtype(handler.dtype), tuple(int(size) for size in handler.shape)
        if dtype.name not in DTYPES or not dtype.isnative or not all(shape) or not shape or max(shape) >> 40:
            raise corrupt(self.path, f"{name} of dtype {', '.join(DTYPES)}", f"{dtype} {shape}")
        return Field(name, shape, dtype.name)

    def _compare(self, field: Field, own: str) -> None:
        """Raise CorruptArtifact unless a column holds a field: a scalar as itself, or as shape (1,)."""
        known = self._field(field.name, own)
        held = known and (known.shape, known.dtype)
        if held not in ((field.shape, field.dtype), (field.shape or (1,), field.dtype)):
            raise corrupt(self.path, field.typed, known.typed if known else own)

    def _unequal(self, name: str, own: str, instead: str = "") -> CorruptArtifact:
        """Return the error for images that differ in shape; `instead` are options that read their bytes."""
        metadata, _ = self._metadata(own)
        shapes = np.stack([metadata["height"], metadata["width"]], 1).tolist()
        row = next(row for row, shape in enumerate(shapes) if shape != shapes[0])
        scale = "scale and crop them: --format ffcv:shape=3x224x224"
        hint = f"{scale}; or read their bytes, not decoded: {instead}" if instead else scale
        problem = f"{name} of sample {row} differs in shape"
        return unequal_samples(self.path, problem, (*shapes[0], 3), (*shapes[row], 3), hint)


def _image_file(metadata: Any, stored: memoryview) -> memoryview:
    """Return an image file: the stored one, or a PPM file of the stored pixels."""
    if metadata["mode"] != RAW:
        return stored
    return memoryview(b"P6 %d %d 255\n" % (metadata["width"], metadata["height"]) + stored)


def _ffcv_field(kinds: Any, field: Field) -> Any:
    if field.is_ragged:
        return kinds.BytesField()
    if not field.shape and field.dtype in SCALARS:
        return getattr(kinds, SCALARS[field.dtype])()
    return kinds.NDArrayField(np.dtype(field.dtype), field.shape or (1,))


def _handle(library: Any, writer: Any, allocator: Any, samples: Iterable[tuple[Any, ...]]) -> None:
    """Write all samples, as a process of FFCV's writer does."""
    metadata = np.frombuffer(writer.metadata_sm.buf, writer.metadata_type)
    with allocator:
        for row, sample in enumerate(samples):
            library.handle_sample(sample, row, metadata.dtype.names, metadata, allocator, writer.fields)


def _samples(schema: Schema, batches: Iterable[Batch], page: int) -> Iterator[tuple[Any, ...]]:
    """Yield the values of each sample; UnsupportedSchema if one is larger than a page."""
    row = 0
    for batch in batches:
        columns = []
        total = np.zeros(len(batch[schema.fields[0].name]), np.int64)
        for field in schema.fields:
            memory, edges = sample_bytes(batch, field)
            total += np.diff(edges)
            ends = edges.tolist()
            raw = np.frombuffer(memory, np.uint8)
            columns.append(
                [raw[begin:end] for begin, end in itertools.pairwise(ends)]
                if field.is_ragged
                else batch[field.name]
            )
        if (largest := int(total.max(initial=0))) > page:
            hint = f"use --format ffcv:page_bytes={1 << (largest - 1).bit_length()}"
            refuse_large(
                f"format ffcv cannot hold sample {row + int(total.argmax())}", largest, page, "a page", hint
            )
        yield from zip(*columns, strict=True)
        row += len(total)
