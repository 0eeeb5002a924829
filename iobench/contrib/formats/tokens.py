"""Format tokens: one flat file of token ids without a header, nanoGPT's `train.bin`, read in windows.

Files with llm.c's header, which modded-nanogpt writes, are read, too: 256 int32, the first three of which
are a magic number, a version and the number of tokens. So are .npy files of one axis of integers.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from iobench.base.errors import CorruptArtifact, UnsupportedSchema, corrupt, expecting
from iobench.base.files import regular
from iobench.base.finding import Finding
from iobench.base.options import option
from iobench.contrib.formats.shared.token_windows import TokenStream, TokenWindows
from iobench.formats import Schema
from iobench.formats.npy import LONGEST, read_plain_header

DATA_FILE = "tokens.bin"
DTYPES = ("uint8", "uint16", "uint32", "uint64")

HEADER, HEADER_BYTES = struct.Struct("<3i"), 1024
HEADERS = {(20240520, 1): "uint16", (20240801, 7): "uint32"}  # by magic and version

HEAD_BYTES = 1 << 20  # of a file, by which its dtype is recognized
MIN_HEAD_BYTES = 1 << 10  # so that no short text is taken for ids of twice the size
MIN_SNIFFED_BYTES = 64 << 10  # so that other numbers surely include one larger than
MOST_ID = 65_500  # Megatron's limit of a vocabulary in uint16
LARGE_HALF = 16  # upper half of an id of 2**20, which no vocabulary reaches


@dataclass(frozen=True)
class Tokens(TokenWindows):
    """A flat file of token ids, read in windows."""

    name: ClassVar[str] = "tokens"
    summary: ClassVar[str] = "one flat .bin of token ids, as nanoGPT's train.bin, read in windows"
    dtypes: ClassVar[frozenset[str]] = frozenset(DTYPES)

    dtype: str | None = option(
        None,
        "dtype of an existing file; by default that of uint16 and uint32 which alone fits it",
        choices=(None, *DTYPES),
    )

    def check_schema(self, schema: Schema) -> None:
        """Raise UnsupportedSchema also for another dtype than the option's."""
        super().check_schema(schema)
        (field,) = schema.fields
        if self.dtype not in (None, field.dtype):
            problem = f"format {self.variant} cannot hold field {field.name}"
            raise UnsupportedSchema(problem, "unsupported-dtype", expected=self.dtype, found=field.dtype)

    def data_file(self, path: Path) -> Path:
        """Return the file of tokens in a folder."""
        return path / DATA_FILE

    def stream(self, path: Path, dtype: str | None) -> TokenStream:
        """Return the tokens of a folder that `write` made, or of a file.

        CorruptArtifact of kind ``unknown-dtype`` if nothing says of which dtype they are.
        """
        told = self.dtype or dtype
        if path.is_dir() and told:
            return TokenStream.to_the_end(self.data_file(path), told)
        return _described(path) or TokenStream.to_the_end(path, told or _certain_dtype(path))

    def sniff(self, path: Path) -> bool:
        """Return True for a .bin file with llm.c's header, or whose content fits ids of one dtype alone."""
        # the data of Megatron and the chunks of LitData are .bin files, too
        others = path.with_suffix(".idx").exists() or (path.parent / "index.json").exists()
        if path.suffix != ".bin" or others:
            return False
        try:
            head = _head(path, HEAD_BYTES)
        except CorruptArtifact:
            return False
        if len(head) < MIN_SNIFFED_BYTES:
            return header_of(head) is not None
        dtype = fitting_dtype(head)
        ids = np.frombuffer(head, "<u2", len(head) // 2)
        return (
            header_of(head) is not None
            or dtype in ("uint32", "uint64")
            or bool(dtype and ids.max() < MOST_ID)
        )

    def notes(self, path: Path, schema: Schema) -> list[Finding]:
        """Return also a note if the dtype was chosen by the content."""
        notes, dtype = super().notes(path, schema), schema.fields[0].dtype
        if self.dtype is None and _described(path) is None:
            message = f"read as {dtype} tokens, which alone fits its content: it has no header"
            other = "uint16" if dtype == "uint32" else "uint32"
            hint = f"if that is wrong, name the format with its dtype, such as {self.name}:dtype={other}"
            notes.append(Finding("inferred-dtype", message, hint, {"dtype": dtype}))
        return notes


def _described(path: Path) -> TokenStream | None:
    """Return the tokens of a file with the header of llm.c or NumPy; None if it has neither.

    CorruptArtifact if the header contradicts the file's size, or is that of other arrays.
    """
    head = _head(path, LONGEST)
    if head.startswith(np.lib.format.MAGIC_PREFIX):
        array = read_plain_header(head, "the file", path)
        if len(array.shape) != 1 or array.dtype.kind not in "ui":
            raise corrupt(path, "one axis of integers", f"{array.dtype.name} {array.shape}")
        described, offset = (array.dtype.name, array.shape[0]), array.offset
    elif header := header_of(head):
        described, offset = header, HEADER_BYTES
    else:
        return None
    stream = TokenStream.to_the_end(path, described[0], offset)
    if stream.tokens != described[1]:
        raise corrupt(path, f"{described[1]:,} tokens, as its header says", f"{stream.tokens:,}")
    return stream


def header_of(head: bytes) -> tuple[str, int] | None:
    """Return dtype and number of tokens by llm.c's header; None if the file does not begin with one."""
    if len(head) < HEADER_BYTES:
        return None
    magic, version, tokens = HEADER.unpack_from(head)
    dtype = HEADERS.get((magic, version))
    return None if dtype is None else (dtype, tokens)


def fitting_dtype(head: bytes) -> str | None:
    """Return uint16, uint32 or uint64, if the first bytes of a file fit ids of that dtype alone.

    As uint32, uint16 ids are far larger than any vocabulary. As uint16, every second word of uint32 ids is
    the upper half of an id, and so small; but every second one of ids of 64 bits would be 0.
    """
    halves = np.frombuffer(head, "<u4", len(head) // 8 * 2)
    if len(head) >= MIN_HEAD_BYTES and halves[::2].any() and not halves[1::2].any():
        return "uint64"
    words = np.frombuffer(head, "<u2", len(head) // 4 * 2)
    lower, upper = words[::2], words[1::2]
    if len(head) % 4 or upper.max(initial=0) >= LARGE_HALF:
        return "uint16"
    large = len(head) >= MIN_HEAD_BYTES and lower[::2].max() >= LARGE_HALF and lower[1::2].any()
    return "uint32" if large else None


def _certain_dtype(path: Path) -> str:
    dtype = fitting_dtype(_head(path, HEAD_BYTES))
    if dtype is None:
        problem, expected = "the dtype of its tokens is not certain", "ids that are surely uint16 or uint32"
        hint = "say which: --format tokens:dtype=uint16 of 'iobench add', or --source-format"
        raise CorruptArtifact(
            problem, "unknown-dtype", path, expected=expected, found="ids that could be both", hint=hint
        )
    return dtype


def _head(path: Path, most: int) -> bytes:
    with expecting(path, "a file of tokens", OSError), open(regular(path), "rb") as file:
        return file.read(most)
