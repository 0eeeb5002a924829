"""Format images: one image file per sample, decoded when it is read; scalars in NumPy files.

    <field>/000/000000012.png      row 12 of an image field, in folders of a thousand images
    <field>.npy                    a field of scalars

PNG is lossless. A JPEG artifact is verified against the pixels that its own files decode to.
Existing folders with one folder per class, as torchvision's ImageFolder reads them, can be read in place:
field `image` holds the pixels, `label`, if there is one, the number of the class in the order of the folders'
names. With a shape, images of more types than these are decoded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import ClassVar

import numpy as np

from iobench.base.errors import CorruptArtifact, InvalidOption, UnsupportedSchema, corrupt, expecting
from iobench.base.files import regular
from iobench.base.finding import Finding
from iobench.base.options import option
from iobench.contrib.formats.shared.external import unequal_samples
from iobench.contrib.formats.shared.sample_files import (
    Decode,
    FilesReader,
    Fill,
    NumberedFiles,
    class_reader,
    file_writers,
)
from iobench.contrib.formats.shared.scaled_images import COMPARED, ScaledImages, extents_of, length_of
from iobench.formats import VARIES, Array, Batch, Detectable, Field, Reader, Schema, own_extents, with_extents
from iobench.formats.folders import IMAGES, MOVE, ClassFolder, has_suffix, is_class_folder
from iobench.formats.npy import Npy

HELD = "uint8 (height, width, 3), (3, height, width) or (height, width)"
WHOLE = (".png", ".jpg", ".jpeg")  # that are decoded without a shape
QUALITY = 90
SCALED = "add it with --format images:shape=3x224x224, which scales and crops each image"


@dataclass(frozen=True)
class Images(ScaledImages, Detectable):
    """A PNG or JPEG file per sample."""

    name: ClassVar[str] = "images"
    summary: ClassVar[str] = "one PNG (or, lossy, JPEG) file per sample, decoded as it is read"
    library: ClassVar[str] = "pillow"
    modules: ClassVar[tuple[str, ...]] = ("PIL",)
    survives_unlink: ClassVar[bool] = False
    keeps_sizes: ClassVar[bool] = True

    lossy: str | None = option(None, "lossy codec in place of PNG", choices=(None, "jpeg"))
    quality: int = option(QUALITY, "JPEG quality", minimum=1, maximum=100)
    encoded: bool = option(
        False, "of an existing folder, the files' bytes, of different lengths, in place of pixels"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.encoded and (self.shape or self.lossy):
            problem = f"images: encoded with {'shape' if self.shape else 'lossy'}"
            raise InvalidOption(problem, "conflicting-options", hint="omit one of them")
        if self.quality != QUALITY and not self.lossy:
            problem = f"images:quality={self.quality}: PNG has no quality"
            raise InvalidOption(problem, "conflicting-options", hint="add lossy=jpeg, or omit quality")

    @property
    def lossless(self) -> bool:
        """True for PNG, and for the pixels of existing files as Pillow decodes them."""
        return self.lossy is None and super().lossless

    @property
    def parallel(self) -> bool:
        """True where files are decoded."""
        return not self.encoded

    def roundtrip(self, batch: Batch) -> Batch:
        """Return the batch with the pixels of each image as JPEG decodes them."""
        return batch if self.lossy is None else {name: self._recoded(array) for name, array in batch.items()}

    def _recoded(self, array: Array) -> Array:
        from iobench.formats.image_decoding import channels_last, decoded

        if array.ndim == 1:
            return array
        recoded = np.empty_like(array)
        for image, pixels in zip(array, recoded, strict=True):
            decoded(Path("image"), self.encode(image), channels_last(pixels))
        return recoded

    def encode(self, pixels: Array) -> bytes:
        """Return the image file of uint8 pixels (H, W, 3), (3, H, W) or (H, W)."""
        from PIL import Image

        from iobench.formats.image_decoding import channels_last

        file = BytesIO()
        image = Image.fromarray(np.ascontiguousarray(channels_last(pixels)))
        if self.lossy is None:
            image.save(file, "PNG")
        else:
            image.save(file, "JPEG", quality=self.quality)
        return file.getvalue()

    def check_schema(self, schema: Schema) -> None:
        """Raise UnsupportedSchema also for fields but images and scalars, or without images."""
        if self.encoded:
            problem = f"{self.variant} reads an existing folder and cannot be written"
            raise UnsupportedSchema(problem, "read-only-variant", hint="omit encoded")
        super().check_schema(schema)
        for field in schema.fields:
            if field.shape and not _is_image(field):
                problem = f"format {self.name} cannot hold field {field.name}"
                expected, found = f"an image, {HELD}, or a scalar", f"{field.dtype} {field.shape}"
                raise UnsupportedSchema(problem, "not-an-image", expected=expected, found=found)
        if not any(field.shape for field in schema.fields):
            problem = f"format {self.name} needs a field of images"
            found = f"scalars {', '.join(field.name for field in schema.fields)}"
            raise UnsupportedSchema(problem, "no-images", expected=f"an image, {HELD}", found=found)

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Encode the images in several threads, and write scalars as format npy does."""
        pixels = [field for field in schema.fields if field.shape]
        scalars = Schema(schema.samples, tuple(field for field in schema.fields if not field.shape))
        Npy().write(path, scalars, self._encode(path, pixels, batches))

    def _encode(self, path: Path, pixels: Sequence[Field], batches: Iterable[Batch]) -> Iterator[Batch]:
        """Write the images of each batch and yield its scalars."""
        start = 0
        with file_writers() as write_all:
            for batch in batches:
                for field in pixels:
                    files = self._files(path, field.name).new(start, len(batch[field.name]))
                    write_all(self._write, files, batch[field.name])
                start += len(next(iter(batch.values())))
                yield {name: array for name, array in batch.items() if array.ndim == 1}

    def _write(self, file: Path, pixels: Array) -> None:
        file.write_bytes(self.encode(pixels))

    def _files(self, path: Path, name: str) -> NumberedFiles:
        return NumberedFiles(path / name, ".png" if self.lossy is None else ".jpg")

    def open(self, path: Path, schema: Schema, random: bool = False) -> Reader:
        """Return a reader, which checks each image when it is read."""
        if not path.is_dir():
            raise corrupt(path, "a folder of images", "no such folder")
        images = [field for field in schema.fields if field.shape]
        if not any(self._files(path, field.name).exist(schema.samples) for field in images):
            return self._existing(path, schema)
        files = {}
        for field in images:
            if not _is_image(field):
                raise corrupt(path, f"{field.name}: {field.dtype} {field.shape}", "images")
            files[field.name] = self._files(path, field.name).existing(schema.samples, "an image")
        scalars = Schema(schema.samples, tuple(field for field in schema.fields if not field.shape))
        return FilesReader(path, schema, files, Npy().open(path, scalars), _stored_bytes, _filled())

    def _existing(self, path: Path, schema: Schema) -> Reader:
        """Return a reader of a folder per class."""
        folder, scaled = ClassFolder.of(path, IMAGES), self.decode()
        if scaled is None:
            return class_reader(folder, schema, _stored_bytes, _filled())
        decode: Decode = lambda file, field: scaled.decode(file, _stored(file))  # noqa: E731

        def fill(file: Path, pixels: Array) -> None:
            pixels[...] = scaled.decode(file, _stored(file))

        reader = class_reader(folder, schema, decode, _fill_extents if schema.extents else fill)
        reader.epoch = scaled.epoch
        return reader

    def sniff(self, path: Path) -> bool:
        """Return True for a folder with image files, in its subfolders or in it, and no other data in it."""
        return is_class_folder(path, IMAGES, media=True)

    def files(self, path: Path) -> Sequence[Path]:
        """Return the images of all classes."""
        return ClassFolder.of(path, IMAGES).files

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema of fields `image` and, if there is one, `label`; reads every image's header.

        CorruptArtifact if an image cannot be read, of kind ``unequal-shapes``, or as from `ClassFolder.of`.
        """
        folder = ClassFolder.of(path, IMAGES)
        files, extents = folder.files, own_extents(fields).values()
        given = [one.name for one in fields if one.name not in extents]
        image, *labels = folder.names("image", given)
        shape = (VARIES,) if self.encoded else self.scaled_shape or self._common_shape(path, files)
        field = Field(image, shape, "uint8")
        totals = {image: sum(self._length(field, file) for file in files)} if field.is_ragged else {}
        scalars = [Field(name, (), "int64") for name in labels]
        return Schema(len(files), with_extents((field, *scalars)), totals=totals)

    def _length(self, field: Field, file: Path) -> int:
        """Return the bytes of a file, or the pixels of an image of its own size."""
        with expecting(file, "a file", OSError), open(regular(file), "rb") as stored:
            return file.stat().st_size if self.encoded else length_of(field, file, stored)

    def _common_shape(self, path: Path, files: Sequence[Path]) -> tuple[int, ...]:
        """Return the shape of all images; CorruptArtifact if there are several, or one cannot be read."""
        from iobench.formats.image_decoding import check_header, shape_of

        try:
            shapes = {shape_of(file): file for file in files}
        except CorruptArtifact as error:
            if error.kind == "unsupported-image" or not has_suffix(error.path or "", WHOLE):
                for file in files:
                    check_header(file)
                raise error.changed(hint=f"convert it first, or {SCALED}") from error
            raise error.changed(hint=error.hint or MOVE) from error
        if len(shapes) > 1:
            (one, first), (other, second), *_ = shapes.items()
            raise unequal_samples(
                path,
                "the images differ in shape",
                "images of one shape",
                f"{one} in {first.name} and {other} in {second.name}",
                f"{SCALED}; or with --format '{self.name}:shape=*x*x3', each in its own size, or "
                f"{self.name}:encoded=yes, which reads the files as they are",
            )
        return next(iter(shapes))

    def notes(self, path: Path, schema: Schema) -> list[Finding]:
        """Return how labels were taken, and how far pixels of another decoder or scale are from Pillow's."""
        folder = ClassFolder.of(path, IMAGES)
        if self.lossless:
            return folder.notes()
        some = folder.files[:: math.ceil(len(folder.files) / COMPARED)]
        return folder.notes() + self.other_pixels([(file, _stored(file)) for file in some])

    def size_bound(self, schema: Schema) -> int:
        """Return logical bytes, a partial block per file, and the growth of incompressible images."""
        images = [field for field in schema.fields if field.shape]
        share = 0.02 if self.lossy is None else 2
        noise = int(share * sum(field.sample_bytes for field in images))
        return super().size_bound(schema) + schema.samples * (noise + (8 << 10) * len(images))


def _stored(file: Path) -> bytes:
    with expecting(file, "an image", OSError):
        return regular(file).read_bytes()


def _stored_bytes(file: Path, field: Field) -> Array:
    with expecting(file, "a file", OSError):
        return np.fromfile(regular(file), np.uint8)


def _filled() -> Fill:
    """Return a function that decodes an image of exactly the shape of its pixels."""
    from iobench.formats.image_decoding import channels_last, decoded

    return lambda file, pixels: decoded(file, _stored(file), channels_last(pixels))


def _fill_extents(file: Path, extents: Array) -> None:
    """Set height and width to those that the header states."""
    with expecting(file, "an image", OSError), open(regular(file), "rb") as stored:
        extents[:] = extents_of(file, stored)


def _is_image(field: Field) -> bool:
    return field.is_image or field.is_channels_first
