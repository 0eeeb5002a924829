"""Decompression of Zarr chunks that may be damaged or larger than they claim."""

from __future__ import annotations

import zlib
from typing import Any

import numcodecs
import numpy as np
import numpy.typing as npt
import zarr
from zarr.codecs import BloscCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer
from zarr.registry import register_codec

HEADER_BYTES = 18  # enough to read a chunk's size, for any codec
BLOSC_HEADER_BYTES = 16
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
GZIP = 31  # zlib's wbits for gzip
KNOWN = {"zstd": numcodecs.Zstd, "blosc": numcodecs.Blosc, "gzip": numcodecs.GZip}
# raised for damaged chunks, which may claim any size
DAMAGE = (RuntimeError, ValueError, OSError, SystemError, MemoryError, OverflowError, zlib.error)


def unpack(codec: Any, stored: memoryview, whole: int, into: npt.NDArray[np.uint8]) -> None:
    """Decompress a chunk of `whole` bytes, and store as many of them in `into` as fit.

    DAMAGE if the chunk does not have `whole` bytes, which its header shows in most cases.
    """
    check_header(codec, stored[:HEADER_BYTES], len(stored), whole)
    if isinstance(codec, numcodecs.GZip):
        data: Any = _gunzipped(stored, whole + 1)
    else:
        # in place only if the header has the size: numcodecs does not report that a chunk was shorter
        direct = len(into) == whole and unpacked_bytes(codec, stored[:HEADER_BYTES]) is not None
        data = codec.decode(stored, into if direct else None)
        if direct:
            return
    data = np.frombuffer(data, np.uint8)
    if len(data) != whole:
        raise ValueError(f"{len(data)} bytes")
    into[:] = data[: len(into)]


def check_header(codec: Any, header: memoryview, stored: int, whole: int | None = None) -> None:
    """Raise ValueError if a chunk's header claims other sizes than `stored` and, if known, `whole` bytes.

    c-blosc trusts the header and reads past the end of a truncated chunk.
    """
    if isinstance(codec, numcodecs.Blosc):
        claimed = int.from_bytes(header[12:16], "little")
        if len(header) < BLOSC_HEADER_BYTES or claimed != stored:
            raise ValueError(f"{stored} compressed bytes instead of {max(claimed, BLOSC_HEADER_BYTES)}")
    if whole is not None and unpacked_bytes(codec, header) not in (None, whole):
        raise ValueError(f"{unpacked_bytes(codec, header)} bytes")


class CheckedBlosc(BloscCodec):
    """Blosc for chunks that zarr decompresses: refuses those whose header claims another size."""

    async def _decode_single(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> Buffer:
        header = memoryview(chunk_bytes[:HEADER_BYTES].as_numpy_array())
        check_header(numcodecs.Blosc(), header, len(chunk_bytes))
        return await super()._decode_single(chunk_bytes, chunk_spec)


register_codec("blosc", CheckedBlosc)
zarr.config.set({"codecs.blosc": f"{__name__}.{CheckedBlosc.__qualname__}"})


def unpacked_bytes(codec: Any, header: memoryview) -> int | None:
    """Return the decompressed size from a chunk's header; None if the header does not hold it."""
    if isinstance(codec, numcodecs.Blosc) and len(header) >= BLOSC_HEADER_BYTES:
        return int.from_bytes(header[4:8], "little")  # c-blosc's README_CHUNK_FORMAT
    if isinstance(codec, numcodecs.Zstd) and header[:4] == ZSTD_MAGIC and len(header) > 4:
        return _zstd_content_bytes(header)
    return None


def _zstd_content_bytes(header: memoryview) -> int | None:
    """Return a frame's content size, None if it is not stored. Source: RFC 8878, 3.1.1.1."""
    descriptor = header[4]
    single = descriptor >> 5 & 1  # single segment: no window byte, and always a content size
    size = (single, 2, 4, 8)[descriptor >> 6]
    begin = 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3]  # after the dictionary id
    content = int.from_bytes(header[begin : begin + size], "little")
    return content + (256 if size == 2 else 0) if size else None  # two bytes count from 256


def _gunzipped(stored: Any, most: int) -> bytes:
    """Decompress a gzip file's members, at most `most` bytes."""
    data = b""
    while len(stored) and len(data) < most:
        member = zlib.decompressobj(GZIP)
        data += member.decompress(stored, most - len(data))
        if not member.eof and len(data) < most:
            raise ValueError(f"{len(data)} bytes and no end")
        stored = member.unused_data
    return data
