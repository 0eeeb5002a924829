"""The index of LitData chunks: their files and sizes, and the layout of a sample."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.contrib.formats.litdata import leaves
from iobench.contrib.formats.litdata.leaves import leaf_names
from iobench.contrib.formats.shared.offset_shards import (
    SampleColumns,
    ShardColumn,
    inside,
    maps_of,
    offsets_of,
    read_index,
)
from iobench.contrib.formats.shared.placed_reader import Maps
from iobench.formats import Field, fields_by_name

INDEX = "index.json"
LOADER = "PyTreeLoader"
WORD = 4


@dataclass(frozen=True)
class ChunkIndex:
    """Contents of an index: files, samples and bytes of the chunks, name and serializer of each leaf."""

    path: Path
    files: tuple[Path, ...]
    rows: tuple[int, ...]
    sizes: tuple[int, ...]
    leaves: dict[str, str]

    @classmethod
    def read(cls, folder: Path) -> ChunkIndex:
        """Read the index of a folder.

        CorruptArtifact of kind ``invalid-index``, ``outside-folder``, ``compressed``, ``encrypted`` or
        ``unsupported-type`` (of chunks).
        """
        path, (chunks, config) = folder / INDEX, read_chunks(folder)
        if config.get("item_loader") not in (None, LOADER):
            raise CorruptArtifact(
                "its chunks are written for another item loader",
                kind="unsupported-type",
                path=path,
                expected=LOADER,
                found=config["item_loader"],
            )
        sizes = [sizes_of(path, chunk) for chunk in chunks]
        return cls(
            path,
            tuple(inside(folder, chunk.get("filename")) for chunk in chunks),
            tuple(samples for samples, _ in sizes),
            tuple(size for _, size in sizes),
            _serializers(path, config),
        )

    def maps(self) -> Maps:
        """Return the mapped chunks; CorruptArtifact if one is missing or of another size."""
        return maps_of(self.files, self.sizes)

    def fields(self, maps: Maps) -> tuple[Field, ...]:
        """Return the field of each leaf, read from the first sample; CorruptArtifact if not an array."""
        edges = offsets_of(maps[0], self.files[0], self.rows[0])
        sample = maps[0][int(edges[0]) : int(edges[1])].tobytes()
        count = len(self.leaves)
        if len(sample) < WORD * count:
            raise corrupt(self.files[0], f"sizes of {count} leaves", f"{len(sample)} bytes")
        at, fields = WORD * count, []
        names = fields_by_name(self.path, self.leaves)
        for (field, leaf), size in zip(names.items(), struct.unpack_from(f"<{count}I", sample), strict=True):
            fields.append(leaves.field_of(self.path, field, self.leaves[leaf], sample[at : at + size]))
            at += size
        return tuple(fields)

    def items(self, fields: Sequence[Field]) -> SampleColumns:
        """Return a sample's layout with these fields selected; CorruptArtifact if a leaf is another."""
        names = fields_by_name(self.path, self.leaves)
        if missing := [field.name for field in fields if field.name not in names]:
            raise corrupt(self.path, f"leaves {', '.join(missing)}", ", ".join(self.leaves))
        selected = {names[field.name]: field for field in fields}
        columns = []
        for head, (name, kind) in enumerate(self.leaves.items()):
            field = selected.get(name)
            prefix = b"" if field is None else leaves.prefix_of(self.path, name, kind, field)
            count = ">u4" if kind == "tensor" else "<u4"
            columns.append(ShardColumn(None, head, field, prefix, count))
        return SampleColumns(len(columns), tuple(columns))


def read_chunks(folder: Path) -> tuple[list[Any], dict[str, Any]]:
    """Return the entries of the chunks in an index, at least one, and its configuration.

    Raises CorruptArtifact also for chunks that are compressed or encrypted.
    """
    path = folder / INDEX
    index = read_index(path)
    chunks, config = index.get("chunks"), index.get("config")
    if not isinstance(chunks, list) or not chunks or not isinstance(config, dict):
        raise corrupt(path, "an index of LitData chunks", "no chunks", kind="invalid-index")
    for option_name in ("compression", "ipc_compression", "encryption"):
        if config.get(option_name):
            kind = "encrypted" if option_name == "encryption" else "compressed"
            raise CorruptArtifact(
                f"its chunks are {kind}",
                kind=kind,
                path=path,
                found=f"{option_name} {config[option_name]}",
                hint=f"write them without {option_name}",
            )
    return chunks, config


def _serializers(path: Path, config: dict[str, Any]) -> dict[str, str]:
    """Return the serializer of each leaf, by name."""
    kinds, names = config.get("data_format"), leaf_names(path, config.get("data_spec"))
    if not isinstance(kinds, list) or [type(one) for one in kinds] != [str] * len(names):
        raise corrupt(path, f"a serializer for each of {', '.join(names)}", kinds, kind="invalid-index")
    return dict(zip(names, kinds, strict=True))


def sizes_of(path: Path, chunk: Any) -> tuple[int, int]:
    """Return samples and bytes of a chunk."""
    known = chunk if isinstance(chunk, dict) else {}
    samples, size = known.get("chunk_size"), known.get("chunk_bytes")
    if type(samples) is not int or type(size) is not int or samples < 1:
        raise corrupt(path, "samples and bytes of each chunk", f"{samples} and {size}", kind="invalid-index")
    return samples, size
