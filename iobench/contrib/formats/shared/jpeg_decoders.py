"""Decoders of JPEG files besides Pillow: each is a function here and a line of the table.

They call libjpeg-turbo without a copy in between, and torch scales with vector instructions, which Pillow's
scaling lacks. Their pixels differ from Pillow's by one level here and there. A decoder of parts skips what a
random crop does not use, and returns the same pixels of the rest.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from iobench.base.errors import MissingDependency
from iobench.base.standard_streams import native_stderr_hidden
from iobench.base.text import reason
from iobench.formats import Array

if TYPE_CHECKING:
    from iobench.formats.image_decoding import ImageLayout, JpegDecoder

Size: TypeAlias = tuple[int, int]  # width and height

# Returns pixels (H, W, C) of a JPEG file that is RGB or gray, in mode RGB or L, not turned by EXIF, at the
# smallest scale not below the second size; the first is the image's. Raises anything on damaged files.
DecodeJpeg: TypeAlias = "Callable[[bytes, str, Size, Size], Any]"

# Returns the pixels of a part (left, top, right, bottom) of such a file.
DecodePart: TypeAlias = "Callable[[bytes, str, tuple[int, int, int, int]], Any]"


@cache
def _simplejpeg() -> DecodeJpeg:
    import simplejpeg

    from iobench.formats.image_decoding import DCT_SCALE

    def decode(stored: bytes, mode: str, size: Size, least: Size) -> Any:
        colors, (width, height) = {"RGB": "RGB", "L": "GRAY"}[mode], least
        return simplejpeg.decode_jpeg(
            stored, colors, min_height=height, min_width=width, min_factor=DCT_SCALE
        )

    return decode


@cache
def _torchvision() -> DecodeJpeg:
    """Return a decoder on the CPU and of the whole size."""
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg

    modes = {"RGB": ImageReadMode.RGB, "L": ImageReadMode.GRAY}

    def decode(stored: bytes, mode: str, size: Size, least: Size) -> Any:
        writable = bytearray(stored)  # torch warns of a tensor that must not be written to
        pixels = decode_jpeg(torch.frombuffer(writable, dtype=torch.uint8), modes[mode])
        return pixels.permute(1, 2, 0).numpy()

    return decode


@cache
def _opencv() -> DecodeJpeg:
    """Return a decoder to RGB.

    A conversion of BGR would start OpenCV's pool of threads, which a forked worker of DataLoader lacks.
    """
    import cv2

    modes = {"RGB": cv2.IMREAD_COLOR_RGB, "L": cv2.IMREAD_GRAYSCALE}  # the first is new in 4.11
    reduced = {  # with the bit that each adds to a mode
        8: cv2.IMREAD_REDUCED_GRAYSCALE_8,
        4: cv2.IMREAD_REDUCED_GRAYSCALE_4,
        2: cv2.IMREAD_REDUCED_GRAYSCALE_2,
    }

    def decode(stored: bytes, mode: str, size: Size, least: Size) -> Any:
        flags = modes[mode] | reduced.get(_dct_part(size, least), 0) | cv2.IMREAD_IGNORE_ORIENTATION
        pixels: Array | None = cv2.imdecode(np.frombuffer(stored, np.uint8), flags)
        if pixels is None:
            raise ValueError("OpenCV does not say why")
        return pixels.reshape(*pixels.shape[:2], -1)

    return decode


@cache
def _nvimgcodec() -> DecodePart:
    os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")  # it would print two lines for a damaged file
    with native_stderr_hidden():  # five lines about decoders for a GPU that are not installed
        import nvidia.nvimgcodec as nvimgcodec  # if it is missing, the error has its whole name

    params = {
        mode: nvimgcodec.DecodeParams(apply_exif_orientation=False, color_spec=colors)
        for mode, colors in {"RGB": nvimgcodec.ColorSpec.SRGB, "L": nvimgcodec.ColorSpec.GRAY}.items()
    }
    on_cpu = nvimgcodec.Backend(nvimgcodec.BackendKind.CPU_ONLY)

    class ThreadDecoder(threading.local):
        """A decoder for each thread, which decodes on the CPU without others."""

        def __init__(self) -> None:
            self.decode = nvimgcodec.Decoder(
                device_id=nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY, max_num_cpu_threads=1, backends=[on_cpu]
            ).decode

    decoder = ThreadDecoder()

    def decode(stored: bytes, mode: str, box: tuple[int, int, int, int]) -> Any:
        left, top, right, bottom = box
        region = nvimgcodec.Region(top, left, bottom, right)
        image = decoder.decode(
            nvimgcodec.CodeStream(stored).get_sub_code_stream(region=region), params=params[mode]
        )
        if image is None:
            raise ValueError("nvImageCodec does not say why")
        return np.asarray(image)

    return decode


@cache
def _turbojpeg() -> DecodeJpeg:
    """Return the decoder of PyTurboJPEG, which loads the system's TurboJPEG library."""
    from turbojpeg import TJPF_GRAY, TJPF_RGB, TurboJPEG

    modes, library = {"RGB": TJPF_RGB, "L": TJPF_GRAY}, TurboJPEG()
    return lambda stored, mode, size, least: library.decode(stored, modes[mode], (1, _dct_part(size, least)))


@dataclass(frozen=True)
class JpegLibrary:
    """Library that decodes JPEG files; an extra of iobench, named by its word, installs it.

    `load` imports the library and returns its decoder, a DecodePart if it decodes `parts` alone.
    """

    module: str
    packages: tuple[str, ...]  # on PyPI, each of which provides the module
    load: Callable[[], Any]
    code: str  # expression of the pixels (H, W, 3) of `data`, the bytes of a file
    dct_scaling: bool = True  # it decodes at a part of the size, too
    parts: bool = False
    needs: str = ""  # hint for what its package does not bring


JPEG_LIBRARIES = {
    "simplejpeg": JpegLibrary("simplejpeg", ("simplejpeg",), _simplejpeg, "simplejpeg.decode_jpeg(data)"),
    "torchvision": JpegLibrary(
        "torchvision",
        ("torchvision",),
        _torchvision,
        "torchvision.io.decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), 'RGB')"
        ".permute(1, 2, 0).numpy()",
        dct_scaling=False,
    ),
    "opencv": JpegLibrary(
        "cv2",
        ("opencv-python-headless", "opencv-python"),
        _opencv,
        "cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION)",
    ),
    "nvimgcodec": JpegLibrary(
        "nvidia.nvimgcodec",
        ("nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13"),
        _nvimgcodec,
        "np.asarray(nvimgcodec.Decoder(device_id=nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY, "
        "backends=[nvimgcodec.Backend(nvimgcodec.BackendKind.CPU_ONLY)]).decode(data))",
        dct_scaling=False,
        parts=True,
    ),
    "turbojpeg": JpegLibrary(
        "turbojpeg",
        ("PyTurboJPEG",),
        _turbojpeg,
        "TurboJPEG().decode(data, TJPF_RGB)",
        needs="install TurboJPEG (Debian: libturbojpeg0); if it is older than 3, pip install 'PyTurboJPEG<2'",
    ),
}


def jpeg_decoder(word: str, dct_scaling: bool) -> JpegDecoder:
    """Return the decoder of RGB and gray JPEG files to a layout: a library's, then torch's scaling.

    Raises MissingDependency of kind ``broken-library`` if the library is installed but cannot be imported.
    """
    library = JPEG_LIBRARIES[word]
    try:
        decode = library.load()
    except Exception as error:  # of libraries that lack a system library, or were built for another torch
        raise MissingDependency(
            f"decoder={word}: {library.module} cannot be imported",
            kind="broken-library",
            found=f"{type(error).__name__}: {reason(error)}",
            hint=library.needs
            or f"pip install --upgrade 'iobench[{word}]', or install a build for this torch and system",
        ) from error

    def used(stored: bytes, size: Size, layout: ImageLayout) -> Array:
        if library.parts:
            return _fitted(decode(stored, layout.mode, layout.box(size)), layout, size)
        pixels = decode(stored, layout.mode, size, layout.sufficient(size) if dct_scaling else size)
        left, top, right, bottom = layout.box((pixels.shape[1], pixels.shape[0]))
        return _fitted(pixels[top:bottom, left:right], layout, size)

    return used


def _fitted(pixels: Array, layout: ImageLayout, size: Size) -> Array:
    """Return pixels (H, W, C), which a layout uses of an image of a size, scaled as it fits them."""
    import torch

    width, height = layout.scaled(size)
    image = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    if image.shape[2:] != (height, width):
        image = torch.nn.functional.interpolate(image, (height, width), mode="bilinear", antialias=True)
    top, left = (height - layout.height) // 2, (width - layout.width) // 2
    cut = image[0, :, top : top + layout.height, left : left + layout.width]
    ordered = cut if layout.channels_first else cut.permute(1, 2, 0)
    array: Array = np.ascontiguousarray(ordered.numpy()).reshape(layout.shape)
    return array


def decode_whole(word: str, stored: bytes, mode: str, size: Size) -> Array:
    """Return the pixels of an RGB or gray JPEG file by a library, which is imported here."""
    from iobench.formats.image_decoding import ImageLayout

    width, height = size
    layout = ImageLayout((height, width, 3) if mode == "RGB" else (height, width))
    return jpeg_decoder(word, dct_scaling=False)(stored, size, layout)


def _dct_part(size: Size, least: Size) -> int:
    """Return the largest of 8, 4, 2 and 1 by which a size is divided without falling below the least."""
    return next(
        (part for part in (8, 4, 2) if all(a >= part * b for a, b in zip(size, least, strict=True))), 1
    )
