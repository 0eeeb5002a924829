"""JPEG images that Pillow decodes, and the same files decoded by other libraries.

Only the decoding is replaced: ``Image.open`` reads the header, and what a dataset does with the image stays.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.formats import Array, WholeDecoder

if TYPE_CHECKING:
    from PIL.JpegImagePlugin import JpegImageFile

MODES = ("L", "RGB")  # which need no conversion


@dataclass(frozen=True)
class JpegFile:
    """Bytes of a file that Pillow decodes, its mode, and its width and height."""

    stored: bytes
    mode: str
    size: tuple[int, int]

    def pillow(self) -> Array:
        """Return the pixels as Pillow decodes them."""
        from PIL import Image

        with Image.open(BytesIO(self.stored)) as image:
            return np.asarray(image)

    def decoded_by(self, decoder: WholeDecoder) -> Array:
        """Return the pixels as another library decodes them."""
        return decoder.decode(self.stored, self.mode, self.size)


@dataclass(frozen=True)
class DecoderSpeed:
    """Measurements of a decoder in one thread."""

    decoder: WholeDecoder
    times: float  # of Pillow's speed, from files to arrays
    files: int  # JPEG files that both decoded
    most: int  # largest difference of their pixels, of 255

    @property
    def values(self) -> dict[str, Any]:
        """The decoder and its measurements, by name."""
        named = {"decoder": self.decoder.name, "code": self.decoder.code}
        return {**named, "times": self.times, "files": self.files, "most": self.most}


@contextmanager
def recorded() -> Iterator[list[JpegFile]]:
    """Give a list to which each JPEG file is added that Pillow decodes in the block."""
    files = list[JpegFile]()
    with _loaded_by(lambda image: files.append(_file(image))):
        yield files


def loaded_by(decoder: WholeDecoder) -> AbstractContextManager[None]:
    """Let another library decode the JPEG images that Pillow opens."""
    from PIL import Image

    def load(image: JpegImageFile) -> None:
        image.im, image.tile = Image.fromarray(_file(image).decoded_by(decoder)).im, []

    return _loaded_by(load)


def speed(decoder: WholeDecoder, files: Sequence[JpegFile], seconds: float) -> DecoderSpeed:
    """Compare a decoder with Pillow over the same files in turns; raises what the decoder raises."""
    files[0].decoded_by(decoder)  # imports the library
    pillow, other, most = defaultdict[int, list[float]](list), defaultdict[int, list[float]](list), 0
    until = time.perf_counter() + seconds
    for number, file in cycle(enumerate(files)):
        own = _timed(file.pillow, pillow[number])
        pixels = _timed(partial(file.decoded_by, decoder), other[number])
        most = max(most, int(np.abs(own.astype(np.int16) - pixels).max()))
        if time.perf_counter() > until:
            break
    times = sum(map(min, pillow.values())) / sum(map(min, other.values()))
    return DecoderSpeed(decoder, times, len(pillow), most)


@contextmanager
def _loaded_by(load: Callable[[JpegImageFile], None]) -> Iterator[None]:
    """Call a function for each JPEG image that will be decoded whole, before Pillow's own method."""
    from PIL.JpegImagePlugin import JpegImageFile

    own = JpegImageFile.load

    def loaded(image: JpegImageFile) -> Any:
        whole = image.tile and not getattr(image, "decoderconfig", ())  # else a user drafted it
        if whole and image.format == "JPEG" and image.mode in MODES:
            load(image)
        return own(image)

    JpegImageFile.load = loaded  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        JpegImageFile.load = own  # type: ignore[method-assign]


def _file(image: JpegImageFile) -> JpegFile:
    """Return an image's file, whose position stays."""
    file = image.fp
    assert file is not None
    position = file.tell()
    file.seek(0)
    stored = file.read()
    file.seek(position)
    return JpegFile(stored, image.mode, image.size)


def _timed(decode: Callable[[], Array], taken: list[float]) -> Array:
    """Call a function, and append the seconds that it takes."""
    began = time.perf_counter()
    pixels = decode()
    taken.append(time.perf_counter() - began)
    return pixels
