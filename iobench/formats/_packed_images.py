"""Images inside larger files, such as tar archives and shards: found there, and decoded as they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from iobench.base.errors import (
    CorruptArtifact,
)
from iobench.formats._external import FIXED
from iobench.formats._placed_reader import Maps
from iobench.formats._placement import Blocks, Index
from iobench.formats._schema import Array, Field


@dataclass(frozen=True, eq=False)
class PackedImages:
    """One image per sample: in which file, from which byte, how long; `what` it is called in complaints."""

    what: str
    file: Index
    offset: Index
    size: Index

    def shape(self, maps: Maps, row: int) -> tuple[int, ...]:
        """The shape of a sample's pixels; CorruptArtifact where it is no PNG or JPEG, RGB or grey."""
        from iobench.formats._pixels import shape_of

        number, begin = int(self.file[row]), int(self.offset[row])
        stored = maps[number][begin : begin + int(self.size[row])].data
        return shape_of(maps.files[number], stored, f"{self.what} of sample {row} as a PNG or JPEG image")

    def check(self, maps: Maps, field: Field) -> None:
        """CorruptArtifact where an image is of another size than the field is."""
        for row in range(len(self.file)):
            if (shape := self.shape(maps, row)) != field.shape:
                raise CorruptArtifact(
                    f"{maps.files[int(self.file[row])]}: {self.what} of sample {row} is {shape}, not "
                    f"{field.shape}, and samples must be of one shape: {FIXED}; 'iobench prepare --source "
                    "FOLDER --sample-shape' resizes images that lie in a folder for each class"
                )

    def blocks(self, files: Sequence[Path], field: Field) -> Blocks:
        """Each image as a block of one row."""
        from iobench.formats._pixels import decoded

        paths, numbers, name = tuple(files), self.file, field.name

        def decode(number: int, stored: memoryview, out: Mapping[str, Array]) -> None:
            decoded(paths[int(numbers[number])], stored, out[name][0], f"{name} of sample {number}")

        rows = np.arange(len(numbers))
        return Blocks((name,), paths, rows, numbers, self.offset, self.size, decode)
