"""Images inside larger files, such as tar archives and shards, decoded when they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from iobench.base.errors import CorruptArtifact
from iobench.contrib.formats.shared.external import FIXED
from iobench.contrib.formats.shared.placed_reader import Maps
from iobench.contrib.formats.shared.scaled_images import ScaledDecoder
from iobench.formats import Array, Blocks, Field, Index


@dataclass(frozen=True, eq=False)
class PackedImages:
    """Location of one image per sample."""

    what: str  # name of the images in errors
    file: Index  # file number of each sample's image
    offset: Index  # byte offset of each
    size: Index  # bytes of each
    first: int = 0  # number of the first sample, in errors

    def shape(self, maps: Maps, row: int) -> tuple[int, ...]:
        """Return the shape of a sample's pixels; CorruptArtifact if it is not a PNG or JPEG, RGB or gray."""
        from iobench.formats.pixels import shape_of

        number, begin = int(self.file[row]), int(self.offset[row])
        stored = maps[number][begin : begin + int(self.size[row])].data
        return shape_of(maps.files[number], stored, f"{self.what} of sample {self.first + row}")

    def check(self, maps: Maps, field: Field, instead: str = "") -> None:
        """Raise CorruptArtifact (``unequal-shapes``) if an image has another shape than the field.

        The hint is `instead`, if it is given.
        """
        for row in range(len(self.file)):
            if (shape := self.shape(maps, row)) != field.shape:
                raise CorruptArtifact(
                    f"{self.what} of sample {self.first + row} differs in shape",
                    kind="unequal-shapes",
                    path=maps.files[int(self.file[row])],
                    expected=field.shape,
                    found=shape,
                    hint=instead
                    or f"{FIXED}; 'iobench prepare --source FOLDER --sample-shape' resizes images "
                    "in one folder per class",
                )

    def blocks(self, files: Sequence[Path], field: Field, decode_one: ScaledDecoder | None = None) -> Blocks:
        """Return each image as a block of one row; without `decode_one`, an image of exactly its shape."""
        from iobench.formats.pixels import decoded

        paths, numbers, name = tuple(files), self.file, field.name

        def decode(number: int, stored: memoryview, out: Mapping[str, Array]) -> None:
            path, pixels, what = paths[int(numbers[number])], out[name][0], f"{name} of sample {number}"
            if decode_one is None:
                decoded(path, stored, pixels, what)
                return
            try:
                decode_one(path, stored, pixels)
            except CorruptArtifact as error:
                raise error.changed(problem=f"{what}: {error.problem}") from error

        rows = np.arange(len(numbers))
        return Blocks((name,), paths, rows, numbers, self.offset, self.size, decode)
