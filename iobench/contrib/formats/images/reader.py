"""Reader of image files; decodes each image when it is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt

from iobench.base.errors import CorruptArtifact, SourceError, corrupt
from iobench.base.text import reason
from iobench.formats import (
    Array,
    Blocks,
    Placement,
    Reader,
    Schema,
    unclosed,
)
from iobench.formats.file_kind import regular
from iobench.formats.pixels import channels_last, decoded

Decode = Callable[[Path, bytes | memoryview, Array], None]  # fills the pixels of one image


def as_stored(file: Path, stored: bytes | memoryview, pixels: Array) -> None:
    """Decode an image of exactly the shape of `pixels`."""
    decoded(file, stored, channels_last(pixels))


def scaled_to(shape: tuple[int, ...]) -> Decode:
    """Return a function that decodes an image of any size, as `iobench prepare --sample-shape` does."""
    from iobench.formats.image_decoding import ImageDecoder, ImageLayout

    decoder = ImageDecoder(ImageLayout(shape))

    def decode(file: Path, stored: bytes | memoryview, pixels: Array) -> None:
        try:
            pixels[...] = decoder.decode(file, BytesIO(stored), len(stored))
        except SourceError as error:
            raise error.converted(CorruptArtifact) from error

    return decode


class ImageReader(Reader):
    """Decodes one image per sample and field; other fields come from arrays or from another reader."""

    def __init__(
        self,
        path: Path,
        schema: Schema,
        files: Mapping[str, Sequence[Path]],
        others: Mapping[str, Array] | Reader,
        decode: Decode | None = None,
    ) -> None:
        super().__init__(schema)
        self._decode_one = decode or as_stored
        self._others = others
        known = others.schema if isinstance(others, Reader) else None
        for field in schema.fields:
            held = len(files.get(field.name, ())) if field.shape else self._length(field.name, known)
            if held != schema.samples:
                raise corrupt(path, f"{schema.samples} samples of {field.name}", held)
        self._files: dict[str, list[Path]] | None = {
            f.name: list(files[f.name]) for f in schema.fields if f.shape
        }

    def _length(self, name: str, known: Schema | None) -> int:
        if known is not None:
            return known.samples if name in {field.name for field in known.fields} else 0
        assert not isinstance(self._others, Reader)
        return len(self._others.get(name, ()))

    def placement(self) -> Mapping[str, Placement]:
        """Return the locations of the fields that are not images."""
        return self._others.placement() if isinstance(self._others, Reader) else {}

    def blocks(self) -> Sequence[Blocks]:
        """Return each image as a block of one row."""
        return [self._blocks(name, files) for name, files in self._opened().items()]

    def _blocks(self, name: str, files: list[Path]) -> Blocks:
        rows = np.arange(len(files))
        sizes = np.array([_size(file) for file in files], np.int64)

        def decode(number: int, stored: memoryview, out: Mapping[str, Array]) -> None:
            for target in out.values():
                self._decode_one(files[number], stored, target[0])

        return Blocks((name,), tuple(files), rows, rows, np.zeros(len(rows), np.int64), sizes, decode)

    def close(self) -> None:
        """Release the other fields; no image stays open between reads."""
        self._files = None
        if isinstance(self._others, Reader):
            self._others.close()

    def _opened(self) -> dict[str, list[Path]]:
        return unclosed(self._files)

    def _read_rows(self, rows: npt.NDArray[np.int64], out: Mapping[str, Array]) -> None:
        files = self._opened()
        for name in files.keys() & out.keys():
            self._timed(self._decode)(files[name], rows, out[name])
        rest = {name: array for name, array in out.items() if name not in files}
        if isinstance(self._others, Reader):
            self._others.read(rows, rest)
            return
        for name, target in rest.items():
            target[...] = self._others[name][rows]

    def _decode(self, files: list[Path], rows: npt.NDArray[np.int64], target: Array) -> None:
        for row, pixels in zip(rows.tolist(), target, strict=True):
            file = files[row]
            try:
                stored = regular(file).read_bytes()
            except OSError as error:
                raise corrupt(file, "an image", reason(error)) from error
            self._decode_one(file, stored, pixels)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError as error:
        raise corrupt(file, "an image", reason(error)) from error
