"""Decoders of JPEG files that stand beside Pillow, with the scaling that goes with them.

simplejpeg calls libjpeg-turbo without a copy in between; torch scales with vector instructions, which
Pillow's scaling lacks. Their pixels differ from Pillow's by one level here and there.
"""

from __future__ import annotations

import numpy as np
import torch

from iobench.base.errors import needing
from iobench.formats import Array
from iobench.formats.image_decoding import DCT_SCALE, ImageLayout, JpegDecoder

with needing("decoder=simplejpeg", "simplejpeg"):
    import simplejpeg


def by_simplejpeg(dct_scaling: bool) -> JpegDecoder:
    """Return the decoder of RGB and gray JPEG files to a layout: simplejpeg, then torch's scaling.

    With `dct_scaling` an image is decoded at the smallest scale, at most a half, that is not below the
    layout.
    """

    def decode(stored: bytes, size: tuple[int, int], layout: ImageLayout) -> Array:
        width, height = layout.sufficient(size) if dct_scaling else (0, 0)
        pixels = simplejpeg.decode_jpeg(
            stored,
            "RGB" if layout.mode == "RGB" else "GRAY",
            min_height=height,
            min_width=width,
            min_factor=DCT_SCALE,
        )
        return _fitted(pixels, layout, size)

    return decode


def _fitted(pixels: Array, layout: ImageLayout, size: tuple[int, int]) -> Array:
    """Return pixels (H, W, C), of an image of a width and height, as `ImageLayout.fit` does."""
    left, top, right, bottom = layout.box((pixels.shape[1], pixels.shape[0]))
    width, height = layout.scaled(size)
    image = torch.from_numpy(pixels[top:bottom, left:right]).permute(2, 0, 1)[None]
    if image.shape[2:] != (height, width):
        image = torch.nn.functional.interpolate(image, (height, width), mode="bilinear", antialias=True)
    top, left = (height - layout.height) // 2, (width - layout.width) // 2
    cut = image[0, :, top : top + layout.height, left : left + layout.width]
    ordered = cut if layout.channels_first else cut.permute(1, 2, 0)
    array: Array = np.ascontiguousarray(ordered.numpy()).reshape(layout.shape)
    return array
