"""Format npy: one `<field>.npy` per field, read through a memory map.

A field whose samples differ in length has their elements, end to end, in its file, and in
`<field>_offsets.npy` the int64 index at which each sample begins, and the last one ends.

Of data that other programs wrote, a single .npy file is read as the field `x`, and a folder of .npy files
as one field per file.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from iobench.base.errors import CorruptArtifact, corrupt, expecting
from iobench.base.files import regular
from iobench.base.text import reason
from iobench.formats._array_format import ArrayFormat, StoredArray
from iobench.formats._arrays import arrays_schema, fields_by_name
from iobench.formats._format import Detectable
from iobench.formats._mapped_reader import MappedReader
from iobench.formats._placement import Strided
from iobench.formats._schema import Array, Batch, Field, Schema, raw_bytes
from iobench.formats.npy_header import DAMAGE, FORTRAN_HINT, NpyHeader, header_of, read_header, wrong_size

SINGLE = "x"  # field name of a single file


@dataclass(frozen=True)
class Npy(ArrayFormat, Detectable):
    """One .npy file per field: a short header, then the array as in memory."""

    name: ClassVar[str] = "npy"
    summary: ClassVar[str] = "one .npy file per field, memory-mapped"
    library: ClassVar[str] = "numpy"

    def write_arrays(self, path: Path, arrays: Collection[StoredArray], batches: Iterable[Batch]) -> None:
        """Write `<name>.npy` for every array."""
        path.mkdir()
        with ExitStack() as stack:
            files = {a.name: stack.enter_context(open(path / f"{a.name}.npy", "wb")) for a in arrays}
            for array in arrays:
                files[array.name].write(header_of(array.row, array.length))
            for batch in batches:
                for name, rows in batch.items():
                    files[name].write(raw_bytes(rows))

    def open_arrays(
        self, path: Path, schema: Schema, random: bool = False, others: Collection[str] = ()
    ) -> MappedReader:
        """Check each file's header and size, and return a reader over read-only maps."""
        arrays, places = {}, {}
        files = _files(path)
        for field in schema.fields:
            file = files.get(field.name, path / f"{field.name}.npy")
            arrays[field.name], offset = _map(file, field, schema.samples)
            places[field.name] = Strided((file,), offset, field.sample_bytes)
        return MappedReader(schema, arrays, places)

    def sniff(self, path: Path) -> bool:
        """Return True for a .npy file, or a folder of nothing else."""
        if not path.is_dir():
            return _begins_as_npy(path)
        names = [one for one in sorted(path.iterdir()) if not one.name.startswith(".")]
        return bool(names) and all(one.suffix == ".npy" and _begins_as_npy(one) for one in names)

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema of a .npy file or of a folder of them; the first axis is the sample axis."""
        headers = {name: _header(file) for name, file in _files(path).items()}
        if not headers:
            raise CorruptArtifact("it holds no .npy file", kind="no-arrays", path=path)
        for name, header in headers.items():
            if header.shape and (header.by_columns or not header.dtype.isnative):
                raise CorruptArtifact(
                    f"{name} is in {'Fortran order' if header.by_columns else 'another byte order'}",
                    kind="fortran-order" if header.by_columns else "byte-order",
                    path=path,
                    hint=FORTRAN_HINT,
                )
        return arrays_schema(path, {name: (one.shape, one.dtype) for name, one in headers.items()})


def _files(path: Path) -> dict[str, Path]:
    """Return the file of each field of data that other programs wrote."""
    if not path.is_dir():
        return {SINGLE: path}
    names = fields_by_name(path, (file.stem for file in sorted(path.glob("*.npy"))))
    return {name: path / f"{stem}.npy" for name, stem in names.items()}


def _begins_as_npy(file: Path) -> bool:
    try:
        with open(regular(file), "rb") as opened:
            return opened.read(np.lib.format.MAGIC_LEN).startswith(np.lib.format.MAGIC_PREFIX)
    except OSError:
        return False


def _header(file: Path) -> NpyHeader:
    """Return the header of a file that another program wrote.

    CorruptArtifact if it is not .npy (``unreadable``), or shorter than its header says (``truncated``).
    """
    try:
        with open(regular(file), "rb") as opened:
            header = read_header(opened)
            size = os.fstat(opened.fileno()).st_size - header.offset
    except (OSError, ValueError) as error:
        raise CorruptArtifact(
            "not readable as .npy",
            kind="unreadable",
            path=file,
            found=reason(error),
            hint="copy it again, or save it again with np.save",
        ) from error
    if size < header.data_bytes and not header.dtype.hasobject:  # objects are a pickle of any size
        raise wrong_size(file, header, size)
    return header


def _map(file: Path, field: Field, samples: int) -> tuple[Array, int]:
    """Map a file that `write` wrote; return the read-only array and the byte offset of its data."""
    expected = (samples, *field.shape)
    with expecting(file, f"{field.dtype} {expected}", DAMAGE):
        mapped = np.lib.format.open_memmap(regular(file), mode="r")  # unlike np.load: no archives, no pickles
    if (mapped.shape, mapped.dtype) != (expected, np.dtype(field.dtype)):
        raise corrupt(file, f"{field.dtype} {expected}", f"{mapped.dtype} {mapped.shape}")
    if not mapped.flags.c_contiguous:
        raise corrupt(file, "C order", "Fortran order")
    size = file.stat().st_size
    if size != mapped.offset + mapped.nbytes:
        raise corrupt(file, f"{mapped.offset + mapped.nbytes} bytes", f"{size} bytes")
    return mapped, mapped.offset
