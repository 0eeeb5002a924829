"""Decoder of JPEG files by simplejpeg."""

from __future__ import annotations

import simplejpeg

from iobench.contrib.formats.shared.jpeg_decoders import Size
from iobench.formats import Array
from iobench.formats.image_decoding import DCT_SCALE


def decode_jpeg(stored: bytes, mode: str, size: Size, least: Size) -> Array:
    """Return the pixels; a scale is at most a half."""
    colors, (width, height) = {"RGB": "RGB", "L": "GRAY"}[mode], least
    pixels: Array = simplejpeg.decode_jpeg(
        stored, colors, min_height=height, min_width=width, min_factor=DCT_SCALE
    )
    return pixels
