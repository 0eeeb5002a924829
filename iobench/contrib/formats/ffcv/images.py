"""Images of an RGBImageField: each is a JPEG file or its pixels, as the mode in its metadata says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.contrib.formats.shared.external import unequal_samples
from iobench.contrib.formats.shared.packed_images import PackedImages
from iobench.contrib.formats.shared.scaled_images import ScaledDecoder
from iobench.formats import Array, Blocks, Field

RAW = 1  # mode of pixels; that of a JPEG file is 0
CHANNELS = 3
PARTS = ("offset", "size", "width", "height")  # of the lists of images


@dataclass(frozen=True, eq=False)
class BetonImages:
    """One image per sample: a JPEG file, or pixels of a width and a height, which are 0 for a file."""

    packed: PackedImages
    width: Array
    height: Array

    @classmethod
    def of(cls, field: Field, lists: Mapping[str, Array]) -> BetonImages:
        """Return the images of a field from the arrays of `listed`."""
        offset, size, width, height = (lists[f"{field.name}.{one}"] for one in PARTS)
        file = np.broadcast_to(np.int64(0), offset.shape)
        return cls(PackedImages(field.name, file, offset, size), width, height)

    @property
    def encoded(self) -> bool:
        """True if one of them is a JPEG file."""
        return not self.width.all()

    def image_file(self, row: int, stored: memoryview) -> memoryview:
        """Return an image file: the stored one, or a PPM file of the stored pixels."""
        width, height = int(self.width[row]), int(self.height[row])
        return memoryview(b"P6 %d %d 255\n" % (width, height) + stored) if width else stored

    def image_in(self, stored: Array, row: int) -> memoryview:
        """Return the image file of a sample in the bytes of a beton."""
        begin = int(self.packed.offset[row])
        return self.image_file(row, stored[begin : begin + int(self.packed.size[row])].data)

    def blocks(self, files: Sequence[Path], field: Field, decode_one: ScaledDecoder | None) -> Blocks:
        """Return each image as a block of one row; without `decode_one`, an image of exactly its shape."""
        packed = self.packed.blocks(files, field, decode_one)

        def decode(number: int, stored: memoryview, out: Mapping[str, Array]) -> None:
            if decode_one is None and self.width[number]:
                out[field.name][0] = np.frombuffer(stored, np.uint8).reshape(field.shape)
            else:
                packed.decode(number, self.image_file(number, stored), out)

        return replace(packed, decode=decode)


def image_lists(path: Path, name: str, metadata: Array, sizes: Array) -> dict[str, Array]:
    """Return bytes, width and height of each image, the last two 0 for a JPEG file.

    CorruptArtifact, which names the sample, for another mode or another number of pixels.
    """
    width, height, raw = metadata["width"], metadata["height"], metadata["mode"] == RAW
    pixels = width.astype(np.int64) * height * CHANNELS
    wrong = (metadata["mode"] > RAW) | (pixels == 0) | (raw & (pixels != sizes))
    if wrong.any():
        row = int(wrong.argmax())
        expected = f"{name} of sample {row} as a JPEG file, or as {width[row]} x {height[row]} pixels"
        raise corrupt(path, expected, f"mode {metadata['mode'][row]} in {sizes[row]:,} bytes")
    parts = (sizes.astype(np.int64), *(np.where(raw, side, np.uint16(0)) for side in (width, height)))
    return {f"{name}.{part}": one for part, one in zip(PARTS[1:], parts, strict=True)}


def unequal(metadata: Array) -> int | None:
    """Return the first image whose shape is not the first one's; None if all have one shape."""
    differ = (metadata["height"] != metadata["height"][0]) | (metadata["width"] != metadata["width"][0])
    return int(differ.argmax()) if differ.any() else None


def shape_at(metadata: Array, row: int) -> tuple[int, ...]:
    """Return the shape of an image's pixels."""
    return int(metadata["height"][row]), int(metadata["width"][row]), CHANNELS


def unequal_shapes(path: Path, name: str, metadata: Array, row: int, instead: str = "") -> CorruptArtifact:
    """Return the error for images that differ in shape; `instead` are options that read their bytes."""
    scale = "scale and crop them: --format ffcv:shape=3x224x224"
    hint = f"{scale}; or read their bytes, not decoded: {instead}" if instead else scale
    problem = f"{name} of sample {row} differs in shape"
    return unequal_samples(path, problem, shape_at(metadata, 0), shape_at(metadata, row), hint)
