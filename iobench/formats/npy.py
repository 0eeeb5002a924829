"""Format npy: one `<field>.npy` per field, read through a memory map.

A field whose samples differ in length has their elements, end to end, in its file, and in
`<field>_offsets.npy` the int64 index at which each sample begins, and the last one ends.

Of data that other programs wrote, a single .npy file is read as the field `x`, and a folder of .npy files
as one field per file.
"""

from __future__ import annotations

import io
import math
import os
import re
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from iobench.base.errors import CorruptArtifact, IobenchError, corrupt, expecting
from iobench.base.files import begins_with, regular
from iobench.base.finding import Finding
from iobench.base.text import reason, shortened
from iobench.formats.array_format import ArrayFormat, StoredArray
from iobench.formats.array_schema import MAX_FIELDS, ShapeAndDtype, arrays_schema, fields_by_name
from iobench.formats.folders import entries_of, files_in
from iobench.formats.format import Detectable
from iobench.formats.placement import Placement, Strided
from iobench.formats.reader import MappedReader
from iobench.formats.schema import Array, Batch, Field, Schema, raw_bytes

if TYPE_CHECKING:
    from _typeshed import SupportsRead

MAX_HEADER_BYTES = 10_000  # NumPy's own limit, which it checks only after reading everything
LONGEST = MAX_HEADER_BYTES + 12  # with magic, version and length
FORTRAN_HINT = "save np.ascontiguousarray(a, a.dtype.newbyteorder('='))"
# A header is a Python literal, and parsing a damaged one raises any of these.
DAMAGE = (
    *(OSError, ValueError, SyntaxError, TypeError, OverflowError, TokenError, KeyError),
    *(RecursionError, MemoryError),
)


@dataclass(frozen=True)
class NpyHeader:
    """Array in .npy data; `offset` is that of its first byte."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    offset: int

    @property
    def data_bytes(self) -> int:
        """Size of the array."""
        return math.prod(self.shape) * self.dtype.itemsize

    def member(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return shape and dtype of a member of a structured array."""
        base, inner = self.dtype[name].subdtype or (self.dtype[name], ())
        return (*self.shape, *inner), base

    @property
    def by_columns(self) -> bool:
        """True if the array is in Fortran order, and that is another than C order."""
        return self.fortran and sum(count > 1 for count in self.shape) > 1


def header_of(field: Field, samples: int | None = None) -> bytes:
    """Return the .npy header of one sample of a field, or of an array of so many."""
    stream = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(np.dtype(field.dtype))
    shape = field.shape if samples is None else (samples, *field.shape)
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue()


def read_header(stream: SupportsRead[bytes]) -> NpyHeader:
    """Read the header at the beginning of a stream, and nothing after it; ValueError if it is damaged."""
    magic = _exactly(stream, np.lib.format.MAGIC_LEN)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's about escapes in a damaged literal, NumPy's about Python 2
        try:
            first = np.lib.format.read_magic(io.BytesIO(magic)) == (1, 0)
            size = _exactly(stream, 2 if first else 4)
            length = int.from_bytes(size, "little")
            if length > MAX_HEADER_BYTES:
                raise ValueError(f"header of {length:,} bytes, at most {MAX_HEADER_BYTES:,} are valid")
            text = io.BytesIO(size + _exactly(stream, length))
            read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(text)
        except DAMAGE as error:
            raise ValueError(f"damaged header ({reason(error)})") from error
    if len(shape) > 64 or not all(type(n) is int and 0 <= n < 1 << 62 for n in shape):
        described = ", ".join(hex(n) for n in shape[:64])  # Python refuses very long decimal numbers
        raise ValueError(f"damaged header (invalid shape {shortened(described)})")
    return NpyHeader(shape, dtype, fortran, len(magic) + len(size) + length)


def read_plain_header(start: bytes, what: str, path: Path) -> NpyHeader:
    """Return the header of the .npy data that begin with `start`.

    CorruptArtifact if the header is damaged, or of kind ``fortran-order``, ``unsupported-dtype`` or
    ``byte-order``.
    """
    with expecting(path, f"{what} as a .npy file", ValueError):
        header = read_header(io.BytesIO(start))
    if header.dtype.hasobject:
        problem, hint = f"{what} has dtype {header.dtype.str}", "save it as a number type"
        raise CorruptArtifact(problem, "unsupported-dtype", path, hint=hint)
    check_layout(header, what, path)
    return header


def check_layout(header: NpyHeader, what: str, path: Path) -> None:
    """Raise CorruptArtifact (``fortran-order`` or ``byte-order``) for an array that cannot be mapped."""
    if header.by_columns:
        raise CorruptArtifact(f"{what} is in Fortran order", "fortran-order", path, hint=FORTRAN_HINT)
    if not header.dtype.isnative:
        problem, found = f"{what} is in another byte order", header.dtype.str
        raise CorruptArtifact(problem, "byte-order", path, found=found, hint=FORTRAN_HINT)


def wrong_size(path: Path, header: NpyHeader, size: int) -> CorruptArtifact:
    """Return the error for data of another size than their header says."""
    short = size < header.data_bytes
    problem = f"{'cut off: fewer' if short else 'more'} bytes of data than its header says"
    expected, found = f"{header.data_bytes:,}", f"{max(0, size):,}"
    hint = "copy or save it again" if short else None
    return CorruptArtifact(
        problem, "truncated" if short else "trailing-bytes", path, expected=expected, found=found, hint=hint
    )


def _exactly(stream: SupportsRead[bytes], count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = stream.read(count - len(data))
        if not piece:
            raise ValueError("truncated header")
        data += piece
    return data


SINGLE = "x"  # field name of a single file
TOKENS = 1025  # fewer are in no window of tokens


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

    def open_arrays(self, path: Path, schema: Schema, random: bool = False) -> MappedReader:
        """Check each file's header and size, and return a reader over read-only maps."""
        arrays, places = dict[str, Array](), dict[str, Placement]()
        files, members = _files(path), dict[str, tuple[str, str]]()
        if any(field.name not in files for field in schema.fields):
            members = _members(path, {name: header_in(file) for name, file in files.items()})
        for field in schema.fields:
            name, member = members.get(field.name, (field.name, ""))
            file = files.get(name, path / f"{name}.npy")
            mapped, offset = _map(file, field, schema.samples, member)
            if mapped.strides[1:] == np.empty(mapped.shape[1:], mapped.dtype).strides:  # samples in one piece
                places[field.name] = Strided((file,), offset, mapped.strides[0])
            arrays[field.name] = mapped
        return MappedReader(schema, arrays, places)

    def sniff(self, path: Path) -> bool:
        """Return True for a .npy file, or a folder of nothing else whose files can only be fields.

        Arrays of one shape and dtype each could also be samples, or parts of one array; those of one dtype
        and as many axes whose names are numbered are samples of different sizes.
        """
        if not path.is_dir():
            return begins_with(path, np.lib.format.MAGIC_PREFIX)
        entries = entries_of(path)
        if not entries or any(not entry.name.endswith(".npy") for entry in entries):
            return False
        try:
            headers = [header_in(Path(entry.path)) for entry in entries[: MAX_FIELDS + 1]]
        except CorruptArtifact:
            start = np.lib.format.MAGIC_PREFIX
            return all(begins_with(Path(entry.path), start) for entry in entries)  # whose error says more
        lengths = {header.shape[:1] for header in headers}
        numbered = len(headers) > 2 and len({re.sub(r"\d+", "0", entry.name) for entry in entries}) == 1
        kinds = {(header.dtype, len(header.shape) if numbered else header.shape) for header in headers}
        return len(headers) == 1 or (len(headers) <= MAX_FIELDS and len(lengths) == 1 < len(kinds))

    def files(self, path: Path) -> Sequence[Path]:
        """Return the .npy files in a folder."""
        return files_in(path, ".npy")

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema of a .npy file or of a folder of them; the first axis is the sample axis."""
        headers = {name: header_in(file) for name, file in _files(path).items()}
        if not headers:
            raise CorruptArtifact("it holds no .npy file", "no-arrays", path)
        for name, header in headers.items():
            if header.shape:
                check_layout(header, name, path)
        members = _members(path, headers)
        arrays: dict[str, ShapeAndDtype] = {
            name: (one.shape, one.dtype) for name, one in headers.items() if one.dtype.names is None
        }
        arrays |= {field: headers[name].member(member) for field, (name, member) in members.items()}
        return arrays_schema(path, arrays)

    def notes(self, path: Path, schema: Schema) -> list[Finding]:
        """Return a note if a file may hold token ids."""
        return [] if path.is_dir() or len(schema.fields) > 1 else notes_of(schema)


def notes_of(schema: Schema) -> list[Finding]:
    """Return a note if each sample of a .npy file is an integer, as where it holds token ids."""
    (field,) = schema.fields
    if field.shape or not field.dtype.startswith(("int", "uint")) or schema.samples < TOKENS:
        return []
    hint = (
        "if they are token ids, read windows of them: --format tokens, of a folder --format parts:of=tokens; "
        "of prepare and recommend, --source-format"
    )
    message = f"each of the {schema.samples:,} samples is one {field.dtype}"
    return [Finding("single-numbers", message, hint, {"samples": schema.samples, "dtype": field.dtype})]


def _files(path: Path) -> dict[str, Path]:
    """Return the file of each field of data that other programs wrote."""
    if not path.is_dir():
        return {SINGLE: path}
    names = fields_by_name(path, (file.stem for file in files_in(path, ".npy")))
    return {name: path / f"{stem}.npy" for name, stem in names.items()}


def _members(path: Path, headers: Mapping[str, NpyHeader]) -> dict[str, tuple[str, str]]:
    """Return array and member of each field that is a member of a structured array."""
    members = {
        member if not path.is_dir() else f"{name}/{member}": (name, member)
        for name, header in headers.items()
        for member in header.dtype.names or ()
    }
    return {field: members[own] for field, own in fields_by_name(path, members).items()}


def is_mapped(file: Path) -> bool:
    """Return False for a .npy file in Fortran order or another byte order, which is not mapped."""
    try:
        header = header_in(file)
    except IobenchError:  # which says more where it is read
        return True
    return header.dtype.isnative and not header.by_columns


def header_in(file: Path) -> NpyHeader:
    """Return the header of a file that another program wrote.

    CorruptArtifact if it is not .npy (``unreadable``), or shorter than its header says (``truncated``).
    """
    with expecting(file, "a .npy file", OSError, "unreadable"), open(regular(file), "rb") as opened:
        try:
            header = read_header(opened)
        except ValueError as error:
            problem, hint = "not readable as .npy", "copy it again, or save it again with np.save"
            raise CorruptArtifact(problem, "unreadable", file, found=reason(error), hint=hint) from error
        size = os.fstat(opened.fileno()).st_size - header.offset
    if size < header.data_bytes and not header.dtype.hasobject:  # objects are a pickle of any size
        raise wrong_size(file, header, size)
    return header


def _map(file: Path, field: Field, samples: int, member: str = "") -> tuple[Array, int]:
    """Map a file, or a member of its array; return the read-only array and the byte offset of its data."""
    expected = (samples, *field.shape)
    with expecting(file, f"{field.dtype} {expected}", DAMAGE):
        mapped = np.lib.format.open_memmap(regular(file), mode="r")  # unlike np.load: no archives, no pickles
    array = mapped[member] if member in (mapped.dtype.names or ()) else mapped
    if (array.shape, array.dtype) != (expected, np.dtype(field.dtype)):
        raise corrupt(file, f"{field.dtype} {expected}", f"{mapped.dtype} {mapped.shape}")
    if not mapped.flags.c_contiguous:
        raise corrupt(file, "C order", "Fortran order")
    size = file.stat().st_size
    if size != mapped.offset + mapped.nbytes:
        raise corrupt(file, f"{mapped.offset + mapped.nbytes} bytes", f"{size} bytes")
    return array, mapped.offset + (0 if array is mapped else dict(mapped.dtype.fields or {})[member][1])
