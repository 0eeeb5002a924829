"""Decoder of JPEG files by OpenCV.

It decodes to RGB. A conversion of BGR would start OpenCV's pool of threads, which a forked worker of
DataLoader does not have.
"""

from __future__ import annotations

import cv2
import numpy as np

from iobench.contrib.formats.shared.jpeg_decoders import Size, dct_part
from iobench.formats import Array

MODES = {"RGB": cv2.IMREAD_COLOR_RGB, "L": cv2.IMREAD_GRAYSCALE}  # the first is new in 4.11
REDUCED = {  # with the bit that each adds to a mode
    8: cv2.IMREAD_REDUCED_GRAYSCALE_8,
    4: cv2.IMREAD_REDUCED_GRAYSCALE_4,
    2: cv2.IMREAD_REDUCED_GRAYSCALE_2,
}


def decode_jpeg(stored: bytes, mode: str, size: Size, least: Size) -> Array:
    """Return the pixels, at 1/2, 1/4 or 1/8 of the size if that is not below `least`."""
    flags = MODES[mode] | REDUCED.get(dct_part(size, least), 0) | cv2.IMREAD_IGNORE_ORIENTATION
    pixels: Array | None = cv2.imdecode(np.frombuffer(stored, np.uint8), flags)
    if pixels is None:
        raise ValueError("OpenCV does not say why")
    return pixels.reshape(*pixels.shape[:2], -1)
