"""Source of a folder of images, each of its own size, with one subfolder per label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from iobench.dataset.sources._regular_files import open_regular
from iobench.dataset.sources.image_folder import ImageFile, ImageFolder, image_threads
from iobench.formats import Array, Batch, Ragged, Schema, check_sample, with_extents
from iobench.formats.image_decoding import image_errors, image_size


class UnscaledImages(ImageFolder):
    """Images of their own sizes as the field `x` (uint8, of shape ``(*, *, 3)`` or, gray, ``(*, *)``).

    Labels are as in `ImageFolder`. The sizes are read from the headers of all files.
    """

    def _inspect(self) -> None:
        with image_threads() as pool:
            headers = list(pool.map(_header, self._files))
        field, label = self._fields
        pixels = [height * width for height, width, _ in headers]
        for (path, _, _), count in zip(self._files, pixels, strict=True):
            check_sample("", (), count * field.sample_bytes, path)
        totals = {field.name: sum(pixels)}
        self.schema = Schema(len(self._files), with_extents((field, label)), totals=totals)
        if self._layout.mode == "L" and any(colored for _, _, colored in headers):
            self._note_gray("'*x*x3'")

    def in_place(self) -> None:
        """Return None: no format reads them so where they lie."""

    def other_decoders(self) -> tuple[str, ...]:
        """Return no variants."""
        return ()

    def _pixels(self, images: Sequence[Array]) -> Batch:
        field, _ = self._fields
        rows = [image.reshape(-1, *field.inner) for image in images]
        extents = np.array([image.shape[: field.varying] for image in images], np.int32)
        batch: dict[str, Any] = {field.name: Ragged.of(rows, field.inner, field.dtype)}
        return {**batch, self.schema.extents[field.name]: extents}


def _header(one: ImageFile) -> tuple[int, int, bool]:
    """Return height and width of an image, and whether it has colors; SourceError if it has no header."""
    path, _, _ = one
    with image_errors(path), open_regular(path) as file:
        width, height, colored = image_size(file)
        return height, width, colored
