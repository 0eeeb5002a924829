"""Scaling of decoded pixels by torch, to the layout that Pillow's scaling fills."""

from __future__ import annotations

import numpy as np
import torch

from iobench.formats import Array
from iobench.formats.image_decoding import ImageLayout


def fitted(pixels: Array, layout: ImageLayout, size: tuple[int, int]) -> Array:
    """Return pixels (H, W, C), which a layout uses of an image of a width and height, as it fits them."""
    width, height = layout.scaled(size)
    image = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    if image.shape[2:] != (height, width):
        image = torch.nn.functional.interpolate(image, (height, width), mode="bilinear", antialias=True)
    top, left = (height - layout.height) // 2, (width - layout.width) // 2
    cut = image[0, :, top : top + layout.height, left : left + layout.width]
    ordered = cut if layout.channels_first else cut.permute(1, 2, 0)
    array: Array = np.ascontiguousarray(ordered.numpy()).reshape(layout.shape)
    return array
