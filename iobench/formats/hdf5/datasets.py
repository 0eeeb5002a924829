"""Datasets of an HDF5 file that another program wrote, with the reason for each that cannot be read.

The library trusts what it reads, so a damaged file can end the process. Files from an unknown source are
therefore inspected in a separate process.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import h5py

from iobench.base.errors import CorruptArtifact
from iobench.base.text import reason, shortened
from iobench.formats._arrays import DTYPE_HINT

MAX_OBJECTS = 10_000
MAX_PATH = 1000
MAX_CHUNK_BYTES = 128 << 20
# What h5py raises for damaged metadata, damaged chunks and number types that NumPy does not have.
DAMAGE = (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError, AttributeError)

_KINDS = {
    h5py.h5t.VLEN: "variable length",
    h5py.h5t.STRING: "text",
    h5py.h5t.REFERENCE: "references to other objects",
    h5py.h5t.COMPOUND: "a compound type",
    h5py.h5t.OPAQUE: "opaque bytes",
    h5py.h5t.ARRAY: "an array type",
    h5py.h5t.BITFIELD: "bit fields",
    h5py.h5t.TIME: "times",
}


def described(file: h5py.File) -> dict[str, dict[str, Any]]:
    """Return each dataset by path, and each link that may lead to one.

    A value holds `shape`, `dtype`, `chunk_rows`, `chunk_bytes` and `packed`, or as `refused` the error of a
    dataset that cannot be read, without its name and path: it is not raised, so that others can be selected.

    ValueError if the file has more objects than are inspected, one of DAMAGE if it is damaged.
    """
    datasets: dict[str, dict[str, Any]] = {}
    firsts: dict[tuple[int, int], str] = {}  # an object's address → the first path to it
    paths = {"": ""}  # any path → the first one to the same object
    links = _links(file)
    for name, kind in links:
        if kind == h5py.h5l.TYPE_HARD:
            info = h5py.h5o.get_info(file.id, name.encode("utf-8", "surrogateescape"))
            paths[name] = firsts.setdefault((info.fileno, info.addr), name)
            if info.type == h5py.h5o.TYPE_DATASET and paths[name] == name:
                datasets[name] = _dataset(file, name)
    for name, kind in links:
        if kind != h5py.h5l.TYPE_HARD and (refusal := _other_link(file, name, kind, paths)):
            datasets[name] = {"refused": refusal}
    return datasets


def _links(file: h5py.File) -> list[tuple[str, int]]:
    """Return path and kind of all links below the root; leaves the file by none, enters no group twice."""
    links: list[tuple[str, int]] = []

    def note(name: bytes, link: Any) -> bool | None:
        if len(links) == MAX_OBJECTS or len(name) > MAX_PATH:
            return True  # ends the visit
        links.append((name.decode("utf-8", "surrogateescape"), link.type))  # h5py reuses `link` itself
        return None

    if file.id.links.visit(note, info=True):
        raise ValueError(f"more than {MAX_OBJECTS:,} objects, or a path longer than {MAX_PATH} bytes")
    return links


def _other_link(file: h5py.File, name: str, kind: int, paths: dict[str, str]) -> CorruptArtifact | None:
    """Return why a link that is not a hard link is refused; None for a soft link within the file."""
    if kind == h5py.h5l.TYPE_EXTERNAL:
        target = file.id.links.get_val(name.encode("utf-8", "surrogateescape"))
        other = shortened(target[0].decode(errors="replace"))
        return CorruptArtifact(
            "a link to another file", kind="external-data", found=other, hint="copy its data in"
        )
    if kind != h5py.h5l.TYPE_SOFT:
        return CorruptArtifact(
            "a user-defined link, which only the program that defined it follows", kind="unknown-link"
        )
    target = file.id.links.get_val(name.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")
    at = "" if target.startswith("/") else paths.get(name.rpartition("/")[0], "")
    for part in target.split("/"):
        path = f"{at}/{part}".strip("/") if part not in ("", ".") else at
        if path not in paths:
            return CorruptArtifact(
                "a soft link to a path that is not in the file",
                kind="dangling-link",
                found=repr(shortened(target)),
            )
        at = paths[path]
    return None


def _dataset(file: h5py.File, name: str) -> dict[str, Any]:
    identifier = h5py.h5d.open(file.id, name.encode("utf-8", "surrogateescape"))
    properties, kind = identifier.get_create_plist(), identifier.get_type().get_class()
    if refusal := _elsewhere(properties):
        return {"refused": refusal}
    if kind in _KINDS:
        problem, found = "unsupported dtype", f"{_KINDS[kind]} ({shortened(_dtype_text(identifier))})"
        return {"refused": CorruptArtifact(problem, kind="unsupported-dtype", found=found, hint=DTYPE_HINT)}
    dataset = h5py.Dataset(identifier)
    try:
        dtype = dataset.dtype
    except TypeError as error:
        problem = "a number type that NumPy does not have"
        return {"refused": CorruptArtifact(problem, kind="unsupported-dtype", found=reason(error))}
    if refusal := _not_stored(dataset, properties):
        return {"refused": refusal}
    chunk_bytes = math.prod(dataset.chunks) * dtype.itemsize if dataset.chunks else 0
    packed = properties.get_nfilters() > 0
    rows = dataset.chunks[0] if dataset.chunks else 0
    layout = {"chunk_rows": rows, "chunk_bytes": chunk_bytes, "packed": packed}
    return {"shape": dataset.shape or (), "dtype": dtype.str, **layout}


def _dtype_text(identifier: Any) -> str:
    try:
        return str(identifier.dtype)
    except DAMAGE:
        return "no NumPy dtype"


def _elsewhere(properties: Any) -> CorruptArtifact | None:
    """Return a refusal if a dataset's data are not in this file."""
    if properties.get_external_count():
        target = shortened(properties.get_external(0)[0].decode(errors="replace"))
        return CorruptArtifact(
            "its data are in another file", kind="external-data", found=target, hint="copy its data in"
        )
    if properties.get_layout() == h5py.h5d.VIRTUAL:
        return CorruptArtifact(
            "a virtual dataset, composed of others",
            kind="external-data",
            hint="copy its data into one dataset",
        )
    return None


def _not_stored(dataset: h5py.Dataset, properties: Any) -> CorruptArtifact | None:
    """Return a refusal if a dataset's data are incomplete, in chunks too large, or need a missing plug-in."""
    if dataset.shape is None or 0 in dataset.shape:
        return None
    for code, name in _filters(properties):
        if not h5py.h5z.filter_avail(code):
            return CorruptArtifact(
                f"compressed with {name or 'a filter'} ({code}), which is not installed",
                kind="unknown-codec",
                hint="install the filter's plug-in in HDF5_PLUGIN_PATH",
            )
    logical = math.prod(dataset.shape) * dataset.dtype.itemsize
    if properties.get_layout() != h5py.h5d.CHUNKED:
        stored = dataset.id.get_storage_size()
        return None if stored >= logical else _incomplete(logical, stored, "bytes")
    chunk_bytes = math.prod(dataset.chunks) * dataset.dtype.itemsize
    if chunk_bytes > MAX_CHUNK_BYTES:
        return CorruptArtifact(
            "its chunks are too large, because each must fit in memory",
            kind="chunks-too-large",
            expected=f"at most {MAX_CHUNK_BYTES >> 20} MiB",
            found=f"{chunk_bytes >> 20:,} MiB",
            hint="rewrite it with h5repack and smaller chunks",
        )
    chunks = math.prod(-(-n // c) for n, c in zip(dataset.shape, dataset.chunks, strict=True))
    stored = dataset.id.get_num_chunks()
    return _incomplete(chunks, stored, "chunks") if stored < chunks else None


def _incomplete(declared: int, stored: int, unit: str) -> CorruptArtifact:
    problem = "part of it was never written"
    return CorruptArtifact(
        problem, kind="not-stored", expected=f"{declared:,} {unit}", found=f"{stored:,} stored"
    )


def _filters(properties: Any) -> Iterator[tuple[int, str]]:
    for number in range(properties.get_nfilters()):
        code, _, _, name = properties.get_filter(number)
        yield code, shortened(name.decode(errors="replace"))
