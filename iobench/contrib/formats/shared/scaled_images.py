"""Options of formats that scale and crop existing images of any size as they read them, or keep their sizes.

Pillow's pixels are those of `iobench prepare --sample-shape`. Other decoders, and decoding at a part of the
size, make pixels of their own.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, ClassVar

import numpy as np

from iobench.base.errors import CorruptArtifact, InvalidOption, SourceError, UnsupportedSchema
from iobench.base.finding import Finding
from iobench.base.options import option
from iobench.base.registry import is_installed
from iobench.base.units import counted, parse_shape
from iobench.contrib.formats.shared.jpeg_decoders import (
    JPEG_LIBRARIES,
    JpegLibrary,
    decode_whole,
    jpeg_decoder,
)
from iobench.formats import VARIES, Array, Epoch, Field, Format, Schema, WholeDecoder, check_sample

COMPARED = 32  # images whose pixels are compared with Pillow's
PILLOW = "pillow"
CENTER, CROPS = "center", ("center", "random")


@dataclass(frozen=True)
class ScaledImages(Format):
    """Base class of formats whose existing images can be scaled and cropped to one shape.

    Attributes
    ----------
    keeps_sizes : bool
        True if `shape` may be ``*x*x3``: each image in its own size.
    """

    keeps_sizes: ClassVar[bool] = False

    shape: str | None = option(
        None,
        "shape that existing images are scaled and cropped to, like 3x224x224; *x*x3 (not ffcv): own sizes",
    )
    decoder: str = option(
        PILLOW,
        "decoder of JPEG files where `shape` is given; the others are faster",
        choices=(PILLOW, *JPEG_LIBRARIES),
    )
    crop: str = option(
        CENTER,
        "part of each image: random as RandomResizedCrop's, but `run` takes the same in all epochs",
        choices=CROPS,
    )
    dct_scaling: bool = option(
        False, "decode JPEG files at a half of their size, or less, where `shape` is smaller: other pixels"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        given = {
            "decoder": self.decoder != PILLOW,
            "crop": self.crop != CENTER,
            "dct_scaling": self.dct_scaling,
        }
        shape = self.scaled_shape or ()
        if VARIES in shape:
            del given["decoder"]
        if any(given.values()) and (not shape or VARIES in shape):
            named = " and ".join(name for name, one in given.items() if one)
            without = f"with shape={self.shape}" if shape else "without shape"
            problem, hint = f"{self.name}: {named} {without}", "give shape=3x224x224"
            raise InvalidOption(problem, "conflicting-options", hint=hint)
        if self.dct_scaling and self._jpeg_library and not self._jpeg_library.dct_scaling:
            problem = f"{self.name}: {self.decoder} has no dct_scaling"
            hint = "omit dct_scaling, or choose another decoder"
            raise InvalidOption(problem, "conflicting-options", hint=hint)

    @property
    def _jpeg_library(self) -> JpegLibrary | None:
        """The decoder's library; None for Pillow, which decodes what is not a JPEG with every decoder."""
        return JPEG_LIBRARIES.get(self.decoder)

    @property
    def scaled_shape(self) -> tuple[int, ...] | None:
        """Shape of the pixels of scaled images."""
        return parse_shape(self.shape, self.keeps_sizes) if self.shape else None

    @property
    def lossless(self) -> bool:
        """True for the pixels of existing images as Pillow decodes them, cropped around the center."""
        return self.decoder == PILLOW and self.crop == CENTER and not self.dct_scaling

    @property
    def libraries(self) -> tuple[str, ...]:
        """The format's own library, and the packages that provide the decoder."""
        return (self.library, *(self._jpeg_library.packages if self._jpeg_library else ()))

    @property
    def option_modules(self) -> dict[str, str]:
        """The decoder's module."""
        return {self._jpeg_library.module: self.decoder} if self._jpeg_library else {}

    @property
    def parallel(self) -> bool:
        """True where images are scaled."""
        return self.shape is not None

    def check_schema(self, schema: Schema) -> None:
        """Raise UnsupportedSchema also for a variant that reads existing images (``read-only-variant``)."""
        if self.shape:
            problem = f"{self.variant} reads existing images and cannot be written"
            hint = "omit shape, decoder, crop and dct_scaling"
            raise UnsupportedSchema(problem, "read-only-variant", hint=hint)
        super().check_schema(schema)

    def other_decoders(self, large: bool = False) -> tuple[str, ...]:
        """Return the variants with a decoder besides Pillow; of `large` images, also with `dct_scaling`."""
        if self.shape is None or self.decoder != PILLOW:
            return ()
        return tuple(
            replace(self, decoder=word, dct_scaling=scaled).variant
            for word, library in JPEG_LIBRARIES.items()
            for scaled in dict.fromkeys((self.dct_scaling, self.dct_scaling or large))
            if library.dct_scaling or not scaled
        )

    def jpeg_decoders(self) -> Iterator[WholeDecoder]:
        """Yield the installed decoders of JPEG files besides Pillow."""
        for word, library in JPEG_LIBRARIES.items():
            if is_installed(library.module):
                yield WholeDecoder(word, library.code, partial(decode_whole, word))

    def decode(self) -> ScaledDecoder | None:
        """Return the decoder of images of any size; None without `shape`."""
        shape = self.scaled_shape
        return None if shape is None else ScaledDecoder(shape, self.decoder, self.crop, self.dct_scaling)

    def other_pixels(self, images: Sequence[tuple[Path, bytes | memoryview]]) -> list[Finding]:
        """Return how far the pixels of these images are from Pillow's, for another decoder or scale."""
        own, shape = self.decode(), self.scaled_shape
        if own is None or shape is None or (self.decoder == PILLOW and not self.dct_scaling):
            return []
        pillow, each, most = ScaledDecoder(shape, crop=self.crop), [], 0
        for file, stored in images:
            expected, pixels = (decoder.decode(file, stored).astype(np.int16) for decoder in (pillow, own))
            difference = np.abs(expected - pixels)
            each.append(float(difference.mean()))
            most = max(most, int(difference.max()))
        mean = statistics.fmean(each)
        return [
            Finding(
                "other-pixels",
                f"pixels differ from Pillow's by at most {most} of 255, {mean:.2g} on average, "
                f"in {counted(len(images), 'image')}",
                values={"most": most, "mean": mean, "images": len(images)},
            )
        ]


class ScaledDecoder:
    """Decoder of images of any size to one shape; Pillow does as `iobench prepare` with a shape.

    Random parts follow from `epoch`.
    """

    def __init__(
        self, shape: tuple[int, ...], decoder: str = PILLOW, crop: str = CENTER, dct_scaling: bool = False
    ) -> None:
        from iobench.contrib.formats.shared.random_crop import RandomCrop
        from iobench.formats.image_decoding import ImageDecoder, ImageLayout

        self.shape, self.epoch = shape, Epoch()
        layout = ImageLayout(shape) if crop == CENTER else RandomCrop(shape, self.epoch)
        jpeg = None if decoder == PILLOW else jpeg_decoder(decoder, dct_scaling)
        self._images = ImageDecoder(layout, jpeg, dct_scaling)

    def decode(self, file: Path, stored: bytes | memoryview) -> Array:
        """Return the pixels of one image; CorruptArtifact, which names `file`, if it is damaged."""
        try:
            return self._images.decode(file, BytesIO(stored), len(stored))
        except SourceError as error:
            raise error.converted(CorruptArtifact) from error


def length_of(field: Field, file: Path, stored: BinaryIO) -> int:
    """Return the pixels of an image; CorruptArtifact (``sample-too-large``) if they are too many."""
    length = math.prod(extents_of(file, stored))
    check_sample("", (), length * field.sample_bytes, file)
    return length


def extents_of(file: Path, stored: BinaryIO) -> tuple[int, int]:
    """Return height and width that an image's header states; CorruptArtifact, naming `file`, without one."""
    from iobench.formats.image_decoding import image_errors, image_size

    try:
        with image_errors(file):
            width, height, _ = image_size(stored)
    except SourceError as error:
        raise error.converted(CorruptArtifact) from error
    return height, width
