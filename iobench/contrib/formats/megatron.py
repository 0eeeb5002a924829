"""Format megatron: Megatron-LM's `.bin` of tokens with its `.idx`, read as one stream in windows.

The index holds a magic number, the version, a code of the dtype, the numbers of sequences and of document
borders; the length of each sequence (int32), its byte offset in the .bin (int64) and the borders of the
documents as numbers of sequences (int64). Windows cross the borders, as those of Megatron's GPTDataset do.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from iobench.base.errors import CorruptArtifact, corrupt, expecting
from iobench.base.files import begins_with, regular
from iobench.base.finding import Finding
from iobench.base.units import counted
from iobench.contrib.formats.shared.external import first_true
from iobench.contrib.formats.shared.token_windows import TokenStream, TokenWindows
from iobench.formats import Array, Checkable, Field, Schema, raw_bytes

DATA_FILE, INDEX_FILE = "tokens.bin", "tokens.idx"
MAGIC, VERSION = b"MMIDIDX\0\0", 1
HEADER = struct.Struct("<9sQBQQ")
CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8}
DTYPES = {code: dtype for dtype, code in CODES.items()}
PIECE = 1 << 20  # sequences that are checked or written at once


@dataclass(frozen=True)
class Megatron(TokenWindows, Checkable):
    """Megatron's tokens with their index, read in windows."""

    name: ClassVar[str] = "megatron"
    summary: ClassVar[str] = "Megatron-LM's .bin of tokens with an .idx, read in windows"
    dtypes: ClassVar[frozenset[str]] = frozenset(CODES)

    def size_bound(self, schema: Schema) -> int:
        """Return the tokens and the index."""
        return super().size_bound(schema) + 20 * schema.samples

    def data_file(self, path: Path) -> Path:
        """Return the file of tokens in a folder."""
        return path / DATA_FILE

    def stream(self, path: Path, dtype: str | None) -> TokenStream:
        """Return the tokens of a folder that `write` made, or of a .bin with its .idx beside it.

        Compares the end of the last sequence with the size of the file; `check` looks at all of them.
        """
        index = self._index(path)
        stream = TokenStream.to_the_end(self._data(path), index.dtype)
        if index.tokens != stream.tokens:
            raise corrupt(stream.file, f"{index.tokens:,} tokens, as {index.file.name} says", stream.tokens)
        return stream

    def check(self, path: Path, schema: Schema) -> None:
        """Raise CorruptArtifact if the index lies about its sequences or documents."""
        self._index(path).check()

    def sniff(self, path: Path) -> bool:
        """Return True for a .bin whose .idx begins with Megatron's magic, and for that .idx."""
        known = path.suffix in (".bin", ".idx") and path.is_file()
        return known and begins_with(path.with_suffix(".idx"), MAGIC)

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema of the windows in a .bin file; checks the whole index."""
        schema = super().infer_schema(path, fields)
        self.check(path, schema)
        return schema

    def notes(self, path: Path, schema: Schema) -> list[Finding]:
        """Return also a note on documents whose borders are inside windows."""
        documents = len(self._index(path).borders) - 1
        message = (
            f"windows cross the borders of {counted(documents, 'document')}, in stored order: Megatron's "
            "GPTDataset shuffles the documents first, and crosses their borders, too"
        )
        notes = super().notes(path, schema)
        return [*notes, Finding("documents", message, values={"documents": documents})]

    def finish(self, path: Path, schema: Schema, stride: int) -> None:
        """Write the index: each window is a document, without the tokens shared with the one before."""
        (field,) = schema.fields
        lengths = np.full(schema.samples, stride, "<i4")
        lengths[0] = field.shape[0]
        ends = np.cumsum(lengths, dtype="<i8") * np.dtype(field.dtype).itemsize
        header = HEADER.pack(MAGIC, VERSION, CODES[field.dtype], len(lengths), len(lengths) + 1)
        with open(path / INDEX_FILE, "wb") as file:
            file.write(header)
            for array in (lengths, np.append(0, ends[:-1]), np.arange(len(lengths) + 1)):
                file.write(raw_bytes(array))

    def _index(self, path: Path) -> MegatronIndex:
        return MegatronIndex.read(self._data(path).with_suffix(".idx"))

    def _data(self, path: Path) -> Path:
        if path.suffix == ".idx" and not path.is_dir():
            hint = f"name the tokens themselves: {path.with_suffix('.bin')}"
            raise CorruptArtifact("the index of a file of tokens", "index-file", path, hint=hint)
        return self.data_file(path) if path.is_dir() else path


@dataclass(frozen=True)
class MegatronIndex:
    """An index: its arrays are maps of the file."""

    file: Path
    dtype: str
    lengths: Array  # tokens of each sequence
    pointers: Array  # byte offset of each sequence among the tokens
    borders: Array  # number of the first sequence of each document, and one past the last

    @classmethod
    def read(cls, file: Path) -> MegatronIndex:
        """Map an index; CorruptArtifact if its header and its size contradict each other."""
        with expecting(file, "Megatron's index of the tokens", OSError), open(regular(file), "rb") as opened:
            head, size = opened.read(HEADER.size), os.fstat(opened.fileno()).st_size
        magic, version, code, sequences, borders = HEADER.unpack(head.ljust(HEADER.size, b"\xff"))
        if (magic, version) != (MAGIC, VERSION) or code not in DTYPES:
            expected = f"{MAGIC!r}, version {VERSION} and a dtype from 1 to {max(DTYPES)}"
            raise corrupt(file, expected, f"{magic!r}, {version} and {code}")
        expected_size = HEADER.size + sequences * 12 + borders * 8
        if size != expected_size:
            raise corrupt(
                file,
                f"an index of {expected_size:,} bytes for {sequences:,} sequences, {borders:,} borders",
                f"{size:,}",
            )
        stored = np.memmap(file, np.uint8, "r")[HEADER.size :]
        lengths, pointers = stored[: 4 * sequences], stored[4 * sequences : 12 * sequences]
        arrays = (lengths.view("<i4"), pointers.view("<i8"), stored[12 * sequences :].view("<i8"))
        return cls(file, DTYPES[code], *map(np.asarray, arrays))

    @property
    def tokens(self) -> int:
        """Number of tokens up to the end of the last sequence; unchecked until `check`."""
        if not len(self.lengths):
            return 0
        return int(self.pointers[-1]) // np.dtype(self.dtype).itemsize + int(self.lengths[-1])

    def check(self) -> None:
        """Raise CorruptArtifact unless the sequences lie end to end, and the borders lie among them."""
        end, width = 0, np.dtype(self.dtype).itemsize
        for low in range(0, len(self.lengths), PIECE):
            lengths = self.lengths[low : low + PIECE].astype(np.int64)
            begins = end + np.cumsum(lengths) - lengths
            pointers = self.pointers[low : low + PIECE]
            if (at := first_true((lengths < 0) | (pointers != begins * width))) is not None:
                raise corrupt(
                    self.file,
                    f"sequence {low + at} of {self.file.name} from byte {begins[at] * width:,} on",
                    f"{lengths[at]:,} tokens from byte {pointers[at]:,} on",
                )
            end = int(begins[-1] + lengths[-1])
        self._check_borders()

    def _check_borders(self) -> None:
        ends = self.borders[[0, -1]].tolist() if len(self.borders) else []
        falling = any(
            (np.diff(self.borders[low : low + PIECE + 1]) < 0).any()
            for low in range(0, len(self.borders), PIECE)
        )
        if ends != [0, len(self.lengths)] or falling:
            expected = f"rising borders of documents in {self.file.name} from 0 to {len(self.lengths)}"
            raise corrupt(self.file, expected, "falling ones" if falling else ends)
