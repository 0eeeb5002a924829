"""Images inside larger files, such as tar archives and shards, decoded when they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np

from iobench.base.errors import CorruptArtifact
from iobench.contrib.formats.shared.external import FIXED, unequal_samples
from iobench.contrib.formats.shared.placed_reader import EncodedSpans, Maps
from iobench.contrib.formats.shared.scaled_images import ScaledDecoder, extents_of, length_of
from iobench.formats import Array, Blocks, Field, Index, ListedSpans


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
                raise unequal_samples(
                    maps.files[int(self.file[row])],
                    f"{self.what} of sample {self.first + row} differs in shape",
                    field.shape,
                    shape,
                    instead
                    or f"{FIXED}; 'iobench prepare --source FOLDER --sample-shape' resizes images "
                    "in one folder per class",
                )

    def lengths(self, maps: Maps, field: Field) -> Index:
        """Return the pixels of each image, read from its header; CorruptArtifact if it has none."""
        lengths = np.empty(len(self.file), np.int64)
        for row, (number, begin, size) in enumerate(zip(self.file, self.offset, self.size, strict=True)):
            with _naming(f"{self.what} of sample {self.first + row}"):
                stored = BytesIO(maps[int(number)][begin : begin + size].data)
                lengths[row] = length_of(field, maps.files[int(number)], stored)
        return lengths

    def blocks(self, files: Sequence[Path], field: Field, decode_one: ScaledDecoder | None = None) -> Blocks:
        """Return each image as a block of one row; without `decode_one`, an image of exactly its shape."""
        from iobench.formats.pixels import decoded

        def fill(path: Path, stored: memoryview, pixels: Array, what: str) -> None:
            if decode_one is None:
                decoded(path, stored, pixels, what)
                return
            with _naming(what):
                decode_one(path, stored, pixels)

        return self._blocks(files, field, fill)

    def extents(self, files: Sequence[Path], field: Field) -> Blocks:
        """Return height and width of each image as a block of one row, which is read from the header."""

        def fill(path: Path, stored: memoryview, extents: Array, what: str) -> None:
            with _naming(what):
                extents[...] = extents_of(path, BytesIO(stored))

        return self._blocks(files, field, fill)

    def spans(self, files: Sequence[Path], field: Field, decoder: ScaledDecoder) -> EncodedSpans:
        """Return images of their own sizes."""
        paths = tuple(files)

        def decode(row: int, stored: memoryview) -> Array:
            with _naming(f"{field.name} of sample {row}"):
                return decoder.decode(paths[int(self.file[row])], stored)

        return EncodedSpans(ListedSpans(paths, self.file, self.offset, self.size), decode)

    def _blocks(
        self, files: Sequence[Path], field: Field, fill: Callable[[Path, memoryview, Array, str], None]
    ) -> Blocks:
        """Return blocks of one row that ``fill(path, stored, row, what)`` decodes."""
        paths, numbers, name = tuple(files), self.file, field.name

        def decode(number: int, stored: memoryview, out: Mapping[str, Array]) -> None:
            fill(paths[int(numbers[number])], stored, out[name][0], f"{name} of sample {number}")

        rows = np.arange(len(numbers))
        return Blocks((name,), paths, rows, numbers, self.offset, self.size, decode)


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Begin the problem of a CorruptArtifact that is raised in the block with the name of the image."""
    try:
        yield
    except CorruptArtifact as error:
        raise error.changed(problem=f"{what}: {error.problem}") from error
