"""Sources of a folder of images with a subfolder per label: scaled to one shape, or each of its own size."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from iobench import formats
from iobench.base.errors import SourceError
from iobench.base.finding import Finding
from iobench.base.text import enumerated
from iobench.base.units import counted, shape_text
from iobench.dataset.sources.source import BATCH_BYTES, Source, check_unchanged, default_name, open_regular
from iobench.formats import Array, Batch, Field, Schema, check_sample, with_extents, with_own_extents
from iobench.formats.folders import IMAGES, JPEG, MOVE, ClassFolder, has_suffix, not_read, said_by_names
from iobench.formats.image_decoding import DCT_SCALE, ImageDecoder, ImageLayout, image_errors, image_size

MOST_SIZES = 64  # images whose sizes are read before any is decoded: this takes milliseconds
MAX_THREADS = 16  # each holds an image in memory
SKIP = f"{MOVE}, or give --on-error skip, which leaves out such images"
MOVED = "move them out of the folder to read the others where they lie"
AT_ONCE = 1024  # files that are passed to the threads at a time

ImageFile: TypeAlias = tuple[Path, int, os.stat_result]  # with the number of its label


class ImageFolder(Source):
    """Images as the field `x` (uint8) and labels, if there are any, as `y` (int64).

    A label is the index of the subfolder in alphabetical order. The shorter side of an image is resized to
    fit, and the rest is cropped around the center. Files and labels are those of `ClassFolder`.

    `sample_shape` is ``(height, width)``, ``(height, width, channels)`` or ``(channels, height, width)``,
    with 1 or 3 channels. With `skip_damaged` every image is decoded at once, and those that cannot be are
    left out; `notes` says how many. SourceError if there is no image, or one has no label (`no-label`) or
    cannot be decoded.
    """

    decodes = True

    def __init__(self, path: Path, sample_shape: tuple[int, ...], skip_damaged: bool = False) -> None:
        self.path = path.resolve()
        self.name = default_name(self.path.stem)
        self._layout = ImageLayout(sample_shape)
        folder = ClassFolder.of(self.path, IMAGES, links=True)
        self.labels = list(folder.classes)
        self._files = [
            (file, label, file.stat())
            for file, label in zip(folder.files, folder.labels.tolist(), strict=True)
        ]
        splits = said_by_names(self.path, folder.files)
        self.notes = (*folder.notes(), *splits, *not_read(self.path, folder.files, "a folder of images"))
        self._damaged = list(self._undecodable()) if skip_damaged else []
        if not self._files:
            raise SourceError("no image can be decoded", "no-images", path)
        if self._damaged:
            count = f"{counted(len(self._damaged), 'image')} of {len(self._files) + len(self._damaged):,}"
            named = enumerated([str(error.changed(hint=None)) for error in self._damaged], most=1)
            message, values = f"skipped {count}: {named}", {"skipped": len(self._damaged)}
            self.notes = (*self.notes, Finding("damaged-skipped", message, MOVED, {**values}))
        self._inspect()

    def _inspect(self) -> None:
        """Find the schema, and what of the images is lost."""
        self.schema = Schema(len(self._files), self._fields)
        step = math.ceil(len(self._files) / MOST_SIZES)
        width, height = self._layout.width, self._layout.height
        headers = [(height, width, False)] * len(self._files[::step])
        for number, (file, _, _) in enumerate(self._files[::step]):
            with suppress(SourceError, OSError):  # which decoding reports
                headers[number] = _header(file)
        ratios = [(one[1] / width, one[0] / height) for one in headers]
        self._shorter = sorted(map(min, ratios))
        if max(map(max, ratios)) > 1:
            size = " × ".join(map(str, self._layout.shape))
            self.losses = (f"samples are {size}: random crops of the larger originals are gone",)
        if self._layout.mode == "L" and any(colored for _, _, colored in headers):
            self._note_gray(f"3x{height}x{width}")

    @property
    def _fields(self) -> tuple[Field, ...]:
        labels = [Field("y", (), "int64")] * bool(self.labels)
        return Field("x", self._layout.shape, "uint8"), *labels

    def _undecodable(self) -> Iterator[SourceError]:
        """Yield the errors of images that cannot be decoded, and remove these from the files."""
        decode = self._decoder()

        def tried(file: ImageFile) -> SourceError | None:
            try:
                decode(file)
            except SourceError as error:
                return error
            return None

        good = []
        with _image_threads() as pool:
            for start in range(0, len(self._files), AT_ONCE):
                files = self._files[start : start + AT_ONCE]
                for file, error in zip(files, pool.map(tried, files), strict=True):
                    if error is None:
                        good.append(file)
                    else:
                        yield error
        self._files = good

    def _note_gray(self, colored: str) -> None:
        """Note that colors are lost, and the shape that keeps them."""
        gray, kept = shape_text(self._layout.shape), f"give --sample-shape {colored} to keep them"
        self.losses = (*self.losses, f"samples of {gray} are gray: the colors are gone")
        message = f"samples of {gray} are gray: the colors of the images are lost"
        self.notes = (*self.notes, Finding("gray", message, kept, {"shape": gray}))

    @property
    def description(self) -> dict[str, Any]:
        """Kind, path, labels, and totals that change if a file is added, removed or changed."""
        states = [state for _, _, state in self._files]
        return {
            "kind": "images",
            "path": str(self.path),
            "labels": self.labels,
            "files": len(self._files),
            "bytes": sum(state.st_size for state in states),
            "mtime_ns": max(state.st_mtime_ns for state in states),
        }

    def in_place(self) -> tuple[Path, str] | None:
        """Return the folder, and format images with this source's shape; None where images are left out."""
        return None if self._damaged else (self.path, self._variant)

    @property
    def _variant(self) -> str:
        return f"images:shape={shape_text(self._layout.shape)}"

    def other_decoders(self) -> tuple[str, ...]:
        """Return the other decoders of JPEG files, and decoding at a smaller scale where half are large."""
        if not any(has_suffix(file.name, JPEG) for file, _, _ in self._files):
            return ()
        large = self._shorter[len(self._shorter) // 2] >= DCT_SCALE
        return formats.parse(self._variant).other_decoders(large)

    def batches(self) -> Iterator[Batch]:
        """Yield images sorted by label and file name, decoded on all processors."""
        rows, decode = self.schema.batch_rows(BATCH_BYTES), self._decoder()
        with _image_threads() as pool:
            for start in range(0, len(self._files), rows):
                files = self._files[start : start + rows]
                labels = np.array([number for _, number, _ in files], np.int64)
                batch = self._pixels(list(pool.map(decode, files)))
                yield batch | {"y": labels} if self.labels else batch

    def _pixels(self, images: Sequence[Array]) -> Batch:
        return {"x": np.stack(images)}

    def _decoder(self) -> Callable[[ImageFile], Array]:
        """Return a function that decodes a file; it raises SourceError if that fails, or the file changed."""
        decoder = ImageDecoder(self._layout)

        def decoded(one: ImageFile) -> Array:
            path, _, state = one
            try:
                with image_errors(path), open_regular(path) as file:
                    check_unchanged(path, file, state)
                    return decoder.decode(path, file, state.st_size)
            except SourceError as error:
                raise error.changed(hint=error.hint or SKIP) from error

        return decoded


class UnscaledImages(ImageFolder):
    """Images of their own sizes as the field `x` (uint8, of shape ``(*, *, 3)`` or, gray, ``(*, *)``).

    Labels are as in `ImageFolder`. The sizes are read from the headers of all files.
    """

    def _inspect(self) -> None:
        with _image_threads() as pool:
            headers = list(pool.map(_header, (path for path, _, _ in self._files)))
        field, *scalars = self._fields
        pixels = [height * width for height, width, _ in headers]
        for (path, _, _), count in zip(self._files, pixels, strict=True):
            check_sample("", (), count * field.sample_bytes, path)
        self._shorter = [1.0]
        totals = {field.name: sum(pixels)}
        self.schema = Schema(len(self._files), with_extents((field, *scalars)), totals=totals)
        if self._layout.mode == "L" and any(colored for _, _, colored in headers):
            self._note_gray("'*x*x3'")

    def _pixels(self, images: Sequence[Array]) -> Batch:
        return with_own_extents(self._fields[0], images)


def _header(path: Path) -> tuple[int, int, bool]:
    """Return height and width of an image, and whether it has colors; SourceError if it has no header."""
    with image_errors(path), open_regular(path) as file:
        width, height, colored = image_size(file)
        return height, width, colored


def _image_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=min(os.cpu_count() or 1, MAX_THREADS))
