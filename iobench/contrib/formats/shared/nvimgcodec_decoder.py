"""Decoder of parts of JPEG files by nvImageCodec, on the CPU."""

from __future__ import annotations

import os
import threading

import numpy as np

from iobench.base.standard_streams import native_stderr_hidden
from iobench.contrib.formats.shared.random_crop import Box
from iobench.formats import Array

os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")  # it would print two lines for a damaged file
with native_stderr_hidden():  # five lines about decoders for a GPU that are not installed
    import nvidia.nvimgcodec as nvimgcodec  # if it is missing, the error has its whole name

PARAMS = {
    mode: nvimgcodec.DecodeParams(apply_exif_orientation=False, color_spec=colors)
    for mode, colors in {"RGB": nvimgcodec.ColorSpec.SRGB, "L": nvimgcodec.ColorSpec.GRAY}.items()
}


class _ThreadDecoder(threading.local):
    """A decoder for each thread, which decodes without others."""

    def __init__(self) -> None:
        on_cpu = nvimgcodec.Backend(nvimgcodec.BackendKind.CPU_ONLY)
        self.decode = nvimgcodec.Decoder(
            device_id=nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY, max_num_cpu_threads=1, backends=[on_cpu]
        ).decode


_decoder = _ThreadDecoder()


def decode_part(stored: bytes, mode: str, box: Box) -> Array:
    """Return the pixels of a part; rows and columns beside it are skipped."""
    left, top, right, bottom = box
    part = nvimgcodec.CodeStream(stored).get_sub_code_stream(
        region=nvimgcodec.Region(top, left, bottom, right)
    )
    image = _decoder.decode(part, params=PARAMS[mode])
    if image is None:
        raise ValueError("nvImageCodec does not say why")
    return np.asarray(image)
