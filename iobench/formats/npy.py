"""NumPy's own files: one `<field>.npy` per field, read through a memory map."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import ClassVar

import numpy as np

from iobench.formats._errors import corrupt
from iobench.formats._format import Format
from iobench.formats._mapped import MappedReader
from iobench.formats._placement import Strided
from iobench.formats._schema import Array, Batch, Field, Schema, raw_bytes

# The header is Python source, and a damaged one fails in any way that source can.
DAMAGE = (OSError, ValueError, SyntaxError, TypeError, OverflowError, TokenError)


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
        for field in schema.fields:
            file = path / f"{field.name}.npy"
            arrays[field.name], offset = _map(file, field, schema.samples)
            places[field.name] = Strided((file,), offset, field.sample_bytes)
        return MappedReader(schema, arrays, places)


def _map(file: Path, field: Field, samples: int) -> tuple[Array, int]:
    """The file as a read-only array, and the offset of its first byte of data."""
    expected = (samples, *field.shape)
    try:
        mapped = np.lib.format.open_memmap(file, mode="r")  # unlike np.load, neither archives nor pickles
    except DAMAGE as error:
        raise corrupt(file, f"{field.dtype} {expected}", str(error).partition("\n")[0]) from error
    if (mapped.shape, mapped.dtype) != (expected, np.dtype(field.dtype)):
        raise corrupt(file, f"{field.dtype} {expected}", f"{mapped.dtype} {mapped.shape}")
    if not mapped.flags.c_contiguous:
        raise corrupt(file, "C order", "Fortran order")
    size = file.stat().st_size
    if size != mapped.offset + mapped.nbytes:
        raise corrupt(file, f"{mapped.offset + mapped.nbytes} bytes", f"{size} bytes")
    # plain ndarray: np.memmap spends a third of each index in __array_finalize__
    return np.asarray(mapped), mapped.offset
