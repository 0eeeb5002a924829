"""Arrays of a Zarr group, opened after codecs that could run code from the file were refused."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import zarr

from iobench.base.errors import CorruptArtifact, corrupt, expecting
from iobench.base.files import regular

OURS = "iobench"
METADATA = {"zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata"}
# what zarr and its codecs raise for damaged metadata and chunks
DAMAGE = (
    *(OSError, ValueError, KeyError, TypeError, RuntimeError),
    *(AttributeError, IndexError, AssertionError, SystemError, MemoryError, OverflowError, RecursionError),
)
# of versions 3 and 2; others, such as numcodecs' pickle, run code from the file
CODECS = {
    *("bytes", "sharding_indexed", "zstd", "blosc", "gzip", "crc32c", "transpose"),
    *("zlib", "lz4", "bz2", "lzma", "shuffle", "delta", "bitround", "fixedscaleoffset", "packbits"),
}


def open_arrays(path: Path) -> tuple[dict[str, zarr.Array[Any]], bool]:
    """Return the arrays of a group and its subgroups by path, or the one at `path`; True if iobench wrote it.

    CorruptArtifact if it is not Zarr, or (``unknown-codec``) if a codec is not one that only decompresses.
    """
    with expecting(path, "a Zarr group", DAMAGE):
        folders = _array_folders(path)
        # consolidated metadata may be stale, and were not checked above
        node = zarr.open(path, mode="r", use_consolidated=False)
        if isinstance(node, zarr.Array):
            return {path.name.partition(".")[0]: node}, False
        # by name, because `members()` warns of each other file in the folder, such as a seal
        named = ((name, node[name]) for name in folders)
        return {n: member for n, member in named if isinstance(member, zarr.Array)}, node.attrs.get(OURS) == 1


def _array_folders(path: Path) -> list[str]:
    """Return the folders of arrays below `path`; CorruptArtifact (``unknown-codec``) for unsafe codecs."""
    folders = []
    for folder, below, names in os.walk(path):
        is_array = [_is_array(Path(folder, name)) for name in sorted(METADATA.intersection(names))]
        for one in is_array:
            folders += [os.path.relpath(folder, path)] if one else []
        if any(is_array):
            below.clear()  # folders of chunks, possibly very many
    return sorted(folders)


def _is_array(file: Path) -> bool:
    """Return True if metadata describe an array; refuses unsafe codecs."""
    if file.is_symlink():
        raise corrupt(file, "metadata in this folder", "a link", kind="link")
    stored = regular(file).read_bytes()
    if file.name not in ("zarr.json", ".zarray"):
        return False
    described = json.loads(stored)
    named = [*(described.get("codecs") or ()), *(described.get("filters") or ())]
    named += [described["compressor"]] if described.get("compressor") else []
    for codec in named:
        _refuse(file, codec)
    return file.name == ".zarray" or described.get("node_type") == "array"


def _refuse(file: Path, codec: Mapping[str, Any]) -> None:
    name = str(codec.get("name") or codec.get("id")).removeprefix("numcodecs.")
    if name not in CODECS:
        raise CorruptArtifact(
            "unknown codec",
            kind="unknown-codec",
            path=file,
            expected=f"one of {', '.join(sorted(CODECS))}",
            found=name,
        )
    options = codec.get("configuration", {})
    for inner in (*options.get("codecs", ()), *options.get("index_codecs", ())):  # of shards
        _refuse(file, inner)
