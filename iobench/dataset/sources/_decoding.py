"""One image of a user's, decoded within limits that are checked before memory is taken."""

from __future__ import annotations

import logging
import math
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from iobench.base.errors import (
    MissingDependency,
    SourceError,
)
from iobench.base.text import reason
from iobench.base.units import bytes_text
from iobench.dataset.sources._files import Stamp, check_unchanged, open_regular
from iobench.dataset.sources._schema import check_sample

try:
    from PIL import Image, UnidentifiedImageError
except ImportError as error:
    raise MissingDependency(
        "a folder of images needs Pillow, which is not installed: pip install pillow"
    ) from error

from iobench.formats._pixels import MORE_PIXELS

# By content, whatever the suffix says. Others call programs (EPS: Ghostscript), are seldom, or no pictures.
KINDS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
MAX_FILE_BYTES = 192 << 20
MAX_SCANS = 100  # of a progressive JPEG, which has about ten; each goes over all pixels again
MEMORY_BYTES = 512 << 20  # that images being decoded may take together
PIXEL_BYTES = 4  # in Pillow, as decoded, as converted and as resized
COEFFICIENT_BYTES = 6  # besides, of each pixel of a progressive JPEG
CANVAS_BYTES = 16  # besides, of each pixel of a WebP

# Pillow takes memory in blocks of 16 MiB, which the C library keeps for the thread that freed them; those
# above 32 MiB it gives back.
Image.core.set_block_size(64 << 20)  # type: ignore[attr-defined]
# What is wrong with an image is said once, as an error.
warnings.filterwarnings("ignore", module=r"PIL\b")
logging.getLogger("PIL").addHandler(logging.NullHandler())


class Layout:
    """Where height, width and channels stand in a sample's shape."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.channels_first = len(shape) == 3 and shape[0] in (1, 3) and shape[2] not in (1, 3)
        channels_last = len(shape) == 3 and shape[2] in (1, 3)
        if not (len(shape) == 2 or self.channels_first or channels_last):
            raise SourceError(
                f"sample shape {'x'.join(map(str, shape))} is not an image's: give height x width, "
                "height x width x 3 or 3 x height x width, like 3x224x224"
            )
        check_sample("--sample-shape", shape, math.prod(shape))
        self.height, self.width = shape[1:] if self.channels_first else shape[:2]
        self.mode = "RGB" if 3 in (shape[0] * self.channels_first, shape[-1] * channels_last) else "L"

    def scaled(self, size: tuple[int, int]) -> tuple[int, int]:
        """Width and height after the shorter side of an image of this size was resized to fit."""
        scale = max(self.width / size[0], self.height / size[1])
        return max(self.width, round(size[0] * scale)), max(self.height, round(size[1] * scale))

    def fit(self, image: Image.Image) -> np.ndarray[Any, Any]:
        """The image as uint8 of this shape: shorter side resized, the rest cropped around the middle."""
        if image.mode != self.mode:
            image = image.convert(self.mode)
        width, height = self.scaled(image.size)
        if (width, height) != image.size:
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        left, top = (width - self.width) // 2, (height - self.height) // 2
        pixels = np.asarray(image.crop((left, top, left + self.width, top + self.height)))
        if self.channels_first and self.mode == "RGB":
            pixels = pixels.transpose(2, 0, 1)
        return np.ascontiguousarray(pixels).reshape(self.shape)


class Decoder:
    """Decodes images to a layout, several at a time as far as memory goes."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._memory = _Budget(MEMORY_BYTES)
        self._one_large_file = threading.Lock()  # some decoders hold the whole file

    def decode(self, path: Path, stamp: Stamp) -> np.ndarray[Any, Any]:
        """The pixels of a file that is as it was when the folder was listed; SourceError names the file."""
        try:
            if stamp.bytes > MAX_FILE_BYTES:
                raise SourceError(
                    f"--source {path}: it has {bytes_text(stamp.bytes)}; at most "
                    f"{bytes_text(MAX_FILE_BYTES)} are decoded: make it smaller first"
                )
            with open_regular(path) as file:
                check_unchanged(path, file, stamp)
                if stamp.bytes <= MAX_FILE_BYTES // 16:
                    return self._decoded(path, file)
                with self._one_large_file:
                    return self._decoded(path, file)
        except SourceError:
            raise
        except UnidentifiedImageError as error:
            raise _undecodable(path, f"not an image of a kind that is read ({', '.join(KINDS)})") from error
        except Image.DecompressionBombError as error:
            raise _undecodable(path, MORE_PIXELS) from error
        except Exception as error:  # decoders fail on damaged files in ways of their own: name the file
            raise _undecodable(path, reason(error)) from error

    def _decoded(self, path: Path, file: BinaryIO) -> np.ndarray[Any, Any]:
        with Image.open(file, formats=KINDS) as image:
            _check(path, image, file)
            with self._memory.taken(_memory(path, image, self._layout)):
                try:
                    return self._layout.fit(image)
                finally:
                    image.close()  # gives the pixels back before others take as many


def _check(path: Path, image: Image.Image, file: BinaryIO) -> None:
    # the second picture of an MPO, which cameras write, is a preview or depth
    if image.format != "MPO" and getattr(image, "is_animated", False):
        raise _undecodable(path, "it holds several pictures; save the one that is meant")
    if image.info.get("progressive") and _scans(file) > MAX_SCANS:
        raise _undecodable(
            path,
            f"it has more than {MAX_SCANS} scans, about ten times as many as cameras write; save it anew",
        )


def _memory(path: Path, image: Image.Image, layout: Layout) -> int:
    """The bytes that decoding an image and fitting it takes, by its header; SourceError where too many."""
    if not image.width or not image.height:
        raise _undecodable(path, "it has no pixels")
    pixel_bytes = PIXEL_BYTES * (1 + (image.mode != layout.mode))
    pixel_bytes += COEFFICIENT_BYTES * bool(image.info.get("progressive"))
    pixel_bytes += CANVAS_BYTES * (image.format == "WEBP")
    width, height = layout.scaled(image.size)
    tiles = getattr(image, "tag_v2", {})  # of a TIFF, which may have one that is larger than the picture
    tile = int(tiles.get(322, 0)) * int(tiles.get(323, 0)) * 2 * PIXEL_BYTES  # TileWidth × TileLength
    needed = image.width * image.height * pixel_bytes + tile
    if (width, height) != image.size:
        needed += width * height * PIXEL_BYTES
    if needed > MEMORY_BYTES:
        raise _undecodable(
            path,
            f"its {image.width:,} x {image.height:,} pixels would take {bytes_text(needed)} of memory, and "
            f"at most {bytes_text(MEMORY_BYTES)} may be taken: make it smaller first",
        )
    return needed


class _Budget:
    """So many bytes, of which threads take some for a while, and wait until there are enough."""

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
    """How often a JPEG starts a scan; leaves the file where it was."""
    position, count, last = file.tell(), 0, b""
    file.seek(0)
    while piece := file.read(1 << 20):
        count += (last + piece).count(b"\xff\xda")
        last = piece[-1:]
    file.seek(position)
    return count


def _undecodable(path: Path, why: str) -> SourceError:
    return SourceError(f"--source: {path} cannot be decoded: {why}")
