"""A folder of images, one subfolder per label: decoded once, cropped or resized, with its labels."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from iobench.dataset.sources._base import BATCH_BYTES, Source, default_name
from iobench.errors import SourceError
from iobench.formats import Batch, Field, MissingDependency, Schema

try:
    from PIL import Image, UnidentifiedImageError
except ImportError as error:
    raise MissingDependency(
        "a folder of images needs Pillow, which is not installed: pip install pillow"
    ) from error


class ImageFolder(Source):
    """Fields `x` (uint8, the sample shape) and `y` (int64, the subfolder's place in the alphabet).

    The sample shape is height × width (grey), height × width × channels or channels × height ×
    width, with 1 or 3 channels. The shorter side is resized to fit and the rest cropped around
    the middle. Files without an image's suffix are left out; one that has it and cannot be
    decoded is a SourceError.
    """

    decodes = True

    def __init__(self, path: Path, sample_shape: tuple[int, ...]) -> None:
        self.path = path.resolve()
        self.name = default_name(path)
        self._layout = Layout(sample_shape)
        self.labels = sorted(entry.name for entry in path.iterdir() if _is_label(entry))
        if not self.labels:
            raise SourceError(f"--source {path}: no subfolder; images go into one subfolder per label")
        suffixes = {suffix for suffix, kind in Image.registered_extensions().items() if kind in Image.OPEN}
        self._files = [
            (file, number)
            for number, label in enumerate(self.labels)
            for file in sorted((path / label).iterdir())
            if file.suffix.lower() in suffixes and not file.name.startswith(".")
        ]
        if not self._files:
            raise SourceError(f"--source {path}: no image in its {len(self.labels)} subfolders")
        fields = (Field("x", sample_shape, "uint8"), Field("y", (), "int64"))
        self.schema = Schema(len(self._files), fields)

    @property
    def description(self) -> dict[str, Any]:
        """Kind, path, labels, and what tells that a file was added, removed or changed."""
        stats = [file.stat() for file, _ in self._files]
        return {
            "kind": "images",
            "path": str(self.path),
            "labels": self.labels,
            "files": len(self._files),
            "bytes": sum(stat.st_size for stat in stats),
            "mtime_ns": max(stat.st_mtime_ns for stat in stats),
        }

    def batches(self) -> Iterator[Batch]:
        """Decodes on every processor, in the order of labels and file names."""
        rows = self.schema.batch_rows(BATCH_BYTES)
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            for start in range(0, len(self._files), rows):
                files, numbers = zip(*self._files[start : start + rows], strict=True)
                yield {
                    "x": np.stack(list(pool.map(self._decode, files))),
                    "y": np.array(numbers, np.int64),
                }

    def _decode(self, file: Path) -> np.ndarray[Any, Any]:
        try:
            with Image.open(file) as image:
                return self._layout.fit(image)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            reason = "not an image" if isinstance(error, UnidentifiedImageError) else error
            raise SourceError(f"--source: {file} cannot be decoded: {reason}") from error


class Layout:
    """Where height, width and channels stand in a sample's shape."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.channels_first = len(shape) == 3 and shape[0] in (1, 3) and shape[2] not in (1, 3)
        channels_last = len(shape) == 3 and shape[2] in (1, 3)
        if not (len(shape) == 2 or self.channels_first or channels_last):
            raise SourceError(
                f"sample shape {'x'.join(map(str, shape))} is not an image's: give height x width, "
                "height x width x 3 or 3 x height x width, like 3x224x224"
            )
        self.height, self.width = shape[1:] if self.channels_first else shape[:2]
        self.mode = "RGB" if 3 in (shape[0] * self.channels_first, shape[-1] * channels_last) else "L"

    def fit(self, image: Image.Image) -> np.ndarray[Any, Any]:
        """The image as uint8 of this shape: shorter side resized, the rest cropped around the middle."""
        image = image.convert(self.mode)
        scale = max(self.width / image.width, self.height / image.height)
        width, height = (
            max(self.width, round(image.width * scale)),
            max(self.height, round(image.height * scale)),
        )
        if (width, height) != image.size:
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        left, top = (width - self.width) // 2, (height - self.height) // 2
        pixels = np.asarray(image.crop((left, top, left + self.width, top + self.height)))
        if self.channels_first and self.mode == "RGB":
            pixels = pixels.transpose(2, 0, 1)
        return np.ascontiguousarray(pixels).reshape(self.shape)


def _is_label(entry: Path) -> bool:
    return entry.is_dir() and not entry.name.startswith(".")
