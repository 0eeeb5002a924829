"""Decoder of JPEG files by PyTurboJPEG, which loads the system's TurboJPEG library."""

from __future__ import annotations

from turbojpeg import TJPF_GRAY, TJPF_RGB, TurboJPEG

from iobench.contrib.formats.shared.jpeg_decoders import Size, dct_part
from iobench.formats import Array

MODES = {"RGB": TJPF_RGB, "L": TJPF_GRAY}
LIBRARY = TurboJPEG()


def decode_jpeg(stored: bytes, mode: str, size: Size, least: Size) -> Array:
    """Return the pixels."""
    pixels: Array = LIBRARY.decode(stored, MODES[mode], (1, dct_part(size, least)))
    return pixels
