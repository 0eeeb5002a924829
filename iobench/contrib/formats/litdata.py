"""Format litdata: `index.json` and chunks with a table of offsets, as litdata's PyTreeLoader reads them.

iobench writes one dict per sample, whose leaves are NumPy arrays with litdata's header (dtype and shape),
so samples of one shape are at a constant stride in each chunk. Existing folders may also hold tensors,
numbers, and bytes. The caller names the fields of bytes, and those whose samples differ in length. Nothing is
unpickled. Chunks for litdata's TokensLoader hold tokens end to end, read in windows that do not cross chunks.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from iobench.base.errors import CorruptArtifact, corrupt, expecting
from iobench.base.files import path_below
from iobench.base.finding import Finding
from iobench.base.options import option
from iobench.base.units import counted
from iobench.contrib.formats.shared.external import FIXED, not_fixed
from iobench.contrib.formats.shared.offset_shards import (
    INDEX,
    MOST_SAMPLE_BYTES,
    WORD,
    OffsetShards,
    ShardColumn,
    maps_of,
    ragged_records,
    read_index,
    table,
)
from iobench.contrib.formats.shared.record_writer import ShardWriter, shards_bound
from iobench.contrib.formats.shared.records import Column, RecordFormat, Records, RecordSource
from iobench.contrib.formats.shared.token_windows import WINDOW, window_field
from iobench.formats import DTYPES, Batch, Field, Index, Schema, fields_by_name, unsupported_dtype
from iobench.formats.folders import NOT_READ

LOADER, TOKENS_LOADER = "PyTreeLoader", "TokensLoader"
# litdata's numbers of NumPy's and torch's dtypes; two numbers of a torch dtype are synonyms
INTEGERS, OTHERS = "int8 int16 int32 int64 uint8 uint16 uint32 uint64", "float16 float32 float64"
NUMPY = {n: number for number, n in enumerate(f"{INTEGERS} {OTHERS} complex64 complex128 bool".split())}
TORCH = {
    "float32": (0, 1),
    "float64": (2, 3),
    "complex64": (4, 5),
    "complex128": (6, 7),
    "float16": (8, 9),
    "uint8": (11,),
    "int8": (12,),
    "int16": (13, 14),
    "int32": (15, 16),
    "int64": (17, 18),
    "bool": (19,),
    "uint16": (20,),
}
NUMPY_NAMES = {number: name for name, number in NUMPY.items()}
TORCH_NAMES = {number: name for name, numbers in TORCH.items() for number in numbers}
TOKENS = {"no_header_numpy": NUMPY_NAMES, "no_header_tensor": TORCH_NAMES}  # names by litdata's numbers
SCALARS = {"int": "int64", "float": "float64", "bool": "bool"}
MOST_AXES = 32
HINTS = {
    "pickle": "store an array or a tensor; iobench never unpickles data",
    "bytes": "name the fields to read, with dtype and shape: --field 'x=float32[3,4]', or 'x=uint16[*]'",
}


@dataclass(frozen=True)
class LitData(RecordFormat):
    """An index and chunks for litdata's StreamingDataset."""

    name: ClassVar[str] = "litdata"
    summary: ClassVar[str] = "LitData chunks with an index, one array per field"
    library: ClassVar[str] = "numpy"
    dtypes: ClassVar[frozenset[str]] = frozenset(NUMPY) - {"complex64", "complex128"}
    holds_ragged: ClassVar[bool] = True

    chunk_bytes: int = option(
        64 << 20, "maximum bytes per chunk", minimum=1, maximum=(1 << 32) - 1, unit="bytes"
    )
    window: int = option(WINDOW, "tokens per sample of existing chunks for TokensLoader", minimum=2)

    def check_schema(self, schema: Schema) -> None:
        """Raise UnsupportedSchema also for samples that are too large for a chunk."""
        super().check_schema(schema)
        self._refuse_large(schema, schema.sample_bytes, MOST_SAMPLE_BYTES, "a chunk")

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write the chunks, then the index."""
        path.mkdir()
        writer = _ChunkWriter(path, schema, self.chunk_bytes)
        writer.write_index(writer.write(batches))

    def source(self, path: Path, schema: Schema | None = None) -> RecordSource:
        """Compare the sizes of chunks and index, and open the chunks."""
        if tokens := TokenChunks.read(path):
            return tokens.opened(self.window if schema is None else schema.fields[0].elements)
        return Chunks.read(path).opened()

    def size_bound(self, schema: Schema) -> int:
        """Return the samples with their headers plus the chunks' tables."""
        heads = WORD + sum(WORD + len(header_of(field)) for field in schema.fields)
        return shards_bound(schema, heads, self.chunk_bytes, 1024)

    def sniff(self, path: Path) -> bool:
        """Return True for a folder whose index lists chunks."""
        try:
            index = read_index(path / INDEX)
        except CorruptArtifact:
            return False
        return isinstance(index.get("chunks"), list) and isinstance(index.get("config"), dict)

    def files(self, path: Path) -> Sequence[Path]:
        """Return the index and the chunks that it lists."""
        return [path / INDEX, *(TokenChunks.read(path) or Chunks.read(path)).files]

    def notes(self, path: Path, schema: Schema) -> list[Finding]:
        """Return the tokens that are in no window, of chunks for TokensLoader."""
        chunks = TokenChunks.read(path)
        return chunks.notes(self.window) if chunks else []


class Chunks(OffsetShards):
    """Chunks of an index; what is `stored` are the serializers of a sample's leaves."""

    @classmethod
    def read(cls, folder: Path) -> Chunks:
        """Read the index of a folder.

        CorruptArtifact of kind ``invalid-index``, ``outside-folder``, ``compressed``, ``encrypted`` or
        ``unsupported-type`` (of chunks).
        """
        path, (chunks, config) = folder / INDEX, _read_chunks(folder)
        if config.get("item_loader") not in (None, LOADER):
            problem = "its chunks are written for another item loader"
            raise CorruptArtifact(
                problem, "unsupported-type", path, expected=LOADER, found=config["item_loader"]
            )
        rows, sizes = zip(*(_sizes_of(path, chunk) for chunk in chunks), strict=True)
        read = cls(path, [path_below(folder, chunk.get("filename")) for chunk in chunks], rows, sizes)
        kinds, names = config.get("data_format"), _leaf_names(path, config.get("data_spec"))
        if not isinstance(kinds, list) or [type(one) for one in kinds] != [str] * len(names):
            raise corrupt(path, f"a serializer for each of {', '.join(names)}", kinds, kind="invalid-index")
        read.stored = dict(zip(names, kinds, strict=True))
        return read

    def fields(self, records: Records) -> tuple[Field, ...]:
        """Return the field of each leaf, read from the first sample; CorruptArtifact if not an array."""
        sample, count = bytes(records.data(0)), len(self.stored)
        if len(sample) < WORD * count:
            raise corrupt(records.path(0), f"sizes of {count} leaves", f"{len(sample)} bytes")
        at, fields = WORD * count, []
        names = fields_by_name(self.path, self.stored)
        for (field, leaf), size in zip(names.items(), struct.unpack_from(f"<{count}I", sample), strict=True):
            fields.append(_field_of(self.path, field, self.stored[leaf], sample[at : at + size]))
            at += size
        return tuple(fields)

    def column(self, name: str, field: Field | None) -> ShardColumn:
        """Return a leaf, which holds a field if one is given; CorruptArtifact if it holds another."""
        kind = self.stored[name]
        prefix = b"" if field is None else _prefix_of(self.path, name, kind, field)
        return ShardColumn(None, field, prefix, ">u4" if kind == "tensor" else "<u4")


@dataclass
class TokenChunks(RecordSource):
    """Chunks of tokens; of each its size, the byte at which its tokens begin, and their number."""

    path: Path
    files: tuple[Path, ...]
    sizes: tuple[int, ...]
    begins: tuple[int, ...]
    tokens: tuple[int, ...]
    dtype: str
    window: int = 0

    @classmethod
    def read(cls, folder: Path) -> TokenChunks | None:
        """Read the index of a folder; None if its chunks are for another item loader.

        CorruptArtifact of kind ``invalid-index``, ``outside-folder``, ``compressed`` or ``encrypted``.
        """
        chunks, config = _read_chunks(folder)
        if config.get("item_loader") != TOKENS_LOADER:
            return None
        path, serializers = folder / INDEX, config.get("data_format")
        stated = serializers[0] if isinstance(serializers, list) and serializers else ""
        name, _, number = str(stated).partition(":")
        dtype = TOKENS.get(name, {}).get(int(number) if number.isdecimal() else -1)
        if dtype is None:
            expected = "a serializer of tokens, as no_header_tensor:16"
            raise corrupt(path, expected, serializers, kind="invalid-index")
        items, sizes = zip(*(_sizes_of(path, chunk) for chunk in chunks), strict=True)
        begins = [WORD * (2 + count) for count in items]  # behind the number of items and their offsets
        tokens = [chunk.get("dim") for chunk in chunks]
        width = np.dtype(dtype).itemsize
        for size, begin, count in zip(sizes, begins, tokens, strict=True):
            if type(count) is not int or size != begin + count * width:
                expected, found = f"chunks of {dtype} tokens", f"{size} bytes, dim {count}"
                raise corrupt(path, expected, found, kind="invalid-index")
        files = tuple(path_below(folder, chunk.get("filename")) for chunk in chunks)
        return cls(path, files, sizes, tuple(begins), tuple(tokens), dtype)

    def opened(self, window: int) -> TokenChunks:
        """Map the chunks for windows of so many tokens; CorruptArtifact if a chunk has other items."""
        self.window, self.maps = window, maps_of(self.files, self.sizes)
        self.samples = sum(count // window for count in self.tokens)
        for number, (file, begin) in enumerate(zip(self.files, self.begins, strict=True)):
            items = int(self.maps[number][:WORD].view("<u4")[0])
            if items != begin // WORD - 2:
                raise corrupt(file, counted(begin // WORD - 2, "item"), items)
        return self

    def scan(self) -> Iterator[Records]:
        """Yield the windows of each chunk."""
        first, width = 0, self.window * np.dtype(self.dtype).itemsize
        for number, (begin, tokens) in enumerate(zip(self.begins, self.tokens, strict=True)):
            rows = np.arange(tokens // self.window)
            file, length = np.full(len(rows), number), np.full(len(rows), width)
            yield Records(self.maps, file, begin + rows * width, length, first)
            first += len(rows)

    def fields(self, records: Records) -> tuple[Field, ...]:
        """Return the field of a window; CorruptArtifact (``too-few-tokens``) if no chunk holds one."""
        most = max(self.tokens)
        return (window_field(self.path, "litdata", self.window, self.dtype, most, " in a chunk"),)

    def check(self, fields: Sequence[Field]) -> None:
        """Raise CorruptArtifact for other fields than windows of tokens."""
        for field in fields:
            if len(fields) > 1 or (field.shape, field.dtype) != ((self.window,), self.dtype):
                raise corrupt(self.path, field.typed, f"windows of {self.dtype} tokens")

    def columns(
        self, records: Records, fields: Sequence[Field], thorough: bool = False
    ) -> Mapping[str, Column]:
        """Return the windows."""
        return {fields[0].name: Column(records.offset)}

    def notes(self, window: int) -> list[Finding]:
        """Return the tokens at the ends of chunks that are in no window."""
        total, rest = sum(self.tokens), sum(count % window for count in self.tokens)
        if not rest:
            return []
        message = f"{counted(rest, 'token')} of {total:,}, at the ends of chunks, are in no window"
        return [Finding(NOT_READ, message, values={"tokens": total, "left_over": rest})]


def _read_chunks(folder: Path) -> tuple[list[Any], dict[str, Any]]:
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
            problem, found = f"its chunks are {kind}", f"{option_name} {config[option_name]}"
            raise CorruptArtifact(problem, kind, path, found=found, hint=f"write them without {option_name}")
    return chunks, config


def _sizes_of(path: Path, chunk: Any) -> tuple[int, int]:
    known = chunk if isinstance(chunk, dict) else {}
    samples, size = known.get("chunk_size"), known.get("chunk_bytes")
    if type(samples) is not int or type(size) is not int or samples < 1:
        raise corrupt(path, "samples and bytes of each chunk", f"{samples} and {size}", kind="invalid-index")
    return samples, size


def header_of(field: Field, count: int = 0) -> bytes:
    """Return the header that litdata's serializer of NumPy arrays writes before the values.

    `count` is the length of the sample, if the field is ragged.
    """
    shape = _shape(field, count)
    return struct.pack(
        f"<{2 + len(shape)}I", NUMPY[field.dtype], len(shape), *(n & 0xFFFFFFFF for n in shape)
    )


def _shape(field: Field, count: int) -> tuple[int, ...]:
    return (count, *field.inner) if field.is_ragged else field.shape


def _prefix_of(path: Path, name: str, kind: str, field: Field) -> bytes:
    """Return the bytes before the values of a field in a leaf.

    `kind` is the serializer's name in litdata's index. The length of a ragged sample is 0 there.

    CorruptArtifact if the leaf has another dtype or shape, or of kind ``fields-needed`` or
    ``encoded-values``.
    """
    kind, _, number = kind.partition(":")
    if kind == "numpy" and field.dtype in NUMPY:
        return header_of(field)
    if kind == "tensor" and field.dtype in TORCH:  # litdata writes the last of the numbers
        shape = _shape(field, 0)
        return struct.pack(f">{2 + len(shape)}I", TORCH[field.dtype][-1], len(shape), *shape)
    known = TOKENS.get(kind)
    dtype = SCALARS.get(kind) if known is None else known.get(int(number) if number.isdigit() else -1)
    if known is None and kind not in (*SCALARS, "bytes"):
        raise _refused(path, name, kind)
    if kind != "bytes" and (dtype != field.dtype or (kind in SCALARS and field.shape)):
        raise corrupt(path, f"leaf {name} as {field.dtype} {field.shape}", kind if dtype is None else dtype)
    return b""


def _field_of(path: Path, name: str, kind: str, stored: bytes) -> Field:
    """Return name, shape and dtype of a leaf, from its bytes in the first sample.

    CorruptArtifact of kind ``unsupported-dtype``, ``unequal-shapes``, ``fields-needed`` or
    ``encoded-values``.
    """
    kind, _, number = kind.partition(":")
    if kind in SCALARS:
        return Field(name, (), SCALARS[kind])
    if kind in ("numpy", "tensor"):
        order = "<" if kind == "numpy" else ">"
        code, axes = struct.unpack_from(f"{order}2I", stored.ljust(8, b"\xff"))
        if axes > MOST_AXES or len(stored) < 8 + 4 * axes:
            raise corrupt(path, f"dtype and shape of leaf {name} in the first sample", f"{axes} axes")
        shape = struct.unpack_from(f"{order}{axes}I", stored, 8)
    elif kind in ("no_header_numpy", "no_header_tensor") and number.isdigit():
        code, shape = int(number), None
    else:
        raise _refused(path, name, kind)
    dtype = (NUMPY_NAMES if "numpy" in kind else TORCH_NAMES).get(code)
    if dtype not in DTYPES:
        raise unsupported_dtype(path, f"leaf {name}", dtype or f"litdata's dtype {code}")
    if shape is None:
        shape = (len(stored) // Field(name, (), dtype).sample_bytes,)
    if 0 in shape:
        raise not_fixed(path, f"leaf {name}", f"an empty array of shape {shape} in the first sample")
    return Field(name, shape, dtype)


def _refused(path: Path, name: str, kind: str) -> CorruptArtifact:
    return CorruptArtifact(
        f"leaf {name} does not describe an array of one shape",
        kind="fields-needed" if kind == "bytes" else "encoded-values",
        path=path,
        found=f"litdata's type {kind}",
        hint=HINTS.get(kind, f"decode it, and {FIXED}"),
    )


def _leaf_names(path: Path, spec: object) -> list[str]:
    """Return the name of each leaf, its keys joined by `/`, from the JSON description of a sample."""
    damage = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
    with expecting(path, "a description of samples", damage, kind="invalid-index"):
        _, tree = json.loads(spec if isinstance(spec, str) else "")
        names = _names(tree, ())
    if len(set(names)) != len(names) or not names:
        raise corrupt(path, "leaves of distinct names", ", ".join(names) or "none", kind="invalid-index")
    return names


def _names(tree: dict[str, Any], above: tuple[str, ...]) -> list[str]:
    kind, children = tree["type"], tree["children_spec"]
    if kind is None:
        return ["/".join(above) or "sample"]
    if kind == "builtins.dict":
        keys = [str(key) for key in json.loads(tree["context"])]
    elif kind in ("builtins.list", "builtins.tuple"):
        keys = [str(number) for number in range(len(children))]
    else:
        raise ValueError(f"samples of type {kind}, not dict, list or tuple")
    return [name for key, child in zip(keys, children, strict=True) for name in _names(child, (*above, key))]


class _ChunkWriter(ShardWriter):
    """Writer of chunks: per sample the size of each leaf, then the leaves, each with its header."""

    def __init__(self, path: Path, schema: Schema, chunk_bytes: int) -> None:
        self._path, self._chunk_bytes = path, chunk_bytes
        sizes = [len(header_of(field)) + field.sample_bytes for field in schema.fields]
        parts: list[bytes | Field] = [struct.pack(f"<{len(sizes)}I", *(size & 0xFFFFFFFF for size in sizes))]
        for field in schema.fields:
            parts += [header_of(field), field]
        super().__init__(schema, parts, chunk_bytes, 2 * WORD, WORD)

    def path_of(self, number: int) -> Path:
        return self._path / f"chunk-0-{number}.bin"

    def begin(self, sizes: Index) -> bytes:
        return table(sizes)

    def records(self, batches: Iterable[Batch]) -> Iterator[bytes]:
        return ragged_records("litdata", self.schema.fields, batches, header_of)

    def write_index(self, rows: Sequence[int]) -> None:
        """Write the index: the chunks, with the samples of each, and the description of a sample."""
        leaf: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
        names = [field.name for field in self.schema.fields]
        spec = {"type": "builtins.dict", "context": json.dumps(names), "children_spec": [leaf] * len(names)}
        config = {
            "chunk_bytes": self._chunk_bytes,
            "chunk_size": None,
            "compression": None,
            "data_format": ["numpy"] * len(names),
            "data_spec": json.dumps([1, spec]),
            "encryption": None,
            "item_loader": LOADER,
        }
        chunks = []
        for number, count in enumerate(rows):
            file = self.path_of(number)
            entry = {"chunk_size": count, "chunk_bytes": file.stat().st_size, "filename": file.name}
            chunks.append(entry | {"dim": None})
        (self._path / INDEX).write_text(json.dumps({"chunks": chunks, "config": config}, sort_keys=True))
