"""Decoders of JPEG files besides Pillow: each is a module here, imported when used, and a line of the table.

They call libjpeg-turbo without a copy in between, and torch scales with vector instructions, which Pillow's
scaling lacks. Their pixels differ from Pillow's by one level here and there. A decoder of parts skips what a
random crop does not use, and returns the same pixels of the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

from iobench.base.errors import MissingDependency
from iobench.base.registry import is_installed
from iobench.base.text import reason
from iobench.formats import Array, WholeDecoder

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
    code: str  # expression of the pixels (H, W, 3) of `data`, the bytes of a file
    dct_scaling: bool = True  # it decodes at a part of the size, too
    parts: bool = False  # it decodes a part of the image alone: `decode_part`
    needs: str = ""  # hint for what its package does not bring


JPEG_LIBRARIES = {
    "simplejpeg": JpegLibrary("simplejpeg", ("simplejpeg",), "simplejpeg.decode_jpeg(data)"),
    "torchvision": JpegLibrary(
        "torchvision",
        ("torchvision",),
        "torchvision.io.decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), 'RGB')"
        ".permute(1, 2, 0).numpy()",
        dct_scaling=False,
    ),
    "opencv": JpegLibrary(
        "cv2",
        ("opencv-python-headless", "opencv-python"),
        "cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION)",
    ),
    "nvimgcodec": JpegLibrary(
        "nvidia.nvimgcodec",
        ("nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13"),
        "np.asarray(nvimgcodec.Decoder(device_id=nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY, "
        "backends=[nvimgcodec.Backend(nvimgcodec.BackendKind.CPU_ONLY)]).decode(data))",
        dct_scaling=False,
        parts=True,
    ),
    "turbojpeg": JpegLibrary(
        "turbojpeg",
        ("PyTurboJPEG",),
        "TurboJPEG().decode(data, TJPF_RGB)",
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


def installed_decoders() -> Iterator[WholeDecoder]:
    """Yield the decoders whose libraries are installed; each imports its library when it is called."""
    for word, library in JPEG_LIBRARIES.items():
        if is_installed(library.module):
            yield WholeDecoder(word, library.code, partial(_whole, word))


def _whole(word: str, stored: bytes, mode: str, size: Size) -> Array:
    """Return all pixels of a JPEG file."""
    from iobench.formats.image_decoding import ImageLayout

    width, height = size
    layout = ImageLayout((height, width, 3) if mode == "RGB" else (height, width))
    return jpeg_decoder(word, dct_scaling=False)(stored, size, layout)


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
