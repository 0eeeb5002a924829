"""Source of a folder of images, each of its own size, with one subfolder per label."""

from __future__ import annotations

from collections.abc import Sequence

from iobench.dataset.sources._regular_files import open_regular
from iobench.dataset.sources.image_folder import ImageFile, ImageFolder, image_threads
from iobench.formats import Array, Batch, Schema, check_sample, with_extents, with_own_extents
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
        self._scales = [(1.0, 1.0)]
        totals = {field.name: sum(pixels)}
        self.schema = Schema(len(self._files), with_extents((field, label)), totals=totals)
        if self._layout.mode == "L" and any(colored for _, _, colored in headers):
            self._note_gray("'*x*x3'")

    def _pixels(self, images: Sequence[Array]) -> Batch:
        return with_own_extents(self._fields[0], images)


def _header(one: ImageFile) -> tuple[int, int, bool]:
    """Return height and width of an image, and whether it has colors; SourceError if it has no header."""
    path, _, _ = one
    with image_errors(path), open_regular(path) as file:
        width, height, colored = image_size(file)
        return height, width, colored
