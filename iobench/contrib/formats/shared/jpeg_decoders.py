"""Decoders of JPEG files besides Pillow: each is a module here, imported when used, and a line of the table.

They call libjpeg-turbo without a copy in between, and torch scales with vector instructions, which Pillow's
scaling lacks. Their pixels differ from Pillow's by one level here and there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

from iobench.base.errors import MissingDependency
from iobench.base.text import reason
from iobench.formats import Array

if TYPE_CHECKING:
    from iobench.formats.image_decoding import ImageLayout, JpegDecoder

Size: TypeAlias = tuple[int, int]  # width and height

# Returns pixels (H, W, C) of a JPEG file that is RGB or gray, in mode RGB or L, not turned by EXIF, at the
# smallest scale not below the second size; the first is the image's. Raises anything on damaged files.
DecodeJpeg: TypeAlias = "Callable[[bytes, str, Size, Size], Array]"


@dataclass(frozen=True)
class JpegLibrary:
    """Library that the function `decode_jpeg` in the module `<its word>_decoder` here calls.

    An extra of iobench, named by the word, installs it.
    """

    module: str
    packages: tuple[str, ...]  # on PyPI, each of which provides the module
    dct_scaling: bool = True  # it decodes at a part of the size, too


JPEG_LIBRARIES = {
    "simplejpeg": JpegLibrary("simplejpeg", ("simplejpeg",)),
    "torchvision": JpegLibrary("torchvision", ("torchvision",), dct_scaling=False),
    "opencv": JpegLibrary("cv2", ("opencv-python-headless", "opencv-python")),
}


def jpeg_decoder(word: str, dct_scaling: bool) -> JpegDecoder:
    """Return the decoder of RGB and gray JPEG files to a layout: a library's, then torch's scaling.

    Raises MissingDependency of kind ``broken-library`` if the library is installed but cannot be imported.
    """
    from iobench.contrib.formats.shared.torch_scaling import fitted

    try:
        decode_jpeg: DecodeJpeg = import_module(f"{__package__}.{word}_decoder").decode_jpeg
    except Exception as error:  # of libraries that lack a system library, or were built for another torch
        raise MissingDependency(
            f"decoder={word}: {JPEG_LIBRARIES[word].module} cannot be imported",
            kind="broken-library",
            found=f"{type(error).__name__}: {reason(error)}",
            hint=f"pip install --upgrade 'iobench[{word}]', or install a build for this torch and system",
        ) from error

    def decode(stored: bytes, size: Size, layout: ImageLayout) -> Array:
        least = layout.sufficient(size) if dct_scaling else size
        return fitted(decode_jpeg(stored, layout.mode, size, least), layout, size)

    return decode
