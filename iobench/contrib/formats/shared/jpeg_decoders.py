"""Decoders of JPEG files besides Pillow: each is a module here, imported when used, and a line of the table.

They call libjpeg-turbo without a copy in between, and torch scales with vector instructions, which Pillow's
scaling lacks. Their pixels differ from Pillow's by one level here and there. A decoder of parts skips what a
random crop does not use, and returns the same pixels of the rest.
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
    from iobench.contrib.formats.shared.random_crop import Box
    from iobench.formats.image_decoding import ImageLayout, JpegDecoder

Size: TypeAlias = tuple[int, int]  # width and height

# Returns pixels (H, W, C) of a JPEG file that is RGB or gray, in mode RGB or L, not turned by EXIF, at the
# smallest scale not below the second size; the first is the image's. Raises anything on damaged files.
DecodeJpeg: TypeAlias = "Callable[[bytes, str, Size, Size], Array]"

# Returns the pixels of a part of such a file.
DecodePart: TypeAlias = "Callable[[bytes, str, Box], Array]"


@dataclass(frozen=True)
class JpegLibrary:
    """Library that `decode_jpeg`, or `decode_part`, in the module `<its word>_decoder` here calls.

    An extra of iobench, named by the word, installs it.
    """

    module: str
    packages: tuple[str, ...]  # on PyPI, each of which provides the module
    dct_scaling: bool = True  # it decodes at a part of the size, too
    parts: bool = False  # it decodes a part of the image alone: `decode_part`
    needs: str = ""  # hint for what its package does not bring


JPEG_LIBRARIES = {
    "simplejpeg": JpegLibrary("simplejpeg", ("simplejpeg",)),
    "torchvision": JpegLibrary("torchvision", ("torchvision",), dct_scaling=False),
    "opencv": JpegLibrary("cv2", ("opencv-python-headless", "opencv-python")),
    "nvimgcodec": JpegLibrary(
        "nvidia.nvimgcodec",
        ("nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13"),
        dct_scaling=False,
        parts=True,
    ),
    "turbojpeg": JpegLibrary(
        "turbojpeg",
        ("PyTurboJPEG",),
        needs="install TurboJPEG (Debian: libturbojpeg0); if it is older than 3, pip install 'PyTurboJPEG<2'",
    ),
}


def jpeg_decoder(word: str, dct_scaling: bool) -> JpegDecoder:
    """Return the decoder of RGB and gray JPEG files to a layout: a library's, then torch's scaling.

    Raises MissingDependency of kind ``broken-library`` if the library is installed but cannot be imported.
    """
    from iobench.contrib.formats.shared.torch_scaling import fitted

    library = JPEG_LIBRARIES[word]
    try:
        module = import_module(f"{__package__}.{word}_decoder")
    except Exception as error:  # of libraries that lack a system library, or were built for another torch
        raise MissingDependency(
            f"decoder={word}: {library.module} cannot be imported",
            kind="broken-library",
            found=f"{type(error).__name__}: {reason(error)}",
            hint=library.needs
            or f"pip install --upgrade 'iobench[{word}]', or install a build for this torch and system",
        ) from error

    used = _part(module.decode_part) if library.parts else _cropped(module.decode_jpeg, dct_scaling)
    return lambda stored, size, layout: fitted(used(stored, size, layout), layout, size)


def dct_part(size: Size, least: Size) -> int:
    """Return the largest of 8, 4, 2 and 1 by which a size is divided without falling below the least."""
    return next(
        (part for part in (8, 4, 2) if all(a >= part * b for a, b in zip(size, least, strict=True))), 1
    )


def _part(decode_part: DecodePart) -> JpegDecoder:
    """Return a decoder of what a layout uses of an image."""
    return lambda stored, size, layout: decode_part(stored, layout.mode, layout.box(size))


def _cropped(decode_jpeg: DecodeJpeg, dct_scaling: bool) -> JpegDecoder:
    """Return a decoder of whole images, of which it keeps what a layout uses."""

    def decode(stored: bytes, size: Size, layout: ImageLayout) -> Array:
        least = layout.sufficient(size) if dct_scaling else size
        pixels = decode_jpeg(stored, layout.mode, size, least)
        left, top, right, bottom = layout.box((pixels.shape[1], pixels.shape[0]))
        return pixels[top:bottom, left:right]

    return decode
