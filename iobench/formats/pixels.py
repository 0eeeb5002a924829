"""Decoder of PNG and JPEG files by Pillow; other types, and images of another size, are refused."""

from __future__ import annotations

import logging
import warnings
from io import BytesIO
from pathlib import Path

import numpy as np

from iobench.base.errors import CorruptArtifact, corrupt, needing
from iobench.base.files import regular
from iobench.base.text import reason
from iobench.formats._schema import Array

with needing("decoding images", "images"):
    from PIL import Image

KINDS = ("PNG", "JPEG")
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
        with Image.open(BytesIO(stored), formats=KINDS) as image:
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
        raise corrupt(file, expected, reason(error)) from error
    if array.shape != pixels.shape or array.dtype != np.uint8:
        raise corrupt(file, expected, f"{array.dtype} {array.shape}")
    pixels[...] = array


def shape_of(file: Path, stored: bytes | memoryview | None = None, what: str = "image") -> tuple[int, ...]:
    """Return the shape of an image's pixels, read from its header, which is that of the file or of `stored`.

    CorruptArtifact, which names `what`, if it is no PNG or JPEG, or of kind ``too-many-pixels`` or
    ``unsupported-image`` (neither RGB nor gray).
    """
    try:
        with Image.open(regular(file) if stored is None else BytesIO(stored), formats=KINDS) as image:
            (width, height), mode = image.size, image.mode
    except Image.DecompressionBombError as error:
        raise CorruptArtifact(
            f"{what}: too large to be decoded",
            kind="too-many-pixels",
            path=file,
            expected=f"at most {MOST_PIXELS:,} pixels",
            hint="resize it first",
        ) from error
    except Exception as error:  # decoders raise anything on damaged files
        raise CorruptArtifact(
            f"{what}: cannot be read",
            kind="unreadable",
            path=file,
            expected="a PNG or JPEG image",
            found=reason(error) if stored is None else "other bytes",
        ) from error
    if mode not in ("RGB", "L"):
        raise CorruptArtifact(
            f"{what}: unsupported mode",
            kind="unsupported-image",
            path=file,
            expected="RGB or gray (L)",
            found=mode,
            hint="convert it first",
        )
    return (height, width, 3) if mode == "RGB" else (height, width)
