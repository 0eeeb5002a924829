"""A folder of images, one subfolder per label: decoded once, cropped or resized, with its labels."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from iobench.base.errors import (
    SourceError,
)
from iobench.base.units import counted
from iobench.dataset.sources._base import BATCH_BYTES, Source, default_name
from iobench.dataset.sources._decoding import KINDS, Decoder, Layout
from iobench.dataset.sources._files import Stamp
from iobench.formats import Batch, Field, Schema

MAX_THREADS = 16  # each holds an image


class ImageFolder(Source):
    """Fields `x` (uint8, the sample shape) and `y` (int64, the subfolder's place in the alphabet).

    The sample shape is height × width (grey), height × width × channels or channels × height ×
    width, with 1 or 3 channels. The shorter side is resized to fit and the rest cropped around
    the middle. Hidden files, and those without an image's suffix, are left out; an image that
    cannot be decoded, or that has no label, is a SourceError.
    """

    decodes = True

    def __init__(self, path: Path, sample_shape: tuple[int, ...]) -> None:
        self.path = path.resolve()
        self.name = default_name(self.path.stem)
        self._layout = Layout(sample_shape)
        self.labels, beside = _listed(self.path)
        if not self.labels:
            raise SourceError(f"--source {path}: no subfolder; images go into one subfolder per label")
        if unlabelled := [name for name in beside if _is_image(self.path / name)]:
            raise SourceError(
                f"--source {path}: {unlabelled[0]} lies beside the labels' subfolders; move it into "
                "one, or away"
            )
        self._files = [
            (file, number, Stamp.of(file.stat()))
            for number, label in enumerate(self.labels)
            for file in _images(self.path / label)
        ]
        if not self._files:
            raise SourceError(f"--source {path}: no image in its {counted(len(self.labels), 'subfolder')}")
        fields = (Field("x", sample_shape, "uint8"), Field("y", (), "int64"))
        self.schema = Schema(len(self._files), fields)

    @property
    def description(self) -> dict[str, Any]:
        """Kind, path, labels, and what tells that a file was added, removed or changed."""
        stamps = [stamp for _, _, stamp in self._files]
        return {
            "kind": "images",
            "path": str(self.path),
            "labels": self.labels,
            "files": len(self._files),
            "bytes": sum(stamp.bytes for stamp in stamps),
            "mtime_ns": max(stamp.mtime_ns for stamp in stamps),
        }

    def batches(self) -> Iterator[Batch]:
        """Decodes on every processor, in the order of labels and file names."""
        rows = self.schema.batch_rows(BATCH_BYTES)
        decoder = Decoder(self._layout)
        with ThreadPoolExecutor(max_workers=min(os.cpu_count() or 1, MAX_THREADS)) as pool:
            for start in range(0, len(self._files), rows):
                files, numbers, stamps = zip(*self._files[start : start + rows], strict=True)
                yield {
                    "x": np.stack(list(pool.map(decoder.decode, files, stamps))),
                    "y": np.array(numbers, np.int64),
                }


def _listed(folder: Path) -> tuple[list[str], list[str]]:
    """The names of subfolders and of everything else in a folder, sorted, hidden ones left out."""
    folders: list[str] = []
    others: list[str] = []
    for entry in os.scandir(folder):
        if not entry.name.startswith("."):
            (folders if entry.is_dir() else others).append(entry.name)
    return sorted(folders), sorted(others)


def _images(folder: Path) -> list[Path]:
    """The images of one label, in the order of their names; SourceError where one is not read."""
    folders, names = _listed(folder)
    if folders:
        raise SourceError(
            f"--source: {folder / folders[0]} is a folder inside a label's; "
            "images go into the label's own folder"
        )
    return [folder / name for name in names if _is_image(folder / name)]


def _is_image(file: Path) -> bool:
    """Whether a suffix is an image's; SourceError where it is that of a kind that is not read."""
    kind = Image.registered_extensions().get(file.suffix.lower())
    if kind is None or kind in KINDS:
        return kind is not None
    raise SourceError(
        f"--source: {file} is {kind}; images are read from {', '.join(KINDS)}: convert it, or move it away"
    )
