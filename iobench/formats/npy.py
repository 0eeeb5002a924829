"""Format npy: one `<field>.npy` per field, read through a memory map.

A field whose samples differ in length has their elements, end to end, in its file, and in
`<field>.offsets.npy` the int64 index at which each sample begins, and the last one ends.

Of data that other programs wrote, a single .npy file is read as the field `x`, and a folder of .npy files
as one field per file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from iobench.base.errors import CorruptArtifact, corrupt
from iobench.base.text import reason
from iobench.formats._arrays import arrays_schema, fields_by_name
from iobench.formats._format import Detectable, Format
from iobench.formats._mapped_reader import MappedReader, RaggedReader
from iobench.formats._placement import Strided
from iobench.formats._ragged import Ragged, check_offsets
from iobench.formats._schema import Array, Batch, Field, Schema, raw_bytes
from iobench.formats.file_kind import regular
from iobench.formats.npy_header import DAMAGE, FORTRAN_HINT, header_of

SINGLE = "x"  # field name of a single file
OFFSETS = ".offsets"  # after the name of a ragged field; no field's name has a dot


@dataclass(frozen=True)
class Npy(Format, Detectable):
    """One .npy file per field: a short header, then the array as in memory."""

    name: ClassVar[str] = "npy"
    summary: ClassVar[str] = "one .npy file per field, memory-mapped"
    library: ClassVar[str] = "numpy"
    holds_ragged: ClassVar[bool] = True

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write `<field>.npy` for every field, and the offsets of ragged ones."""
        path.mkdir()
        with ExitStack() as stack:
            files = {}
            for name, stored, length in _stored(schema):
                files[name] = stack.enter_context(open(path / f"{name}.npy", "wb"))
                files[name].write(header_of(stored, length))
            for ragged in schema.ragged:
                files[f"{ragged.name}{OFFSETS}"].write(raw_bytes(np.zeros(1, np.int64)))
            ends = dict.fromkeys((field.name for field in schema.ragged), 0)
            for batch in batches:
                for name, array in batch.items():
                    if isinstance(array, Ragged):
                        files[f"{name}{OFFSETS}"].write(raw_bytes(ends[name] + array.offsets[1:]))
                        ends[name] += len(array.values)
                    files[name].write(raw_bytes(getattr(array, "values", array)))

    def open(self, path: Path, schema: Schema, random: bool = False) -> MappedReader:
        """Check each file's header and size, and return a reader over read-only maps."""
        arrays, places, ragged = {}, {}, {}
        files = _files(path)
        for field in schema.fields:
            file = files.get(field.name, path / f"{field.name}.npy")
            array, offset = _map(file, field, schema.rows(field))
            if field.is_ragged:
                ragged[field.name] = Ragged(np.asarray(array), _map_offsets(path, field, schema))
            else:
                arrays[field.name] = array
                places[field.name] = Strided((file,), offset, field.sample_bytes)
        if ragged:
            return RaggedReader(schema, arrays, places, ragged)
        return MappedReader(schema, arrays, places)

    def sniff(self, path: Path) -> bool:
        """Return True for a .npy file, or a folder of nothing else."""
        if not path.is_dir():
            return _begins_as_npy(path)
        names = [one for one in sorted(path.iterdir()) if not one.name.startswith(".")]
        return bool(names) and all(one.suffix == ".npy" and _begins_as_npy(one) for one in names)

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema of a .npy file or of a folder of them; the first axis is the sample axis."""
        mapped = {name: _mapped(file) for name, file in _files(path).items()}
        if not mapped:
            raise CorruptArtifact("it holds no .npy file", kind="no-arrays", path=path)
        for name, array in mapped.items():
            if array.ndim and (not array.flags.c_contiguous or not array.dtype.isnative):
                fortran = not array.flags.c_contiguous
                raise CorruptArtifact(
                    f"{name} is in {'Fortran order' if fortran else 'another byte order'}",
                    kind="fortran-order" if fortran else "byte-order",
                    path=path,
                    hint=FORTRAN_HINT,
                )
        return arrays_schema(path, {name: (array.shape, array.dtype) for name, array in mapped.items()})


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


def _mapped(file: Path) -> Array:
    """Map a file that another program wrote; CorruptArtifact (``unreadable``) if it is not .npy."""
    try:
        mapped = np.lib.format.open_memmap(regular(file), mode="r")  # unlike np.load: no archives, no pickles
    except DAMAGE as error:
        raise CorruptArtifact(
            "not readable as .npy", kind="unreadable", path=file, found=reason(error)
        ) from error
    return np.asarray(mapped)


def _stored(schema: Schema) -> Iterator[tuple[str, Field, int]]:
    """Yield name, field and length of each array that is stored."""
    for field in schema.fields:
        yield field.name, replace(field, shape=field.inner), schema.rows(field)
        if field.is_ragged:
            yield f"{field.name}{OFFSETS}", Field(field.name, (), "int64"), schema.samples + 1


def _map_offsets(path: Path, field: Field, schema: Schema) -> npt.NDArray[np.int64]:
    """Map the offsets of a ragged field that `write` wrote, and check them."""
    file = path / f"{field.name}{OFFSETS}.npy"
    offsets = np.asarray(_map(file, Field(field.name, (), "int64"), schema.samples + 1)[0])
    check_offsets(offsets, schema.rows(field), file)
    return offsets


def _map(file: Path, field: Field, length: int) -> tuple[Array, int]:
    """Map a file that `write` wrote; return the read-only array and the byte offset of its data."""
    expected = (length, *field.inner)
    try:
        mapped = np.lib.format.open_memmap(regular(file), mode="r")  # unlike np.load: no archives, no pickles
    except DAMAGE as error:
        raise corrupt(file, f"{field.dtype} {expected}", reason(error)) from error
    if (mapped.shape, mapped.dtype) != (expected, np.dtype(field.dtype)):
        raise corrupt(file, f"{field.dtype} {expected}", f"{mapped.dtype} {mapped.shape}")
    if not mapped.flags.c_contiguous:
        raise corrupt(file, "C order", "Fortran order")
    size = file.stat().st_size
    if size != mapped.offset + mapped.nbytes:
        raise corrupt(file, f"{mapped.offset + mapped.nbytes} bytes", f"{size} bytes")
    return mapped, mapped.offset
