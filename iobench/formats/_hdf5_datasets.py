"""What is in an HDF5 file that others wrote: its datasets, and which of them cannot be read, and why.

The library trusts what it reads: a damaged file can end the process. Whoever does not know who wrote a
file looks at it in a process apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import h5py

from iobench.base.text import reason, shortened

MAX_OBJECTS = 10_000
MAX_PATH = 1000
MAX_CHUNK_BYTES = 128 << 20
# What h5py raises for damaged metadata, damaged chunks and kinds of number that NumPy has not.
DAMAGE = (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError, AttributeError)

_KINDS = {
    h5py.h5t.VLEN: "of variable length",
    h5py.h5t.STRING: "text",
    h5py.h5t.REFERENCE: "references to other objects",
    h5py.h5t.COMPOUND: "of a compound type",
    h5py.h5t.OPAQUE: "opaque bytes",
    h5py.h5t.ARRAY: "of an array type",
    h5py.h5t.BITFIELD: "bit fields",
    h5py.h5t.TIME: "times",
}


def described(file: h5py.File) -> dict[str, dict[str, Any]]:
    """Each dataset by its path, and each link that might be one: its shape and dtype, or why it is refused.

    What may be refused is told, not raised, so that others can be chosen. ValueError where the file has
    more objects than can be looked at; whatever is in DAMAGE where it is damaged.
    """
    found: dict[str, dict[str, Any]] = {}
    firsts: dict[tuple[int, int], str] = {}  # an object's place in the file → the first path to it
    paths = {"": ""}  # any path → the first one to the same object
    links = _links(file)
    for name, kind in links:
        if kind == h5py.h5l.TYPE_HARD:
            info = h5py.h5o.get_info(file.id, name.encode("utf-8", "surrogateescape"))
            paths[name] = firsts.setdefault((info.fileno, info.addr), name)
            if info.type == h5py.h5o.TYPE_DATASET and paths[name] == name:
                found[name] = _dataset(file, name)
    for name, kind in links:
        if kind != h5py.h5l.TYPE_HARD and (why := _other_link(file, name, kind, paths)):
            found[name] = {"refused": why}
    return found


def _links(file: h5py.File) -> list[tuple[str, int]]:
    """All links below the root: path and kind. None is followed out of the file, no group entered twice."""
    found: list[tuple[str, int]] = []

    def note(name: bytes, link: Any) -> bool | None:
        if len(found) == MAX_OBJECTS or len(name) > MAX_PATH:
            return True  # which ends the visit
        found.append((name.decode("utf-8", "surrogateescape"), link.type))  # link itself is used again
        return None

    if file.id.links.visit(note, info=True):
        raise ValueError(
            f"it has more than {MAX_OBJECTS:,} objects, or one with a path beyond {MAX_PATH} bytes"
        )
    return found


def _other_link(file: h5py.File, name: str, kind: int, paths: dict[str, str]) -> str | None:
    """Why a link that is not a hard one is refused; a soft one inside the file is but a second name."""
    if kind == h5py.h5l.TYPE_EXTERNAL:
        target = file.id.links.get_val(name.encode("utf-8", "surrogateescape"))
        return f"a link to another file, {shortened(target[0].decode(errors='replace'))}; copy its data in"
    if kind != h5py.h5l.TYPE_SOFT:
        return "a link of a kind that only its own program follows"
    target = file.id.links.get_val(name.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")
    at = "" if target.startswith("/") else paths.get(name.rpartition("/")[0], "")
    for part in target.split("/"):
        path = f"{at}/{part}".strip("/") if part not in ("", ".") else at
        if path not in paths:
            return f"a soft link to {shortened(target)!r}, which is not in the file under that name"
        at = paths[path]
    return None


def _dataset(file: h5py.File, name: str) -> dict[str, Any]:
    identifier = h5py.h5d.open(file.id, name.encode("utf-8", "surrogateescape"))
    properties, kind = identifier.get_create_plist(), identifier.get_type().get_class()
    if why := _elsewhere(properties):
        return {"refused": why}
    if kind in _KINDS:
        return {"refused": _KINDS[kind], "dtype": shortened(_dtype_text(identifier))}
    dataset = h5py.Dataset(identifier)
    try:
        dtype = dataset.dtype
    except TypeError as error:
        return {"refused": f"a kind of number that NumPy does not have ({reason(error)})"}
    if why := _not_stored(dataset, properties):
        return {"refused": why}
    chunk_bytes = math.prod(dataset.chunks) * dtype.itemsize if dataset.chunks else 0
    packed = properties.get_nfilters() > 0
    return {"shape": dataset.shape or (), "dtype": dtype.str, "chunk_bytes": chunk_bytes, "packed": packed}


def _dtype_text(identifier: Any) -> str:
    try:
        return str(identifier.dtype)
    except DAMAGE:
        return "a type of HDF5 alone"


def _elsewhere(properties: Any) -> str | None:
    """Where a dataset's data are, if not in this file."""
    if properties.get_external_count():
        target = shortened(properties.get_external(0)[0].decode(errors="replace"))
        return f"kept in another file, {target} (external storage); copy its data in"
    if properties.get_layout() == h5py.h5d.VIRTUAL:
        return "a virtual dataset, made of other datasets; copy its data into one"
    return None


def _not_stored(dataset: h5py.Dataset, properties: Any) -> str | None:
    """Why a dataset's numbers cannot be had: not stored, in chunks too large, or packed by a plug-in."""
    if dataset.shape is None or 0 in dataset.shape:
        return None
    for code, name in _filters(properties):
        if not h5py.h5z.filter_avail(code):
            return f"packed with {name or 'a filter'} ({code}), which HDF5_PLUGIN_PATH has no plug-in for"
    logical = math.prod(dataset.shape) * dataset.dtype.itemsize
    if properties.get_layout() != h5py.h5d.CHUNKED:
        stored = dataset.id.get_storage_size()
        return None if stored >= logical else f"said to have {logical:,} bytes, and {stored:,} are stored"
    chunk_bytes = math.prod(dataset.chunks) * dataset.dtype.itemsize
    if chunk_bytes > MAX_CHUNK_BYTES:
        return (
            f"in chunks of {chunk_bytes >> 20:,} MiB, each of which must fit in memory whole; at most "
            f"{MAX_CHUNK_BYTES >> 20} MiB do: rewrite it with h5repack and smaller chunks"
        )
    chunks = math.prod(-(-n // c) for n, c in zip(dataset.shape, dataset.chunks, strict=True))
    stored = dataset.id.get_num_chunks()
    if stored < chunks:
        return f"said to have {chunks:,} chunks, and {stored:,} are stored; the rest was never written"
    return None


def _filters(properties: Any) -> Iterator[tuple[int, str]]:
    for number in range(properties.get_nfilters()):
        code, _, _, name = properties.get_filter(number)
        yield code, shortened(name.decode(errors="replace"))
