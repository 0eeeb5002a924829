"""Image files that DALI itself reads, decodes and scales, in its threads.

`fn.io.file.read`, `fn.decoders.image` and `fn.resize` as DALI's documentation has them. Sizes after scaling
and the corner of the crop are rounded as Pillow's are here, so that the pixels can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from iobench.contrib.formats.images import SUFFIXES
from iobench.contrib.formats.shared.sample_files import classes
from iobench.dataset.opener import Opener
from iobench.formats import Rows, index_of


class ClassFolder:
    """A folder per class: files, labels, and sizes of the images that were read so far.

    Parameters
    ----------
    opener : Opener
        Of a variant of `images` that scales existing files to a shape.
    """

    def __init__(self, opener: Opener) -> None:
        from iobench.formats.image_decoding import ImageLayout

        (field,) = (field for field in opener.schema.fields if field.shape)
        self.layout = ImageLayout(field.shape)
        self.images = [one is field for one in opener.schema.fields]
        self.files, self.labels = classes(opener.path, SUFFIXES)
        self._sizes = dict[int, tuple[int, int]]()

    def size(self, row: int) -> tuple[int, int]:
        """Return height and width of an image after scaling; its header is read once."""
        from iobench.formats.image_decoding import image_size

        if row not in self._sizes:
            with self.files[row].open("rb") as file:
                width, height = self.layout.scaled(image_size(file)[:2])
            self._sizes[row] = height, width
        return self._sizes[row]


class DaliFileSource:
    """An epoch's batches by number: names of files, sizes after scaling, labels."""

    def __init__(self, folder: ClassFolder, batches: Sequence[Rows]) -> None:
        self.folder, self._batches = folder, batches

    def __call__(self, info: Any) -> tuple[Any, Any, Any]:
        """Return a batch; StopIteration after the last one."""
        if info.iteration >= len(self._batches):
            raise StopIteration
        folder, rows = self.folder, index_of(self._batches[info.iteration])
        names = [np.frombuffer(bytes(folder.files[row]), np.uint8) for row in rows]
        return names, np.array([folder.size(row) for row in rows.tolist()], np.float32), folder.labels[rows]

    def close(self) -> None:
        """Do nothing: DALI closes its files."""


def decoded(source: DaliFileSource) -> list[Any]:
    """Return the outputs of a pipeline for the fields of a folder: pixels in its layout, and labels."""
    from nvidia.dali import fn, types

    names, sizes, labels = fn.external_source(source, num_outputs=3, batch=True, batch_info=True)
    layout, colors = source.folder.layout, {"RGB": types.RGB, "L": types.GRAY}
    images = fn.decoders.image(
        fn.io.file.read(names), output_type=colors[layout.mode], adjust_orientation=False
    )
    images = fn.resize(images, size=sizes, interp_type=types.INTERP_TRIANGULAR)
    images = fn.crop(images, crop=(layout.height, layout.width), rounding="truncate")
    if layout.channels_first and layout.mode == "RGB":
        images = fn.transpose(images, perm=[2, 0, 1])
    pixels = fn.reshape(images, shape=list(layout.shape))
    return [pixels if image else labels for image in source.folder.images]
