"""Adapters of the sandbox for files of arrays that no format maps: .npy in another order, .npz, .mat, .nc.

Nothing is unpickled. The members of a .npz archive are read in parallel streams. MATLAB's files before 7.3
are loaded whole; their vectors, which are matrices of one row or column, become arrays of one axis. Classic
NetCDF is mapped.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np

from iobench import formats
from iobench.base.errors import CorruptArtifact, expecting
from iobench.base.files import regular
from iobench.base.finding import Finding
from iobench.base.text import reason
from iobench.dataset.file_set import DAMAGE
from iobench.dataset.sources.source import BATCH_BYTES
from iobench.formats import Array, Batch, Field, Schema, arrays_schema, native, select_arrays, selected_schema
from iobench.formats.array_schema import ShapeAndDtype
from iobench.formats.folders import attribute_notes
from iobench.formats.npy import SINGLE, NpyHeader, header_in, notes_of, read_header, wrong_size

SPARSE = {"format", "shape", "data"}  # members that scipy.sparse.save_npz writes
PIECE_BYTES = 1 << 20  # unpacked at a time
NUMBERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "single", "double")
LOGICAL = "logical"


def in_slices(arrays: Mapping[str, Array], schema: Schema) -> Iterator[Batch]:
    """Yield the rows of arrays, by their names in the file, in any order of axes and bytes."""
    rows, own = schema.batch_rows(BATCH_BYTES), _names(schema)
    for start in range(0, schema.samples, rows):
        some = slice(start, start + rows)
        yield {field: native(np.array(arrays[name][some], order="C")) for field, name in own.items()}


def _names(schema: Schema) -> dict[str, str]:
    """Return the name in the file of each field."""
    return {field.name: schema.renamed.get(field.name, field.name) for field in schema.fields}


class NpyAdapter(formats.Detectable):
    """The methods of a format that the sandbox uses, for .npy in Fortran order or another byte order."""

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema of the array, which is the field `x`."""
        header = header_in(path)
        return arrays_schema(path, {SINGLE: (header.shape, header.dtype)})

    def batches(self, path: Path, schema: Schema) -> Iterator[Batch]:
        """Yield the rows of the mapped array."""
        with expecting(path, "a .npy file", DAMAGE):
            yield from in_slices({SINGLE: np.load(path, mmap_mode="r", allow_pickle=False)}, schema)

    def notes(self, path: Path, schema: Schema) -> list[Finding]:
        """Return a note if the file may hold token ids."""
        return notes_of(schema)


class NpzAdapter(formats.Detectable):
    """The methods of a format that the sandbox uses, for .npz archives; each array is a field."""

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema of all arrays, or of those named after `::`."""
        path, chosen = formats.split_selection(path)
        members = _members(path)
        if not chosen and members.keys() >= SPARSE:
            code = f'numpy.save("{path.stem}.npy", scipy.sparse.load_npz("{path.name}").toarray())'
            problem, hint = "a sparse matrix of SciPy", f"convert it: {code}"
            raise CorruptArtifact(problem, "sparse", path, hint=hint)
        arrays = dict[str, ShapeAndDtype | CorruptArtifact]()
        for name, one in members.items():
            if isinstance(one, CorruptArtifact):
                arrays[name] = one
            elif one.dtype.names is None:
                arrays[name] = one.shape, one.dtype
            else:
                arrays |= {f"{name}/{member}": one.member(member) for member in one.dtype.names}
        return selected_schema(path, arrays, select_arrays(path, arrays, chosen))

    def batches(self, path: Path, schema: Schema) -> Iterator[Batch]:
        """Yield batches read from all members in parallel."""
        rows, own = schema.batch_rows(BATCH_BYTES), dict[str, tuple[str, str | None]]()
        with expecting(path, "a .npz archive", DAMAGE, "damaged"), ExitStack() as stack:
            archive = stack.enter_context(zipfile.ZipFile(regular(path)))
            streams, headers, maps = dict[str, IO[bytes]](), dict[str, NpyHeader](), dict[str, Array]()
            for field, original in _names(schema).items():
                name, _, member = original.rpartition("/")
                if f"{original}.npy" in archive.namelist():
                    name, member = original, ""
                own[field] = name, member or None
                if name not in streams:
                    streams[name] = stack.enter_context(archive.open(f"{name}.npy"))
                    headers[name] = read_header(streams[name])
            for name, header in headers.items():
                if header.by_columns:
                    file = stack.enter_context(tempfile.TemporaryFile())
                    for piece in _pieces(streams[name], name, header.data_bytes):
                        file.write(piece)
                    file.flush()
                    maps[name] = np.memmap(file, header.dtype, "r", shape=header.shape, order="F")
            for start in range(0, schema.samples, rows):
                count, read = min(rows, schema.samples - start), dict[str, Array]()
                for name, header in headers.items():
                    if name in maps:
                        read[name] = np.array(maps[name][start : start + count], order="C")
                        continue
                    read[name] = np.empty((count, *header.shape[1:]), header.dtype)
                    view, at = formats.raw_bytes(read[name]), 0
                    for piece in _pieces(streams[name], name, len(view)):
                        view[at : at + len(piece)] = piece
                        at += len(piece)
                arrays = {
                    field: read[name] if m is None else read[name][m] for field, (name, m) in own.items()
                }
                yield {field: native(np.ascontiguousarray(array)) for field, array in arrays.items()}
            for name, stream in streams.items():
                if stream.read(1):  # reading to the end also checks the checksum
                    raise EOFError(f"{name}.npy is longer than its header says")


def _pieces(stream: IO[bytes], name: str, left: int) -> Iterator[bytes]:
    """Yield the next `left` bytes of a member; EOFError if it ends before."""
    while left:
        if not (piece := stream.read(min(left, PIECE_BYTES))):
            raise EOFError(f"{name}.npy is truncated")
        yield piece
        left -= len(piece)


def _members(path: Path) -> dict[str, NpyHeader | CorruptArtifact]:
    """Return the header of each member of an archive by name without `.npy`, or why it is not read."""
    with expecting(path, "a .npz archive", DAMAGE, "damaged"), zipfile.ZipFile(regular(path)) as archive:
        members = [(member.filename.removesuffix(".npy"), member) for member in archive.infolist()]
        counts = Counter(name for name, _ in members)
        return {name: _header(path, archive, member, counts[name]) for name, member in members}


def _header(
    path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo, count: int
) -> NpyHeader | CorruptArtifact:
    """Return the header of a member that np.savez wrote, or the error of another one or of its array."""
    if count > 1:
        return CorruptArtifact("the name appears twice", "name-clash")
    if not member.filename.endswith(".npy"):
        problem = "a folder" if member.filename.endswith("/") else "not an .npy file"
        return CorruptArtifact(problem, "not-an-array", hint="remove it from the archive")
    if ".." in member.filename.split("/"):
        return CorruptArtifact("its name points out of the archive", "invalid-name")
    if member.flag_bits & 1:
        return CorruptArtifact("encrypted", "encrypted", hint="save it without a password")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        hint = "save it with np.savez or np.savez_compressed"
        return CorruptArtifact("an unsupported compression", "unsupported-compression", hint=hint)
    try:
        with archive.open(member) as stream:
            header = read_header(stream)
    except DAMAGE as error:
        return CorruptArtifact(f"cannot be read: {reason(error)}", "damaged")
    if header.dtype.hasobject:  # before its size, which is that of a pickle
        return formats.unsupported_dtype(path, "", header.dtype)
    size = member.file_size - header.offset
    return header if size == header.data_bytes else wrong_size(path, header, size)


class MatAdapter(formats.Detectable):
    """The methods of a format that the sandbox uses, for MATLAB's files before version 7.3."""

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema of all arrays, or of those named after `::`; the first axis is samples."""
        path, chosen = formats.split_selection(path)
        kinds = _kinds(path)
        names = select_arrays(path, kinds, chosen)
        numbers = [name for name, kind in kinds.items() if kind in (*NUMBERS, LOGICAL)]
        if refused := {name: kinds[name] for name in names if name not in numbers}:
            error = formats.unstorable_columns(path, refused, numbers, "array")
            if set(refused.values()) != {"sparse"}:
                raise error
            dense = {name: f'm["{name}"]' + ".toarray()" * (name in refused) for name in names}
            raise error.changed(hint=_conversion(path, dense))
        shapes = {name: (array.shape, array.dtype) for name, array in _matlab(path, names).items()}
        try:
            return arrays_schema(path, shapes, kinds)
        except CorruptArtifact as error:
            ends = {shape[-1] for shape, _ in shapes.values()} & {shape[0] for shape, _ in shapes.values()}
            if error.kind != "unequal-lengths" or len(ends) != 1:
                raise
            (count,) = ends
            moved = {
                name: f'm["{name}"]' + ".ravel()" * (len(shape) == 1)
                if shape[0] == count
                else f'numpy.moveaxis(m["{name}"], -1, 0)'
                for name, (shape, _) in shapes.items()
            }
            hint = f"if the last axis of some is that of the samples, {_conversion(path, moved)}"
            raise error.changed(hint=hint) from None

    def batches(self, path: Path, schema: Schema) -> Iterator[Batch]:
        """Yield the rows of the loaded arrays."""
        return in_slices(_matlab(path, list(_names(schema).values())), schema)


class NetcdfAdapter(formats.Detectable):
    """The methods of a format that the sandbox uses, for classic NetCDF, whose arrays are mapped."""

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema of all variables, or of those named after `::`; the first axis is samples."""
        path, chosen = formats.split_selection(path)
        variables = _variables(path)
        shapes = {name: (one.data.shape, one.data.dtype) for name, one in variables.items()}
        return selected_schema(path, shapes, select_arrays(path, shapes, chosen))

    def batches(self, path: Path, schema: Schema) -> Iterator[Batch]:
        """Yield the rows of the mapped arrays."""
        return in_slices({name: one.data for name, one in _variables(path).items()}, schema)

    def notes(self, path: Path, schema: Schema) -> list[Finding]:
        """Report attributes that say what the numbers stand for."""
        variables = _variables(formats.split_selection(path)[0])
        names = formats.field_names(variables)
        return attribute_notes({one.name: variables[names[one.name]]._attributes for one in schema.fields})


def _kinds(path: Path) -> dict[str, str]:
    """Return MATLAB's class of each variable, without what it keeps for itself."""
    from scipy import io

    return {name: kind for name, _, kind in io.whosmat(path, appendmat=False) if not name.startswith("__")}


def _conversion(path: Path, arrays: Mapping[str, str]) -> str:
    """Return the hint at a conversion; `arrays` are expressions of `m`, the loaded file."""
    named = ", ".join(f"{name}={code}" for name, code in arrays.items())
    return f'convert it: m = scipy.io.loadmat("{path.name}"); numpy.savez("{path.stem}.npz", {named})'


def _matlab(path: Path, names: Sequence[str]) -> dict[str, Array]:
    """Load arrays of a file, vectors with one axis."""
    from scipy import io

    kinds = _kinds(path)
    loaded = io.loadmat(path, appendmat=False, variable_names=names)
    arrays = {name: loaded[name].astype(bool) if kinds[name] == LOGICAL else loaded[name] for name in names}
    vectors = {name for name, one in arrays.items() if one.ndim == 2 and 1 in one.shape and one.size > 1}
    return {name: one.reshape(-1) if name in vectors else one for name, one in arrays.items()}


def _variables(path: Path) -> dict[str, Any]:
    from scipy import io

    variables: dict[str, Any] = io.netcdf_file(path, mmap=True).variables
    return variables
