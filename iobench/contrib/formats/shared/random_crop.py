"""Layout of a random part of each image, as torchvision's RandomResizedCrop takes it.

The part follows from the last bytes of the image's file, the epoch and the loader's seed. `iobench run` reads
every epoch as the first, with seed 0, so that what arrives can be verified under every loader.
"""

from __future__ import annotations

import math
import random
import zlib
from typing import BinaryIO

from iobench.formats import Epoch
from iobench.formats.image_decoding import ImageLayout

AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)  # of the part: share of the image, and width to height
TRIES = 10
TAIL_BYTES = 256  # of the file: entropy-coded data, which differ from image to image

Box = tuple[int, int, int, int]


class RandomCrop(ImageLayout):
    """Layout that a random part of each image is scaled to, in each epoch another."""

    def __init__(self, shape: tuple[int, ...], epoch: Epoch) -> None:
        super().__init__(shape)
        self._epoch = epoch

    def for_image(self, size: tuple[int, int], file: BinaryIO) -> ImageLayout:
        """Return the layout of this image's part; keeps the file's position."""
        position = file.tell()
        file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
        seed = zlib.crc32(file.read(), zlib.crc32(b"%d %d" % (self._epoch.seed, self._epoch.number)))
        file.seek(position)
        return _Part(self.shape, size, random_box(size, seed))


class _Part(ImageLayout):
    """Layout of one part of an image of a width and height."""

    def __init__(self, shape: tuple[int, ...], size: tuple[int, int], part: Box) -> None:
        super().__init__(shape)
        self._size, self._part = size, part

    def box(self, size: tuple[int, int]) -> Box:
        left, top, right, bottom = self._part
        across, down = size[0] / self._size[0], size[1] / self._size[1]  # below 1 for a smaller decoding
        return round(left * across), round(top * down), round(right * across), round(bottom * down)

    def scaled(self, size: tuple[int, int]) -> tuple[int, int]:
        return self.width, self.height

    def sufficient(self, size: tuple[int, int]) -> tuple[int, int]:
        left, top, right, bottom = self._part
        across, down = self.width / (right - left), self.height / (bottom - top)
        return math.ceil(size[0] * across), math.ceil(size[1] * down)


def random_box(size: tuple[int, int], seed: int) -> Box:
    """Return left, top, right and bottom of a part of an image of a width and height.

    A part that does not fit after TRIES gives way to the largest central one within RATIO.
    """
    (width, height), draw = size, random.Random(seed)
    for _ in range(TRIES):
        area = width * height * draw.uniform(*AREA)
        ratio = math.exp(draw.uniform(*map(math.log, RATIO)))
        across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            left, top = draw.randint(0, width - across), draw.randint(0, height - down)
            return left, top, left + across, top + down
    across, down = min(width, round(height * RATIO[1])), min(height, round(width / RATIO[0]))
    left, top = (width - across) // 2, (height - down) // 2
    return left, top, left + across, top + down
