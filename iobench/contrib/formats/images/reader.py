"""Reader of image files; decodes each image when it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from iobench.base.errors import corrupt, expecting
from iobench.base.files import regular
from iobench.contrib.formats.shared.scaled_images import ScaledDecoder, extents_of
from iobench.formats import (
    Array,
    Batch,
    Index,
    Placement,
    Reader,
    Rows,
    Schema,
    index_of,
    unclosed,
    with_own_extents,
)
from iobench.formats.folders import ClassFolder
from iobench.formats.image_decoding import channels_last, decoded


def as_stored(file: Path, stored: bytes | memoryview, pixels: Array) -> None:
    """Decode an image of exactly the shape of `pixels`."""
    decoded(file, stored, channels_last(pixels))


class ImageReader(Reader):
    """Decodes one image per sample and field; other fields come from arrays or from another reader.

    Images have no `blocks`, which StreamLoader would map: the kernel lets a process map 65,530 files.
    """

    def __init__(
        self,
        path: Path,
        schema: Schema,
        files: Mapping[str, Sequence[Path]],
        others: Mapping[str, Array] | Reader,
        decode: ScaledDecoder | None = None,
    ) -> None:
        super().__init__(schema)
        self._decode_one = decode or as_stored
        if decode is not None:
            self.epoch = decode.epoch
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
            self._decode_one(files[row], stored_image(files[row]), pixels)


class UnscaledReader(Reader):
    """Decodes images of a folder per class in their own sizes, which are the field of extents.

    Other fields are the labels. The extents alone are read from the headers.
    """

    def __init__(self, folder: ClassFolder, schema: Schema, decoder: ScaledDecoder) -> None:
        super().__init__(schema)
        if len(folder.files) != schema.samples:
            raise corrupt(folder.path, f"{schema.samples} files", len(folder.files))
        (self._image,), (self._extents,) = schema.ragged, schema.extents.values()
        self._labels, self._decode_one = folder.labels, decoder.decode
        self._files: Sequence[Path] | None = folder.files

    def batch(self, rows: Rows | Sequence[int]) -> Batch:
        """Return the rows in new arrays; IndexError outside 0..len-1."""
        checked, _ = self._checked(rows)
        index = index_of(checked)
        batch = self._timed(self._decoded)(index)
        own = {f.name: self._labels[index] for f in self.schema.fields if f.name not in batch}
        return {f.name: (batch | own)[f.name] for f in self.schema.fields}

    def close(self) -> None:
        """Forget the files; none stays open between reads."""
        self._files = None

    def _decoded(self, rows: Index) -> Batch:
        files = unclosed(self._files)
        images = [self._decode_one(files[row], stored_image(files[row])) for row in rows.tolist()]
        return with_own_extents(self._image, images)

    def _read_rows(self, rows: Index, out: Mapping[str, Array]) -> None:
        files = unclosed(self._files)
        for name, target in out.items():
            if name == self._extents:
                target[...] = [file_extents(files[row]) for row in rows.tolist()]
            else:
                target[...] = self._labels[rows]


def file_extents(file: Path) -> tuple[int, int]:
    """Return height and width that the header of an image file states; CorruptArtifact without one."""
    with expecting(file, "an image", OSError), open(regular(file), "rb") as stored:
        return extents_of(file, stored)


def stored_image(file: Path) -> bytes:
    """Return the bytes of an image file; CorruptArtifact if it cannot be read."""
    with expecting(file, "an image", OSError):
        return regular(file).read_bytes()
