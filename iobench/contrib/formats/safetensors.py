"""Format safetensors: one file with a JSON header and the fields as in memory.

Layout: the header's size as u64, little-endian; the header, `{name: {dtype, shape, data_offsets}}`, with
offsets counted from its end; the data, without gaps.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from iobench.base.errors import corrupt, expecting
from iobench.base.files import regular
from iobench.formats import (
    ArrayFormat,
    Batch,
    Detectable,
    Field,
    MappedReader,
    Rows,
    Schema,
    StoredArray,
    Strided,
    array_of,
    fields_by_name,
    raw_bytes,
    read_only,
    select_arrays,
    selected_schema,
    split_selection,
)

DATA_FILE = "data.safetensors"
SIZE = struct.Struct("<Q")
ALIGNMENT = 64  # of the data in the file; the library requires 8

# the library's name of each dtype
CODES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
}
NAMES = {code: dtype for dtype, code in CODES.items()}


@dataclass(frozen=True)
class Safetensors(ArrayFormat, Detectable):
    """One file, `data.safetensors`, with one tensor per field."""

    name: ClassVar[str] = "safetensors"
    summary: ClassVar[str] = "one safetensors file, one tensor per field, memory-mapped"
    library: ClassVar[str] = "safetensors"
    modules: ClassVar[tuple[str, ...]] = ("safetensors",)
    dtypes: ClassVar[frozenset[str]] = frozenset(CODES)
    selectable: ClassVar[bool] = True

    def write_arrays(self, path: Path, arrays: Collection[StoredArray], batches: Iterable[Batch]) -> None:
        """Write the header, then each batch at its offset in every array."""
        path.mkdir()
        header, offsets = _header(arrays)
        with open(path / DATA_FILE, "wb") as file:
            file.write(header)
            file.truncate(len(header) + sum(array.nbytes for array in arrays))
            for batch in batches:
                for name, rows in batch.items():
                    file.seek(offsets[name])
                    file.write(raw_bytes(rows))
                    offsets[name] += rows.nbytes

    def open_arrays(self, path: Path, schema: Schema, random: bool = False) -> SafetensorsReader:
        """Check the header, and return a reader over a read-only map."""
        file = path / DATA_FILE if path.is_dir() else path
        tensors = read_header(file)
        names = fields_by_name(file, tensors)
        places = {
            f.name: _place(file, f, schema.samples, tensors.get(names.get(f.name, ""))) for f in schema.fields
        }
        return SafetensorsReader(file, schema, places, {f.name: names[f.name] for f in schema.fields})

    def sniff(self, path: Path) -> bool:
        """Return True for a file whose name ends in .safetensors."""
        return path.suffix == ".safetensors" and path.is_file()

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema of all tensors in a file's header, or of those that follow `::`.

        The first axis of each is the sample axis.
        """
        path, chosen = split_selection(path)
        every = {name: (one.shape, one.dtype) for name, one in read_header(path).items()}
        return selected_schema(path, every, select_arrays(path, every, chosen), fields)


@dataclass(frozen=True)
class Tensor:
    """A tensor in a header; `dtype` is NumPy's name, or the library's if iobench does not hold it."""

    shape: tuple[int, ...]
    dtype: str
    offset: int


def read_header(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a file by name, with offsets from the start of the file.

    CorruptArtifact if the library finds the header damaged, or data that leave gaps in the file.
    """
    from safetensors import SafetensorError, safe_open

    with expecting(file, "a safetensors file", (OSError, ValueError, SafetensorError)):
        safe_open(regular(file), framework="np")
        with open(file, "rb") as opened:
            (length,) = SIZE.unpack(opened.read(SIZE.size))
            described = json.loads(opened.read(length))
    described.pop("__metadata__", None)
    return {
        name: Tensor(
            tuple(one["shape"]),
            NAMES.get(one["dtype"], one["dtype"]),
            SIZE.size + length + one["data_offsets"][0],
        )
        for name, one in described.items()
    }


class SafetensorsReader(MappedReader):
    """Reads rows of the map; `native` reads torch tensors that the library maps."""

    def __init__(
        self, file: Path, schema: Schema, places: Mapping[str, int], names: Mapping[str, str]
    ) -> None:
        whole = np.memmap(file, np.uint8, "r")
        arrays = {
            f.name: np.ndarray((schema.samples, *f.shape), f.dtype, whole, places[f.name])
            for f in schema.fields
        }
        lie = {f.name: Strided((file,), places[f.name], f.sample_bytes) for f in schema.fields}
        super().__init__(schema, arrays, lie)
        self._file, self._names = file, names
        self._tensors: dict[str, Any] | None = None

    def native(self, rows: Rows) -> Batch:
        """Return rows of the torch tensors that the library maps; a slice reads nothing."""
        self._mapped()
        checked, _ = self._checked(rows)
        import torch

        if self._tensors is None:
            self._tensors = self._loaded()
        if isinstance(checked, slice):
            return {name: read_only(array_of(tensor[checked])) for name, tensor in self._tensors.items()}
        index = torch.from_numpy(checked)
        return {name: array_of(tensor[index]) for name, tensor in self._tensors.items()}

    def _loaded(self) -> dict[str, Any]:
        from safetensors import SafetensorError, safe_open

        with (
            expecting(self._file, "a safetensors file", SafetensorError),
            safe_open(self._file, framework="pt") as opened,
        ):
            return {field: opened.get_tensor(name) for field, name in self._names.items()}

    def close(self) -> None:
        """Drop the maps; they are released with the last view of them."""
        super().close()
        self._tensors = None


def _header(arrays: Collection[StoredArray]) -> tuple[bytes, dict[str, int]]:
    """Return the header, padded with spaces, and each array's offset; the widest dtype comes first."""
    described: dict[str, dict[str, Any]] = {}
    offset = 0
    for array in sorted(arrays, key=lambda array: -np.dtype(array.row.dtype).itemsize):
        end, code = offset + array.nbytes, CODES[array.row.dtype]
        described[array.name] = {"dtype": code, "shape": [*array.shape], "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(described).encode()
    text += b" " * (-(SIZE.size + len(text)) % ALIGNMENT)
    base = SIZE.size + len(text)
    offsets = {name: base + entry["data_offsets"][0] for name, entry in described.items()}
    return SIZE.pack(len(text)) + text, offsets


def _place(file: Path, field: Field, samples: int, tensor: Tensor | None) -> int:
    """Return the offset of a field's first sample; CorruptArtifact if its tensor differs."""
    expected = f"{field.name}: {field.dtype} {(samples, *field.shape)}"
    if tensor is None:
        raise corrupt(file, expected, "no such tensor")
    if (tensor.dtype, tensor.shape) != (field.dtype, (samples, *field.shape)):
        raise corrupt(file, expected, f"{tensor.dtype} {tensor.shape}")
    return tensor.offset
