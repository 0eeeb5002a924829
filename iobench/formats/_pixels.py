"""Pixels out of PNG and JPEG files, by Pillow: nothing else is decoded, and nothing of another size."""

from __future__ import annotations

import logging
import warnings
from io import BytesIO
from pathlib import Path

import numpy as np

from iobench.base.errors import (
    CorruptArtifact,
    MissingDependency,
    corrupt,
)
from iobench.base.text import reason
from iobench.formats._file_kind import regular
from iobench.formats._schema import Array

try:
    from PIL import Image
except ImportError as error:
    raise MissingDependency(
        "images are decoded by Pillow, which is not installed: pip install 'iobench[images]'"
    ) from error

KINDS = ("PNG", "JPEG")
ENDS = {"PNG": b"IEND\xaeB`\x82", "JPEG": b"\xff\xd9"}
MOST_PIXELS = 2 * (Image.MAX_IMAGE_PIXELS or 0)  # beyond which Pillow raises DecompressionBombError
MORE_PIXELS = f"it has more than {MOST_PIXELS:,} pixels, the most that are decoded: make it smaller first"
TAIL_BYTES = 64  # of a file, in which its end stands

# What is wrong with an image is said once, as an error.
warnings.filterwarnings("ignore", module=r"PIL\b")
logging.getLogger("PIL").addHandler(logging.NullHandler())


def seen(pixels: Array) -> Array:
    """The same pixels as (H, W, 3) or (H, W): those with their channels first as a view."""
    return pixels if pixels.ndim == 2 or pixels.shape[2] == 3 else np.moveaxis(pixels, 0, 2)


def decoded(file: Path, stored: bytes | memoryview, pixels: Array, what: str = "an image") -> None:
    """Fill `pixels`, uint8 (H, W, 3) or (H, W), from the bytes of an image file.

    `what` it is in `file`, for complaints: CorruptArtifact where the bytes are none, or one of another
    size or kind. Lets go of the interpreter's lock while it decodes.
    """
    height, width = pixels.shape[:2]
    expected = f"{what} of {width} x {height}, {'RGB' if pixels.ndim == 3 else 'grey'}"
    try:
        with Image.open(BytesIO(stored), formats=KINDS) as image:
            if (
                image.size != (width, height)
                or bytes(stored[-TAIL_BYTES:]).find(ENDS[image.format or ""]) < 0
            ):
                raise corrupt(file, expected, f"{image.size[0]} x {image.size[1]} in {len(stored)} bytes")
            found = np.asarray(image)
    except CorruptArtifact:
        raise
    except Image.DecompressionBombError as error:
        raise corrupt(file, expected, f"more than {MOST_PIXELS:,} pixels") from error
    except Exception as error:  # decoders fail in any way on damaged files; whichever it is, name the file
        raise corrupt(file, expected, reason(error)) from error
    if found.shape != pixels.shape or found.dtype != np.uint8:
        raise corrupt(file, expected, f"{found.dtype} {found.shape}")
    pixels[...] = found


def shape_of(file: Path, stored: bytes | memoryview | None = None, what: str = "") -> tuple[int, ...]:
    """The shape of an image's pixels, by its header; CorruptArtifact where it is no RGB or grey one.

    `stored`: the image's bytes, where it is not the whole of a file but `what` in it.
    """
    try:
        with Image.open(regular(file) if stored is None else BytesIO(stored), formats=KINDS) as image:
            (width, height), mode = image.size, image.mode
    except Image.DecompressionBombError as error:
        raise CorruptArtifact(f"{file}: {what + ': ' if what else ''}{MORE_PIXELS}") from error
    except Exception as error:  # as above
        said = reason(error) if stored is None else "other bytes"
        raise corrupt(file, f"{what or 'a PNG or JPEG file'}", said) from error
    if mode not in ("RGB", "L"):
        raise CorruptArtifact(
            f"{file}: {what + ': ' if what else ''}its pixels are {mode}; RGB and grey ones (L) are read: "
            "convert it first"
        )
    return (height, width, 3) if mode == "RGB" else (height, width)
