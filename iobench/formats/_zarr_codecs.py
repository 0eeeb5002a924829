"""Unpacking chunks of Zarr, whatever they say of their sizes and whatever they would grow to."""

from __future__ import annotations

import zlib
from typing import Any

import numcodecs
import numpy as np
import numpy.typing as npt

HEADER_BYTES = 18  # that say how large a chunk is, of any codec
BLOSC_HEADER_BYTES = 16
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
GZIP = 31  # what zlib calls it
KNOWN = {"zstd": numcodecs.Zstd, "blosc": numcodecs.Blosc, "gzip": numcodecs.GZip}
# what is raised for damaged chunks, which may say that they would be of any size
DAMAGE = (RuntimeError, ValueError, OSError, SystemError, MemoryError, OverflowError, zlib.error)


def unpack(codec: Any, stored: memoryview, whole: int, into: npt.NDArray[np.uint8]) -> None:
    """Unpack a chunk of `whole` bytes, and keep as many of them as there is room for in `into`.

    Those of DAMAGE where it does not unpack to that, for which it need not be unpacked in most cases.
    """
    check_header(codec, stored[:HEADER_BYTES], len(stored), whole)
    if isinstance(codec, numcodecs.GZip):
        found: Any = _gunzipped(stored, whole + 1)
    else:
        # in place where it says its size: numcodecs does not tell when a chunk was shorter than its place
        direct = len(into) == whole and unpacked_bytes(codec, stored[:HEADER_BYTES]) is not None
        found = codec.decode(stored, into if direct else None)
        if direct:
            return
    found = np.frombuffer(found, np.uint8)
    if len(found) != whole:
        raise ValueError(f"{len(found)} bytes")
    into[:] = found[: len(into)]


def check_header(codec: Any, header: memoryview, stored: int, whole: int) -> None:
    """ValueError where a chunk, of which `stored` bytes are there, says of itself that it has another size.

    c-blosc believes what a chunk says: it reads beyond one that was cut off.
    """
    if isinstance(codec, numcodecs.Blosc):
        said = int.from_bytes(header[12:16], "little")
        if len(header) < BLOSC_HEADER_BYTES or said != stored:
            raise ValueError(f"{stored} packed bytes instead of {max(said, BLOSC_HEADER_BYTES)}")
    if unpacked_bytes(codec, header) not in (None, whole):
        raise ValueError(f"{unpacked_bytes(codec, header)} bytes")


def unpacked_bytes(codec: Any, header: memoryview) -> int | None:
    """How many bytes a packed chunk says that it unpacks to, by its header; None where it does not."""
    if isinstance(codec, numcodecs.Blosc) and len(header) >= BLOSC_HEADER_BYTES:
        return int.from_bytes(header[4:8], "little")  # c-blosc's README_CHUNK_FORMAT
    if isinstance(codec, numcodecs.Zstd) and header[:4] == ZSTD_MAGIC and len(header) > 4:
        return _said_by_zstd(header)
    return None


def _said_by_zstd(header: memoryview) -> int | None:
    """A frame's content size. Source: RFC 8878, 3.1.1.1."""
    described = header[4]
    single = described >> 5 & 1  # segment: without a byte for the window, and always with a size
    size = (single, 2, 4, 8)[described >> 6]
    begin = 5 + (1 - single) + (0, 1, 2, 4)[described & 3]  # after the dictionary's number
    said = int.from_bytes(header[begin : begin + size], "little")
    return said + (256 if size == 2 else 0) if size else None  # two bytes say what one cannot


def _gunzipped(stored: Any, most: int) -> bytes:
    """What a gzip file's members unpack to, or its first `most` bytes."""
    found = b""
    while len(stored) and len(found) < most:
        member = zlib.decompressobj(GZIP)
        found += member.decompress(stored, most - len(found))
        if not member.eof and len(found) < most:
            raise ValueError(f"{len(found)} bytes and no end")
        stored = member.unused_data
    return found
