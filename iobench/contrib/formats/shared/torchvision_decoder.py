"""Decoder of JPEG files by torchvision, on the CPU and of the whole size."""

from __future__ import annotations

import torch
from torchvision.io import ImageReadMode
from torchvision.io import decode_jpeg as decode

from iobench.contrib.formats.shared.jpeg_decoders import Size
from iobench.formats import Array

MODES = {"RGB": ImageReadMode.RGB, "L": ImageReadMode.GRAY}


def decode_jpeg(stored: bytes, mode: str, size: Size, least: Size) -> Array:
    """Return the pixels."""
    writable = bytearray(stored)  # torch warns of a tensor that must not be written to
    pixels: Array = (
        decode(torch.frombuffer(writable, dtype=torch.uint8), MODES[mode]).permute(1, 2, 0).numpy()
    )
    return pixels
