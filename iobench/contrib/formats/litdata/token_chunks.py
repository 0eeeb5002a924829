"""Chunks for litdata's TokensLoader: tokens end to end, read in windows that do not cross chunks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from iobench.base.errors import corrupt
from iobench.base.finding import Finding
from iobench.base.units import counted
from iobench.contrib.formats.litdata.chunk_index import INDEX, WORD, read_chunks, sizes_of
from iobench.contrib.formats.litdata.leaves import NUMPY_NAMES, TORCH_NAMES
from iobench.contrib.formats.shared.offset_shards import inside, maps_of
from iobench.contrib.formats.shared.placed_reader import FieldLocations, Maps, PlacedReader
from iobench.contrib.formats.shared.token_windows import window_field
from iobench.formats import Chunked, Schema

LOADER = "TokensLoader"
DTYPES = {"no_header_numpy": NUMPY_NAMES, "no_header_tensor": TORCH_NAMES}  # names by litdata's numbers


@dataclass(frozen=True)
class TokenChunks:
    """Chunks of tokens; of each its file, its size, the byte at which its tokens begin, and their number."""

    path: Path
    files: tuple[Path, ...]
    sizes: tuple[int, ...]
    begins: tuple[int, ...]
    tokens: tuple[int, ...]
    dtype: str

    @classmethod
    def read(cls, folder: Path) -> TokenChunks | None:
        """Read the index of a folder; None if its chunks are for another item loader.

        CorruptArtifact of kind ``invalid-index``, ``outside-folder``, ``compressed`` or ``encrypted``.
        """
        chunks, config = read_chunks(folder)
        if config.get("item_loader") != LOADER:
            return None
        path, dtype = folder / INDEX, _dtype(folder / INDEX, config.get("data_format"))
        items, sizes = zip(*(sizes_of(path, chunk) for chunk in chunks), strict=True)
        begins = [WORD * (2 + count) for count in items]  # behind the number of items and their offsets
        tokens = [chunk.get("dim") for chunk in chunks]
        width = np.dtype(dtype).itemsize
        for size, begin, count in zip(sizes, begins, tokens, strict=True):
            if type(count) is not int or size != begin + count * width:
                raise corrupt(
                    path, f"chunks of {dtype} tokens", f"{size} bytes, dim {count}", kind="invalid-index"
                )
        files = tuple(inside(folder, chunk.get("filename")) for chunk in chunks)
        return cls(path, files, sizes, tuple(begins), tuple(tokens), dtype)

    def schema(self, window: int) -> Schema:
        """Return the schema of the windows; CorruptArtifact of kind ``too-few-tokens`` for a single one."""
        field = window_field(self.path, "litdata", window, self.dtype, max(self.tokens), " in a chunk")
        return Schema(sum(self._windows(window)), (field,))

    def open(self, schema: Schema) -> PlacedReader:
        """Compare chunks, index and schema, and return a reader."""
        (field, *others) = schema.fields
        if others or len(field.shape) != 1 or (expected := self.schema(*field.shape)) != schema:
            raise corrupt(self.path, schema.describe(), f"windows of {self.dtype} tokens")
        maps = maps_of(self.files, self.sizes)
        self._check_heads(maps)
        rows = self._windows(*field.shape)
        first = np.cumsum([0, *rows[:-1]])
        numbers = np.arange(len(self.files))
        place = Chunked(self.files, first, numbers, np.array(self.begins), field.sample_bytes)
        return PlacedReader(expected, maps, lambda load_or_build: FieldLocations({field.name: place}))

    def notes(self, window: int) -> list[Finding]:
        """Return the tokens at the ends of chunks that are in no window."""
        total, rest = sum(self.tokens), sum(count % window for count in self.tokens)
        if not rest:
            return []
        message = f"{counted(rest, 'token')} of {total:,}, at the ends of chunks, are in no window"
        return [Finding("coverage", message, values={"tokens": total, "left_over": rest})]

    def _windows(self, window: int) -> list[int]:
        return [count // window for count in self.tokens]

    def _check_heads(self, maps: Maps) -> None:
        """Raise CorruptArtifact if a chunk has another number of items than the index says."""
        for number, (file, begin) in enumerate(zip(self.files, self.begins, strict=True)):
            items = int(maps[number][:WORD].view("<u4")[0])
            if items != begin // WORD - 2:
                raise corrupt(file, counted(begin // WORD - 2, "item"), items)


def _dtype(path: Path, serializers: Any) -> str:
    """Return the dtype of the tokens by the serializer in an index."""
    name, _, number = str(serializers[0] if isinstance(serializers, list) and serializers else "").partition(
        ":"
    )
    dtype = DTYPES.get(name, {}).get(int(number) if number.isdecimal() else -1)
    if dtype is None:
        raise corrupt(
            path, "a serializer of tokens, as no_header_tensor:16", serializers, kind="invalid-index"
        )
    return dtype
