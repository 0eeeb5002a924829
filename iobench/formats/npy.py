"""NumPy's own files: one `<field>.npy` per field, read through a memory map.

Of others' data, a single .npy file is the field `x`, and each .npy file of a folder a field of its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from iobench.base.errors import (
    CorruptArtifact,
    corrupt,
)
from iobench.base.text import reason
from iobench.formats._arrays import arrays_schema
from iobench.formats._file_kind import regular
from iobench.formats._format import Format
from iobench.formats._mapped_reader import MappedReader
from iobench.formats._npy import DAMAGE
from iobench.formats._placement import Strided
from iobench.formats._schema import Array, Batch, Field, Schema, field_name, raw_bytes

SINGLE = "x"  # the field of a single file


@dataclass(frozen=True)
class Npy(Format):
    """One .npy file per field: a short header, then the array as it lies in memory."""

    name: ClassVar[str] = "npy"
    summary: ClassVar[str] = "one .npy file per field, memory-mapped"
    library: ClassVar[str] = "numpy"

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write `<field>.npy` for every field."""
        path.mkdir()
        with ExitStack() as stack:
            files = {}
            for field in schema.fields:
                files[field.name] = stack.enter_context(open(path / f"{field.name}.npy", "wb"))
                header = {
                    "descr": np.lib.format.dtype_to_descr(np.dtype(field.dtype)),
                    "fortran_order": False,
                    "shape": (schema.samples, *field.shape),
                }
                np.lib.format.write_array_header_1_0(files[field.name], header)
            for batch in batches:
                for name, file in files.items():
                    file.write(raw_bytes(batch[name]))

    def open(self, path: Path, schema: Schema, random: bool = False) -> MappedReader:
        """A reader over read-only maps, after each file's header and size were checked."""
        arrays, places = {}, {}
        files = _files(path)
        for field in schema.fields:
            file = files.get(field.name, path / f"{field.name}.npy")
            arrays[field.name], offset = _map(file, field, schema.samples)
            places[field.name] = Strided((file,), offset, field.sample_bytes)
        return MappedReader(schema, arrays, places)

    def sniff(self, path: Path) -> bool:
        """Whether it is a .npy file, or a folder of nothing else."""
        if not path.is_dir():
            return _begins_as_npy(path)
        names = [one for one in sorted(path.iterdir()) if not one.name.startswith(".")]
        return bool(names) and all(one.suffix == ".npy" and _begins_as_npy(one) for one in names)

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """The arrays of a file or of a folder's files; their first axis is that of samples."""
        mapped = {name: _mapped(file) for name, file in _files(path).items()}
        if not mapped:
            raise CorruptArtifact(f"{path}: it holds no .npy file")
        for name, array in mapped.items():
            if array.ndim and (not array.flags.c_contiguous or not array.dtype.isnative):
                raise CorruptArtifact(
                    f"{path}: {name} is in Fortran order or in another byte order, and rows are read as they "
                    "lie; write it anew with np.ascontiguousarray(a, a.dtype.newbyteorder('='))"
                )
        return arrays_schema(path, {name: (array.shape, array.dtype) for name, array in mapped.items()})


def _files(path: Path) -> dict[str, Path]:
    """The file of each field of others' data."""
    if not path.is_dir():
        return {SINGLE: path}
    found: dict[str, Path] = {}
    for file in sorted(path.glob("*.npy")):
        name = field_name(file.stem)
        if name in found:
            raise CorruptArtifact(
                f"{path}: {found[name].name} and {file.name} would both be the field {name!r}"
            )
        found[name] = file
    return found


def _begins_as_npy(file: Path) -> bool:
    try:
        with open(regular(file), "rb") as opened:
            return opened.read(np.lib.format.MAGIC_LEN).startswith(np.lib.format.MAGIC_PREFIX)
    except OSError:
        return False


def _mapped(file: Path) -> Array:
    """A file of others' as a read-only array; CorruptArtifact where it is none."""
    try:
        found = np.lib.format.open_memmap(regular(file), mode="r")  # unlike np.load, no archives or pickles
    except DAMAGE as error:
        raise CorruptArtifact(f"{file}: cannot be read as .npy: {reason(error)}") from error
    return np.asarray(found)


def _map(file: Path, field: Field, samples: int) -> tuple[Array, int]:
    """The file as a read-only array, and the offset of its first byte of data."""
    expected = (samples, *field.shape)
    try:
        mapped = np.lib.format.open_memmap(regular(file), mode="r")  # unlike np.load, no archives or pickles
    except DAMAGE as error:
        raise corrupt(file, f"{field.dtype} {expected}", reason(error)) from error
    if (mapped.shape, mapped.dtype) != (expected, np.dtype(field.dtype)):
        raise corrupt(file, f"{field.dtype} {expected}", f"{mapped.dtype} {mapped.shape}")
    if not mapped.flags.c_contiguous:
        raise corrupt(file, "C order", "Fortran order")
    size = file.stat().st_size
    if size != mapped.offset + mapped.nbytes:
        raise corrupt(file, f"{mapped.offset + mapped.nbytes} bytes", f"{size} bytes")
    # plain ndarray: np.memmap spends a third of each index in __array_finalize__
    return np.asarray(mapped), mapped.offset
