"""PNG files, one per sample: the usual starting point of practitioners; for images only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from iobench.base.errors import MissingDependency
from iobench.formats import Array, Batch, Convert, Format, Reader, Schema, identity

try:
    from PIL import Image
except ImportError as error:
    raise MissingDependency("PNG files need Pillow", hint="pip install 'iobench[studies]'") from error


@dataclass(frozen=True)
class Png(Format):
    """A folder of files named by row, for one field of uint8 with shape (height, width, 3)."""

    name: ClassVar[str] = "png"
    summary: ClassVar[str] = "one PNG file per sample"
    library: ClassVar[str] = "pillow"

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write a file for each sample."""
        row = 0
        for batch in batches:
            for pixels in batch[schema.fields[0].name]:
                Image.fromarray(pixels).save(_file(path, row))
                row += 1

    def open(self, path: Path, schema: Schema, random: bool = False) -> Reader:
        """Return a reader that opens a file for each sample."""
        return PngReader(path, schema)


class PngReader(Reader):
    """Decodes one file per row."""

    def __init__(self, path: Path, schema: Schema) -> None:
        super().__init__(schema)
        self._path, self._field = path, schema.fields[0].name

    def sample(self, row: int, convert: Convert = identity) -> dict[str, Any]:
        """Decode one image."""
        with Image.open(_file(self._path, row)) as image:
            return {self._field: convert(np.array(image))}

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        self._read_rows(np.arange(start, stop), out)

    def _read_rows(self, rows: npt.NDArray[np.int64], out: Mapping[str, Array]) -> None:
        for position, row in enumerate(rows):
            out[self._field][position] = self.sample(int(row))[self._field]


def _file(path: Path, row: int) -> Path:
    return path / f"{row:08}.png"
