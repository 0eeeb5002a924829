"""Decoding of the user's images within limits that are checked before memory is allocated."""

from __future__ import annotations

import logging
import math
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from iobench.base.errors import CorruptArtifact, SourceError, corrupt, damage, needing
from iobench.base.files import regular
from iobench.base.text import reason
from iobench.base.units import bytes_text, shape_text
from iobench.formats.array_schema import check_sample
from iobench.formats.ragged import VARIES
from iobench.formats.schema import Array

with needing("decoding images", "images"):
    from PIL import Image, UnidentifiedImageError

STORED_KINDS = ("PNG", "JPEG")
ENDS = {"PNG": b"IEND\xaeB`\x82", "JPEG": b"\xff\xd9"}
MOST_PIXELS = 2 * (Image.MAX_IMAGE_PIXELS or 0)  # beyond which Pillow raises DecompressionBombError
TAIL_BYTES = 64  # at the end of a file, in which the end marker must be

# Problems of an image are reported once, as an error.
warnings.filterwarnings("ignore", module=r"PIL\b")
logging.getLogger("PIL").addHandler(logging.NullHandler())


def channels_last(pixels: Array) -> Array:
    """Return the pixels as (H, W, 3) or (H, W); a view of those that are (3, H, W)."""
    return pixels if pixels.ndim == 2 or pixels.shape[2] == 3 else np.moveaxis(pixels, 0, 2)


def decoded(file: Path, stored: bytes | memoryview, pixels: Array, what: str = "an image") -> None:
    """Fill `pixels`, uint8 (H, W, 3) or (H, W), from the bytes of an image file.

    Releases the GIL while it decodes. CorruptArtifact, which names `what`, if it is no PNG or JPEG, of
    another size or mode, or (``too-many-pixels``) too large.
    """
    height, width = pixels.shape[:2]
    expected = f"{what} of {width} x {height}, {'RGB' if pixels.ndim == 3 else 'gray'}"
    try:
        with Image.open(BytesIO(stored), formats=STORED_KINDS) as image:
            if (
                image.size != (width, height)
                or bytes(stored[-TAIL_BYTES:]).find(ENDS[image.format or ""]) < 0
            ):
                raise corrupt(file, expected, f"{image.size[0]} x {image.size[1]} in {len(stored)} bytes")
            array = np.asarray(image)
    except CorruptArtifact:
        raise
    except Image.DecompressionBombError as error:
        raise corrupt(file, expected, f"more than {MOST_PIXELS:,} pixels", kind="too-many-pixels") from error
    except Exception as error:  # decoders raise anything on damaged files
        raise damage(error, file, expected) from error
    if array.shape != pixels.shape or array.dtype != np.uint8:
        raise corrupt(file, expected, f"{array.dtype} {array.shape}")
    pixels[...] = array


def shape_of(file: Path, stored: bytes | memoryview | None = None, what: str = "image") -> tuple[int, ...]:
    """Return the shape of an image's pixels, read from its header, which is that of the file or of `stored`.

    CorruptArtifact, which names `what`, if it is no PNG or JPEG, or of kind ``too-many-pixels``,
    ``deep-pixels`` (more than 8 bits) or ``unsupported-image`` (neither RGB nor gray).
    """
    try:
        with Image.open(regular(file) if stored is None else BytesIO(stored), formats=STORED_KINDS) as image:
            (width, height), mode = image.size, image.mode
    except Image.DecompressionBombError as error:
        problem, expected = f"{what}: too large to be decoded", f"at most {MOST_PIXELS:,} pixels"
        hint = "resize it first"
        raise CorruptArtifact(problem, "too-many-pixels", file, expected=expected, hint=hint) from error
    except Exception as error:  # decoders raise anything on damaged files
        problem, expected = f"{what}: cannot be read", "a PNG or JPEG image"
        found = reason(error) if stored is None else "other bytes"
        if stored is None and isinstance(error, UnidentifiedImageError):
            found = _other_kind(file)
        raise CorruptArtifact(problem, "unreadable", file, expected=expected, found=found) from error
    if mode not in ("RGB", "L"):
        problem, expected = f"{what}: unsupported mode", "RGB or gray (L)"
        kind, hint = (
            ("deep-pixels", TO_BYTES) if mode[0] in DEEP else ("unsupported-image", "convert it first")
        )
        raise CorruptArtifact(problem, kind, file, expected=expected, found=mode, hint=hint)
    return (height, width, 3) if mode == "RGB" else (height, width)


def _other_kind(file: Path) -> str:
    """Return what a file holds that is no PNG or JPEG."""
    try:
        with Image.open(file, formats=KINDS) as image:
            return f"{image.format}"
    except Exception:  # noqa: BLE001 - decoders raise anything on damaged files
        return "other bytes"


# By content, whatever the suffix. Others start programs (EPS: Ghostscript), are rare, or are not images.
KINDS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
DCT_SCALE = 2  # of each side, from which libjpeg decodes smaller sooner than whole
GRAY = ("1", "L", "LA", "I", "F")  # modes without colors
TO_BYTES = "save it with 8 bits, or its values as an array"
DEEP = "IF"  # first letters of the modes of integers and floats, which Pillow clips to bytes
MAX_FILE_BYTES = 192 << 20
MAX_SCANS = 100  # of a progressive JPEG; usual ones have about ten, and each scan decodes all pixels again
MEMORY_BYTES = 512 << 20  # limit for all images being decoded
PIXEL_BYTES = 4  # of an image in Pillow: decoded, converted and resized
COEFFICIENT_BYTES = 6  # in addition, per pixel of a progressive JPEG
CANVAS_BYTES = 16  # in addition, per pixel of a WebP
SHRINK = "make the image smaller"
END = b"\xff\xd9"  # of a JPEG

# Pillow allocates blocks of 16 MiB, which the C library keeps for the thread that freed them. It returns
# blocks above 32 MiB to the system.
Image.core.set_block_size(64 << 20)  # type: ignore[attr-defined]


class ImageLayout:
    """Order of height, width and channels in a sample's shape, of which height and width may be VARIES.

    Raises SourceError for a shape that is not an image's (`invalid-shape`) or too large.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.channels_first = len(shape) == 3 and shape[0] in (1, 3) and shape[2] not in (1, 3)
        channels_last = len(shape) == 3 and shape[2] in (1, 3)
        partly = VARIES in shape and (shape[:2] != (VARIES, VARIES) or VARIES in shape[2:])
        if partly or not (len(shape) == 2 or self.channels_first or channels_last):
            raise SourceError(
                f"sample shape {shape_text(shape)} is not an image's",
                "invalid-shape",
                hint="give height x width, height x width x 3 or 3 x height x width, like 3x224x224, or "
                "'*x*x3' for images of different sizes",
            )
        check_sample("--sample-shape", shape, math.prod(shape))
        self.height, self.width = shape[1:] if self.channels_first else shape[:2]
        self.mode = "RGB" if 3 in (shape[0] * self.channels_first, shape[-1] * channels_last) else "L"

    def for_image(self, size: tuple[int, int], file: BinaryIO) -> ImageLayout:
        """Return the layout of one image of a width and height: this one, unless these vary."""
        width, height = size
        return ImageLayout((height, width, *self.shape[2:])) if VARIES in self.shape else self

    def box(self, size: tuple[int, int]) -> tuple[int, int, int, int]:
        """Return left, top, right and bottom of what is used of an image: all of it."""
        return 0, 0, *size

    def sufficient(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the smallest width and height at which the image may be decoded."""
        return self.scaled(size)

    def scaled(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return width and height of what is used after its shorter side is resized to fit."""
        scale = max(self.width / size[0], self.height / size[1])
        return max(self.width, round(size[0] * scale)), max(self.height, round(size[1] * scale))

    def fit(self, image: Image.Image) -> np.ndarray[Any, Any]:
        """Return the image as uint8 of this shape: shorter side resized, rest cropped around the center."""
        if image.mode != self.mode:
            image = image.convert(self.mode)
        box, (width, height) = self.box(image.size), self.scaled(image.size)
        if box != (0, 0, *image.size):
            image = image.crop(box)
        if (width, height) != image.size:
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        left, top = (width - self.width) // 2, (height - self.height) // 2
        pixels = np.asarray(image.crop((left, top, left + self.width, top + self.height)))
        if self.channels_first and self.mode == "RGB":
            pixels = pixels.transpose(2, 0, 1)
        return np.ascontiguousarray(pixels).reshape(self.shape)


# Fills the layout from the bytes of a JPEG file of a width and height; raises anything on damaged files.
JpegDecoder: TypeAlias = "Callable[[bytes, tuple[int, int], ImageLayout], Array]"


class ImageDecoder:
    """Decoder of images to a layout; threads decode several at a time within the memory limit.

    `jpeg` decodes JPEG files whose colors need no conversion; Pillow reads the header and decodes all others.
    With `dct_scaling`, it decodes a JPEG at 1/2, 1/4 or 1/8 of its size if that is not below the layout.
    """

    def __init__(
        self, layout: ImageLayout, jpeg: JpegDecoder | None = None, dct_scaling: bool = False
    ) -> None:
        self._layout, self._jpeg, self._dct_scaling = layout, jpeg, dct_scaling
        self._memory = _Budget(MEMORY_BYTES)
        self._one_large_file = threading.Lock()  # some decoders hold the whole file in memory

    def decode(self, path: Path, file: BinaryIO, size: int) -> np.ndarray[Any, Any]:
        """Decode an open file of `size` bytes; raises SourceError, which names `path`."""
        with image_errors(path):
            if size > MAX_FILE_BYTES:
                problem = "the file is too large to be decoded"
                expected = f"at most {bytes_text(MAX_FILE_BYTES)}"
                raise SourceError(
                    problem, "file-too-large", path, expected=expected, found=bytes_text(size), hint=SHRINK
                )
            with self._one_large_file if size > MAX_FILE_BYTES // 16 else nullcontext():
                return self._decoded(path, file)

    def _decoded(self, path: Path, file: BinaryIO) -> np.ndarray[Any, Any]:
        with Image.open(file, formats=KINDS) as image:
            _check(path, image, file)
            layout = self._layout.for_image(image.size, file)
            with self._memory.taken(_memory(path, image, layout)):
                try:
                    keeps_colors = image.format == "JPEG" and image.mode in ("L", self._layout.mode)
                    if self._jpeg is not None and keeps_colors:
                        return self._jpeg(_whole_jpeg(file), image.size, layout)
                    if self._dct_scaling:
                        image.draft(None, layout.sufficient(image.size))
                    return layout.fit(image)
                finally:
                    image.close()  # release the pixels before others allocate as many


def _whole_jpeg(file: BinaryIO) -> bytes:
    """Return the bytes of a JPEG file that Pillow has read up to the first scan.

    Raises EOFError if no end follows, which a decoder of a part may not reach.
    """
    scan = file.tell()
    file.seek(0)
    if (stored := file.read()).rfind(END, scan) < 0:
        raise EOFError("the file ends early")
    return stored


def image_size(file: BinaryIO) -> tuple[int, int, bool]:
    """Return the width and height that an image's header states, and whether it has colors."""
    with Image.open(file, formats=KINDS) as image:
        return int(image.width), int(image.height), image.mode not in GRAY


def check_header(path: Path) -> None:
    """Raise SourceError if a file's header says that it is none of the images that are decoded."""
    with image_errors(path), regular(path).open("rb") as file, Image.open(file, formats=KINDS) as image:
        _check(path, image, file)


@contextmanager
def image_errors(path: Path) -> Iterator[None]:
    """Turn whatever is raised while an image is opened and decoded into SourceError."""
    try:
        yield
    except SourceError:
        raise
    except UnidentifiedImageError as error:
        problem = f"not an image of a supported type ({', '.join(KINDS)})"
        raise SourceError(problem, "unsupported-image", path) from error
    except Image.DecompressionBombError as error:
        problem = f"more than {MOST_PIXELS:,} pixels"
        raise SourceError(problem, "too-many-pixels", path, hint=SHRINK) from error
    except Exception as error:  # decoders raise anything on damaged files
        problem = f"cannot be decoded: {reason(error)}"
        raise SourceError(problem, "undecodable", path) from error


def _check(path: Path, image: Image.Image, file: BinaryIO) -> None:
    # the second image of an MPO, which cameras write, is a preview or depth
    if image.format != "MPO" and getattr(image, "is_animated", False):
        raise SourceError("contains several images", "several-images", path, hint="save the one to use")
    if image.mode[0] in DEEP:
        problem, found = "pixels have more than 8 bits, which would be clipped", f"mode {image.mode}"
        expected = "8 bits a channel"
        raise SourceError(problem, "deep-pixels", path, expected=expected, found=found, hint=TO_BYTES)
    if image.info.get("progressive") and _scans(file) > MAX_SCANS:
        problem = f"more than {MAX_SCANS} scans, about ten times as many as cameras write"
        raise SourceError(problem, "too-many-scans", path, hint="save it again")


def _memory(path: Path, image: Image.Image, layout: ImageLayout) -> int:
    """Return the memory that decoding and fitting an image takes; raises SourceError above the limit."""
    if not image.width or not image.height:
        raise SourceError("the image has no pixels", "no-pixels", path)
    pixel_bytes = PIXEL_BYTES * (1 + (image.mode != layout.mode))
    pixel_bytes += COEFFICIENT_BYTES * bool(image.info.get("progressive"))
    pixel_bytes += CANVAS_BYTES * (image.format == "WEBP")
    width, height = layout.scaled(image.size)
    tiles = getattr(image, "tag_v2", {})  # of a TIFF: a tile may be larger than the image
    tile = int(tiles.get(322, 0)) * int(tiles.get(323, 0)) * 2 * PIXEL_BYTES  # TileWidth × TileLength
    needed = image.width * image.height * pixel_bytes + tile
    if (width, height) != image.size:
        needed += width * height * PIXEL_BYTES
    left, top, right, bottom = layout.box(image.size)
    if (right - left, bottom - top) != image.size:
        needed += (right - left) * (bottom - top) * PIXEL_BYTES
    if needed > MEMORY_BYTES:
        problem = f"decoding {image.width:,} x {image.height:,} pixels takes too much memory"
        expected, found = f"at most {bytes_text(MEMORY_BYTES)}", bytes_text(needed)
        raise SourceError(problem, "too-much-memory", path, expected=expected, found=found, hint=SHRINK)
    return needed


class _Budget:
    """Memory budget of several threads, which wait until enough of it is free."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._left >= size)
            self._left -= size
        try:
            yield
        finally:
            with self._changed:
                self._left += size
                self._changed.notify_all()


def _scans(file: BinaryIO) -> int:
    """Count the scans of a JPEG; keeps the file's position."""
    position, count, last = file.tell(), 0, b""
    file.seek(0)
    while piece := file.read(1 << 20):
        count += (last + piece).count(b"\xff\xda")
        last = piece[-1:]
    file.seek(position)
    return count
