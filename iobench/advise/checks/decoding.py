"""Decoding: JPEG files by other libraries or at a smaller scale, and checks of all decoding.

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
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench import formats
from iobench.advise.checks.call_costs import WORK, Profile
from iobench.advise.checks.evidence import SHARE, Advice, Evidence, measured
from iobench.advise.checks.sample_calls import Size, replaced
from iobench.advise.checks.sample_checks import applies, share_of
from iobench.base.units import bytes_text, counted
from iobench.bench.budget import Budget
from iobench.formats import Array, Format, WholeDecoder
from iobench.results.run_warning import Values

if TYPE_CHECKING:  # they take long to import
    from PIL.JpegImagePlugin import JpegImageFile


ONCE = "decode once: 'iobench prepare --source {}'"
STORED = "store them decoded, so that a part of each can be read: 'iobench prepare --source {}'"
STREAM = "let StreamLoader decode{}: format='{}'; 'iobench recommend --source {}' compares decoders"
NO_DECODER = "none is installed: pip install 'iobench[simplejpeg]'"
SIDES = (224, 224)  # of images whose size is unknown
MODES = ("L", "RGB")  # which need no conversion
WHOLE = ("decoding", "scaling")  # kinds of work that take a whole image, in WORK
TURNS = 10  # at most, of a decoder with each file: the fastest counts


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


def speed(decoder: WholeDecoder, files: Sequence[JpegFile], budget: Budget) -> dict[str, Any]:
    """Compare a decoder with Pillow over the same files in turns; raises what the decoder raises.

    Return its name and code, the ratio of their speeds from files to arrays, the number of files that both
    decoded, and the largest difference of their pixels, of 255.
    """
    files[0].decoded_by(decoder)  # imports the library
    pillow, other, most = defaultdict[int, list[float]](list), defaultdict[int, list[float]](list), 0
    for number, file in islice(cycle(enumerate(files)), TURNS * len(files)):
        own = _timed(file.pillow, pillow[number])
        pixels = _timed(partial(file.decoded_by, decoder), other[number])
        most = max(most, int(np.abs(own.astype(np.int16) - pixels).max()))
        if budget.over:
            break
    times = sum(map(min, pillow.values())) / sum(map(min, other.values()))
    named = {"decoder": decoder.name, "code": decoder.code}
    return {**named, "times": times, "files": len(pillow), "most": most}


def _loaded_by(load: Callable[[JpegImageFile], None]) -> AbstractContextManager[None]:
    """Call a function for each JPEG image that will be decoded whole, before Pillow's own method."""
    from PIL.JpegImagePlugin import JpegImageFile

    def other(own: Callable[[JpegImageFile], Any]) -> Any:
        def loaded(image: JpegImageFile) -> Any:
            whole = image.tile and not getattr(image, "decoderconfig", ())  # else a user drafted it
            if whole and image.format == "JPEG" and image.mode in MODES:
                load(image)
            return own(image)

        return loaded

    return replaced(JpegImageFile, "load", other)


def drafted(size: Size) -> AbstractContextManager[None]:
    """Let ``Image.open`` return images that will be decoded at the smallest scale not below a size.

    libjpeg decodes to a half, a quarter or an eighth of each side in a fraction of the time.
    """
    from PIL import Image

    def other(own: Callable[..., Any]) -> Any:
        def opened(*arguments: Any, **options: Any) -> Any:
            image = own(*arguments, **options)
            image.draft(None, size)
            return image

        return opened

    return replaced(Image, "open", other)


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
    began = time.perf_counter()
    pixels = decode()
    taken.append(time.perf_counter() - began)
    return pixels


def _cure(evidence: Evidence) -> str:
    profile, source = evidence.fetching, evidence.sample.folder or "FOLDER"
    if not _of_images(profile) or not evidence.varying:
        return (STORED if evidence.varying else ONCE).format(source)
    height, width = evidence.sample.sides or SIDES
    crops = profile.cost("crops") > 0
    scaled = formats.parse(f"images:shape=3x{height}x{width}" + ",crop=random" * crops)
    included = ", random crops included" * crops
    return STREAM.format(included, scaling_variant(scaled) or scaled.variant, source)


def scaling_variant(format: Format) -> str | None:
    """Return the variant of a format whose installed decoder decodes images at a smaller scale, if any."""
    installed = [f"decoder={one.name}" for one in format.jpeg_decoders()]
    scaling = [one for one in format.other_decoders(large=True) if "dct_scaling=yes" in one]
    return next((one for one in scaling if any(word in one for word in installed)), None)


def decoder_hint(format: Format) -> str | None:
    """Return what decodes a format's images faster than Pillow; None where Pillow does not decode them."""
    if not format.other_decoders():
        return None
    faster = scaling_variant(format)
    return STREAM.format("", faster, "FOLDER") if faster else f"of other JPEG decoders {NO_DECODER}"


def _of_images(profile: Profile) -> bool:
    return profile.cost("images") > profile.cost("decoding") / 2


def decoding(evidence: Evidence) -> Advice | None:
    """Repeated decoding of the same samples in each epoch."""
    share = share_of(evidence, *WHOLE)
    if share is None or any(
        "decoding" in work.contains and applies(evidence, name) for name, work in WORK.items()
    ):
        return None
    if evidence.sample.whole_sound and evidence.fetching.cost("sound") >= SHARE:
        return None
    cached, size = evidence.gain("cache"), bytes_text(evidence.loop.dataset_bytes)
    if cached is None and (draft(evidence) or other_decoder(evidence)):
        return None
    images = " and scaling images" if _of_images(evidence.fetching) else ""
    message = f"{share:.0%} of the time is spent decoding{images}, again in each epoch"
    values: Values = {"share": share, "dataset_bytes": evidence.loop.dataset_bytes}
    if cached is not None:
        hint = f"cache the decoded samples in memory: all of them take {size}"
        return Advice("decoding", message, hint, {**values, "cached": 1}, *measured(cached))
    fits = not evidence.varying and evidence.fits_in_memory
    fitting = f"; decoded they take {size}, which fits in memory" if fits else ""
    return Advice("decoding", message, f"{_cure(evidence)}{fitting}", values)


def draft(evidence: Evidence) -> Advice | None:
    """JPEG images that are decoded whole, and then made much smaller."""
    known, gain, share = evidence.tried("draft"), evidence.gain("draft"), share_of(evidence, *WHOLE)
    if not known or (gain is None and share is None):
        return None
    width, height = (known[0].changes[side] for side in ("width", "height"))
    message = f"JPEG images are decoded whole, and then resized to {width} × {height}"
    draft = f"image.draft(None, ({width}, {height}))"
    hint = f"call {draft} after Image.open(): it decodes at a smaller scale"
    values: Values = {"width": width, "height": height, "share": share or 0.0}
    return Advice("jpeg-draft", message, hint, values, *measured(gain))


def other_decoder(evidence: Evidence) -> Advice | None:
    """JPEG images that another library decodes faster than Pillow."""
    tried, share = evidence.tried("decoder"), share_of(evidence, "decoding")
    if not tried or share is None:
        return None
    gain, found = evidence.gain("decoder"), tried[0].changes
    limit = 1 / (1 - share + share / found["times"])
    change = f"make tensors of {found['code']} in place of Pillow's images: at most {limit:.1f} × (estimated)"
    change = f"decode by Image.fromarray({found['code']})" if gain else change
    message = (
        f"{share:.0%} of the time is spent decoding; {found['decoder']} decodes these JPEG files to arrays "
        f"{found['times']:.1f} × as fast as Pillow (measured on {counted(found['files'], 'file')}; pixels "
        f"differ by at most {found['most']} of 255)"
    )
    values: Values = {"share": share, "limit": limit, **found}
    return Advice("jpeg-decoder", message, f"{change}; or {_cure(evidence)}", values, *measured(gain))
