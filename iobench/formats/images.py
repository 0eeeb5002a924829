"""One image file per sample, decoded as it is read; labels lie in NumPy files beside them.

    <field>/000/000000012.png      row 12 of a field of images; a folder has a thousand of them
    <field>.npy                    a field of scalars

PNG keeps every byte. JPEG does not: such an artifact is proved against what its own files decode to.
Folders of other people's images are read where they lie, a folder per class as torchvision's ImageFolder
has them: `image` is the field of pixels, `label` the number of the class in the order of their names.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from iobench.base.errors import (
    CorruptArtifact,
    InvalidOption,
    UnsupportedSchema,
    corrupt,
)
from iobench.formats._external import FIXED
from iobench.formats._format import Format
from iobench.formats._options import option
from iobench.formats._schema import Array, Batch, Field, Schema
from iobench.formats.npy import Npy

if TYPE_CHECKING:
    from iobench.formats._image_reader import ImageReader

HELD = "images, uint8 (height, width, 3), (3, height, width) or (height, width)"
SUFFIXES = (".png", ".jpg", ".jpeg")
A_FOLDER = 1000
QUALITY = 90


@dataclass(frozen=True)
class Images(Format):
    """A PNG or JPEG file per sample."""

    name: ClassVar[str] = "images"
    summary: ClassVar[str] = "one PNG (or, lossy, JPEG) file per sample, decoded as it is read"
    library: ClassVar[str] = "pillow"
    modules: ClassVar[tuple[str, ...]] = ("PIL",)
    extra: ClassVar[str] = "images"
    survives_unlink: ClassVar[bool] = False

    lossy: str | None = option(None, "what keeps most of each image, instead of PNG", choices=(None, "jpeg"))
    quality: int = option(QUALITY, "of JPEG", minimum=1, maximum=100)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quality != QUALITY and not self.lossy:
            raise InvalidOption(f"images:quality={self.quality}: PNG has no quality; it is for lossy=jpeg")

    @property
    def lossless(self) -> bool:
        """Whether PNG."""
        return self.lossy is None

    def roundtrip(self, batch: Batch) -> Batch:
        """The batch with each image as JPEG gives it back."""
        return batch if self.lossless else {name: self._kept(array) for name, array in batch.items()}

    def _kept(self, array: Array) -> Array:
        from iobench.formats._pixels import decoded, seen

        if array.ndim == 1:
            return array
        found = np.empty_like(array)
        for image, pixels in zip(array, found, strict=True):
            decoded(Path("image"), self.encoded(image), seen(pixels))
        return found

    def encoded(self, pixels: Array) -> bytes:
        """An image file of uint8 pixels (H, W, 3), (3, H, W) or (H, W)."""
        from PIL import Image

        from iobench.formats._pixels import seen

        file = BytesIO()
        image = Image.fromarray(np.ascontiguousarray(seen(pixels)))
        if self.lossless:
            image.save(file, "PNG")
        else:
            image.save(file, "JPEG", quality=self.quality)
        return file.getvalue()

    def check_schema(self, schema: Schema) -> None:
        """UnsupportedSchema where a field is neither an image nor a scalar, or none is an image."""
        super().check_schema(schema)
        for field in schema.fields:
            if field.shape and not _pictured(field):
                raise UnsupportedSchema(
                    f"format {self.name} cannot hold field {field.name}, which is {field.dtype} "
                    f"{field.shape}; it holds {HELD}, and scalars beside them"
                )
        if not any(field.shape for field in schema.fields):
            raise UnsupportedSchema(
                f"format {self.name} holds {HELD}; none is "
                f"among the fields {', '.join(field.name for field in schema.fields)}"
            )

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Encode every image, several at once; scalars as npy writes them."""
        pixels = [field for field in schema.fields if field.shape]
        scalars = Schema(schema.samples, tuple(field for field in schema.fields if not field.shape))
        Npy().write(path, scalars, self._encode(path, pixels, batches))

    def _encode(self, path: Path, pixels: Sequence[Field], batches: Iterable[Batch]) -> Iterator[Batch]:
        """Write the images of every batch, and pass on what else is in it."""
        start = 0
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            for batch in batches:
                for field in pixels:
                    files = [self.file_of(path, field.name, start + i) for i in range(len(batch[field.name]))]
                    for folder in dict.fromkeys(file.parent for file in files):
                        folder.mkdir(parents=True, exist_ok=True)
                    list(pool.map(self._write, files, batch[field.name]))
                start += len(next(iter(batch.values())))
                yield {name: array for name, array in batch.items() if array.ndim == 1}

    def _write(self, file: Path, pixels: Array) -> None:
        file.write_bytes(self.encoded(pixels))

    def file_of(self, path: Path, name: str, row: int) -> Path:
        """Where the image of a row lies."""
        suffix = ".png" if self.lossless else ".jpg"
        return path / name / f"{row // A_FOLDER:03}" / f"{row:09}{suffix}"

    def open(self, path: Path, schema: Schema, random: bool = False) -> ImageReader:
        """A reader; each image is looked at when it is read."""
        from iobench.formats._image_reader import ImageReader

        if self.sniff(path):
            files, labels = classes(path)
            return ImageReader(path, schema, {"image": files}, {"label": labels})
        if not path.is_dir():
            raise corrupt(path, "a folder of images", "no such folder")
        found = {}
        for field in schema.fields:
            if field.shape:
                if not _pictured(field):
                    raise corrupt(path, f"{field.name}: {field.dtype} {field.shape}", "images")
                found[field.name] = [self.file_of(path, field.name, row) for row in range(schema.samples)]
                self._check_ends(path, field, schema.samples)
        scalars = tuple(field for field in schema.fields if not field.shape)
        return ImageReader(path, schema, found, Npy().open(path, Schema(schema.samples, scalars)))

    def _check_ends(self, path: Path, field: Field, samples: int) -> None:
        """CorruptArtifact where the last image is missing, or one more is there."""
        last, after = (self.file_of(path, field.name, row) for row in (samples - 1, samples))
        if not last.is_file():
            raise corrupt(last, "an image", "no such file")
        if after.exists():
            raise corrupt(path / field.name, f"{samples} images", f"{after.name}, which is one more")

    def sniff(self, path: Path) -> bool:
        """A folder of folders, one for each class, with image files in the first, and nothing else."""
        with contextlib.suppress(OSError):
            entries = [entry for entry in path.iterdir() if not entry.name.startswith(".")]
            if entries and all(entry.is_dir() for entry in entries):
                return any(file.suffix.lower() in SUFFIXES for file in min(entries).iterdir())
        return False

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Fields `image` and `label`; every image must be of one size, which their headers say."""
        from iobench.formats._pixels import shape_of

        files, _ = classes(path)
        shapes = {shape_of(file): file for file in files}
        if len(shapes) > 1:
            (one, first), (other, second), *_ = shapes.items()
            raise CorruptArtifact(
                f"{path}: {first.name} is {one} and {second.name} {other}, and samples must be of one "
                f"shape: {FIXED}; 'iobench prepare --source {path} --sample-shape' does"
            )
        return Schema(len(files), (Field("image", next(iter(shapes)), "uint8"), Field("label", (), "int64")))

    def size_bound(self, schema: Schema) -> int:
        """Each file with its last block; noise that no codec shrinks, and what JPEG makes of it."""
        images = [field for field in schema.fields if field.shape]
        share = 0.02 if self.lossless else 2
        noise = int(share * sum(field.sample_bytes for field in images))
        return super().size_bound(schema) + schema.samples * (noise + (8 << 10) * len(images))


def _pictured(field: Field) -> bool:
    return field.is_image or field.is_channels_first


def classes(path: Path) -> tuple[list[Path], Array]:
    """The files of a folder with a folder for each class, by class and then by name, and their labels."""
    found: list[Path] = []
    labels: list[int] = []
    try:
        folders = sorted(entry for entry in path.iterdir() if entry.is_dir() and entry.name[0] != ".")
        for number, folder in enumerate(folders):
            files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES)
            linked = [file for file in (folder, *files) if file.is_symlink()]
            if linked:
                raise corrupt(linked[0], "images in this folder", "a link")
            found += files
            labels += [number] * len(files)
    except OSError as error:
        raise corrupt(path, "a folder of images", error.strerror or str(error)) from error
    if not found:
        raise CorruptArtifact(f"{path}: it has no folder with PNG or JPEG files in it")
    return found, np.array(labels, np.int64)
