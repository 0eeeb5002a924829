"""Epochs of FFCV's own loader over JPEG files, which it stores in a beton as JPEG.

`stream_photos --ffcv PYTHON` runs this file with a Python that has FFCV. Its arguments are a folder of JPEG
files, the beton to make of them, `center` or `random`, the batch size and the number of threads. Each line
of the input asks for an epoch; the answer is a line with its samples per second. The first epoch, which
compiles, is not timed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from time import perf_counter

import numpy as np
from ffcv.fields import RGBImageField
from ffcv.fields.rgb_image import CenterCropRGBImageDecoder, RandomResizedCropRGBImageDecoder
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter
from PIL import Image

SIDE, QUALITY = 224, 90
DECODERS = {
    "center": lambda: CenterCropRGBImageDecoder((SIDE, SIDE), ratio=1.0),
    "random": lambda: RandomResizedCropRGBImageDecoder((SIDE, SIDE)),
}


class Photos:
    """Pixels of the files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._files = sorted(folder.rglob("*.jpg"))

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, number: int) -> tuple[np.ndarray]:
        """Return the pixels of a file."""
        return (np.asarray(Image.open(self._files[number])),)


def main(folder: str, beton: str, crop: str, batch_size: str, threads: str) -> None:
    photos = Photos(Path(folder))
    if not Path(beton).exists():
        field = RGBImageField(write_mode="jpg", jpeg_quality=QUALITY)
        DatasetWriter(beton, {"image": field}, num_workers=1).from_indexed_dataset(photos)
    loader = Loader(
        beton,
        batch_size=int(batch_size),
        num_workers=int(threads),
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=False,
        pipelines={"image": [DECODERS[crop](), ToTensor(), ToTorchImage()]},
    )
    epoch(loader)
    for _ in sys.stdin:
        began = perf_counter()
        samples = epoch(loader)
        print(samples / (perf_counter() - began), flush=True)


def epoch(loader: Loader) -> int:
    """Iterate over an epoch; return the samples that came."""
    return sum(len(images) for (images,) in loader)


if __name__ == "__main__":
    main(*sys.argv[1:])
