"""Several files as one dataset: their order, and how they relate.

Each file is a part (it holds several samples, end to end), a sample, or a field of all samples. The relation
follows from the shapes and names of the files, or is given. Formats read them: `parts`, `samples` and `npy`.
"""

from __future__ import annotations

import gzip
import re
import struct
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from iobench import formats
from iobench.base.errors import CorruptArtifact, IobenchError, expecting
from iobench.base.files import regular
from iobench.base.finding import Finding
from iobench.base.units import counted
from iobench.formats import VARIES, Array, Detectable, Format
from iobench.formats.array_schema import ShapeAndDtype, select_arrays
from iobench.formats.folders import (
    ARRAYS,
    DESCRIBING,
    IMAGES,
    PACKED,
    attributes_not_read,
    entries_of,
    file_of,
    files_below,
    has_suffix,
    is_class_folder,
    natural,
    suffix_of,
)
from iobench.formats.npy import SINGLE, TOKENS, NpyHeader, read_header

LOCAL_HEADER = struct.Struct("<26xHH")  # of a member of a zip archive: lengths of its name and extra field
# of archives; ValueError is for damaged headers and for locked or overlapping members
DAMAGE = (
    *(OSError, ValueError, EOFError, KeyError, RuntimeError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error, struct.error),
)


NOT_STORED = "USO"  # kinds of dtypes: text and Python's objects


@dataclass(frozen=True)
class ArrayInFile:
    """Shape and dtype of an array in a file, and its first byte if it is stored as in memory."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int | None = None


def shapes_in(file: Path) -> dict[str, ArrayInFile]:
    """Return the arrays in a file by name; reads headers alone where the kind of file has them."""
    suffix = file_of(file).suffix.lower()
    with expecting(file, f"arrays in a {suffix} file", DAMAGE, kind="damaged"):
        if suffix in (".npy", ".gz"):
            packed = suffix == ".gz"
            with open(regular(file), "rb") as stream:
                header = read_header(gzip.GzipFile(fileobj=stream) if packed else stream)
                return {SINGLE: _stored(header, None if packed else 0)}
        if suffix == ".npz":
            members = _members(file)
            return {name: one for name, one in members.items() if one.dtype.kind not in NOT_STORED} or members
        if suffix in (".h5", ".hdf5"):
            with _hdf5(file) as datasets:
                return {
                    name: ArrayInFile(one.shape, one.dtype, one.id.get_offset())
                    for name, one in datasets.items()
                }
    return {name: ArrayInFile(array.shape, array.dtype) for name, array in load(file).items()}


def load(file: Path, names: Collection[str] | None = None) -> dict[str, Array]:
    """Return the arrays in a file by name; CorruptArtifact if it cannot be read. Nothing is unpickled.

    Of .npz files only those of `names` are read, if given; a name that a file lacks is left out.
    """
    suffix = file_of(file).suffix.lower()
    if suffix in (".pt", ".pth"):
        from iobench.dataset.sources.torch_file import tensors_in

        return {name: formats.array_of(one) for name, one in tensors_in(file).items()}
    with expecting(file, f"arrays in a {suffix} file", DAMAGE, kind="damaged"):
        if suffix == ".safetensors":
            from safetensors.torch import load_file

            return {name: formats.array_of(one) for name, one in load_file(file).items()}
        if suffix == ".npz":
            with np.load(regular(file), allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files if names is None or name in names}
        if suffix == ".gz":
            with gzip.open(file) as stream:
                return {SINGLE: np.load(stream, allow_pickle=False)}
        if suffix in (".h5", ".hdf5"):
            with _hdf5(file) as datasets:
                return {name: one[()] for name, one in datasets.items()}
        return {SINGLE: np.load(regular(file), allow_pickle=False)}


def _stored(header: NpyHeader, start: int | None) -> ArrayInFile:
    plain = not header.by_columns and header.dtype.isnative
    offset = start + header.offset if plain and start is not None else None
    return ArrayInFile(header.shape, header.dtype, offset)


def _members(file: Path) -> dict[str, ArrayInFile]:
    with open(regular(file), "rb") as stream, zipfile.ZipFile(stream) as archive:
        every = archive.infolist()
        return {one.filename.removesuffix(".npy"): _member(archive, one, stream) for one in every}


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, stream: BinaryIO) -> ArrayInFile:
    start = None
    if member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 1:
        stream.seek(member.header_offset)
        start = member.header_offset + LOCAL_HEADER.size
        start += sum(LOCAL_HEADER.unpack(stream.read(LOCAL_HEADER.size)))
    with archive.open(member) as content:
        return _stored(read_header(content), start)


@contextmanager
def _hdf5(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the datasets of numbers of a file, or of a group of it, also those in groups."""
    import h5py

    datasets: dict[str, Any] = {}

    def note(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.dtype.kind in "biufc" and item.shape is not None:
            datasets[name] = item

    with h5py.File(regular(file_of(path)), "r") as opened:
        group = opened if path == file_of(path) else opened[str(path.relative_to(file_of(path)))]
        group.visititems(note)
        if not datasets:
            raise CorruptArtifact("it holds no arrays", "no-arrays", path)
        yield datasets


def texts_in(file: Path) -> set[str]:
    """Return the names of what `load` does not read in a file: text, and other objects of HDF5."""
    if file.suffix.lower() == ".npz":
        return _members(file).keys() - shapes_in(file).keys()
    if not has_suffix(file.name, OF_ROWS):
        return set()
    import h5py

    every = set[str]()
    with h5py.File(regular(file), "r") as opened:
        opened.visititems(lambda name, item: every.add(name) if isinstance(item, h5py.Dataset) else None)
    with _hdf5(file) as datasets:
        return every - datasets.keys()


def attributes_of(file: Path) -> list[Finding]:
    """Return a note about the attributes of an HDF5 file, which are not read; none about other files."""
    if not has_suffix(file.name, OF_ROWS):
        return []
    from iobench.formats.hdf5.datasets import attributes_in

    return attributes_not_read(attributes_in(file))


SAMPLES, PARTS, FIELDS = "samples", "parts", "fields"  # relations
MEANING = {
    SAMPLES: "is a sample",
    PARTS: "holds several samples along its first axis",
    FIELDS: "is a field of all samples",
}
# suffixes of files of arrays that no format reads alone, but `samples` does, and `parts` as wholes
WHOLE = ("npz", "pt", "pth", "gz")
TABLES = {  # tables in text, by suffix
    **dict.fromkeys((".csv", ".csv.gz", ".tsv", ".tsv.gz"), "csv"),
    **dict.fromkeys((".jsonl", ".jsonl.gz"), "jsonl"),
}
SAME_ARRAYS = "save the same arrays in every file, move it out of the folder, or name one file to read"
OF_ROWS = (".h5", ".hdf5")  # files that usually hold many samples
SHARD = re.compile(r"part|shard|chunk|-of-", re.IGNORECASE)
MOST_FIELDS = 64  # files above which none is taken for a field


def data_files(folder: Path) -> list[Path]:
    """Return the files below a folder in natural order, without those that only describe data."""
    with expecting(folder, "a folder of files", OSError):
        files = [Path(one.path) for one in files_below(folder)]
        targets: dict[Path, Path] = {}
        for file in files:
            if file.is_symlink() and (other := targets.setdefault(file.resolve(), file)) != file:
                problem = f"it is the same file as {other}, so its samples would come twice"
                hint = f"name one of their folders: {other.parent} or {file.parent}"
                raise CorruptArtifact(problem, "same-file", file, hint=hint)
    return sorted(
        (one for one in files if not has_suffix(one.name, (*DESCRIBING, ".cls", ".py"))), key=natural
    )


def parts_in(folder: Path, form: Detectable) -> list[Path]:
    """Return the parts at a path, which a format reads: groups of a file, subfolders of a folder, or files.

    Files count if the format reads the largest one of their suffix. If it recognizes none, those count whose
    suffix means it, or all.
    """
    if form.sniff(folder) and (groups := form.groups(folder).arrays):
        return [folder / name for name in groups]
    files = data_files(folder)
    folders = [Path(one.path) for one in entries_of(folder) if one.is_dir()]
    if len(folders) > 1 and all(map(form.sniff, folders)):
        return sorted(folders, key=natural)
    taken = {
        suffix: form.sniff(file) or (suffix in ARRAYS and _describes(form, file))
        for suffix, file in _largest(files).items()
    }
    named = [file for file in files if formats.meant(file.suffix[1:]) == getattr(form, "name", None)]
    return [file for file in files if taken[file.suffix]] or named or files


def _largest(files: Iterable[Path]) -> dict[str, Path]:
    """Return the largest file of each suffix, which shows best of which kind they are."""
    largest: dict[str, tuple[int, Path]] = {}
    for file in files:
        size = file.stat().st_size if file.exists() else 0
        if file.suffix not in largest or size > largest[file.suffix][0]:
            largest[file.suffix] = size, file
    return {suffix: file for suffix, (_, file) in largest.items()}


@dataclass(frozen=True)
class Detected:
    """The format variant that reads data, and what was inferred of several files that it could have been."""

    variant: str
    notes: tuple[Finding, ...] = ()


def detect_files(
    path: Path, known: Sequence[Format], relation: str | None = None, selected: Sequence[str] = ()
) -> Detected | None:
    """Return what reads the files in a folder as one dataset; None if they are none, or only one file.

    `known` are the formats that may read parts, `relation` is a key of MEANING, if given; `selected` are the
    names of the arrays that will be read, all if empty. CorruptArtifact (``several-readings``) if it is not
    certain, or of another kind if files that should be alike differ.
    """
    files = data_files(path)
    if relation == FIELDS:
        return Detected("npy")
    if form := _reads_folders(path, known):
        if relation == SAMPLES:
            problem = f"its folders, each in format {form.name}, cannot be read as samples"
            raise CorruptArtifact(problem, "several-readings", path, hint="give --files parts")
        count = sum(one.is_dir() for one in entries_of(path))
        message = f"{count:,} folders in format {form.name}: taken as {count:,} {PARTS}"
        taken = Finding("files", message, None, {"folders": count, "relation": PARTS})
        return Detected(f"parts:of={form.name}", () if relation else (taken,))
    others = [file for file in files if not has_suffix(file.name, IMAGES)]  # unless these are most
    files = others if 2 * len(others) >= len(files) else files
    suffixes = {PACKED if file.name.lower().endswith(PACKED) else file.suffix.lower() for file in files}
    if len(files) > 1 and len(suffixes) == 1 and suffixes <= {*ARRAYS, PACKED} - {".gz"}:
        return _detect_arrays(path, files, relation, selected)
    if relation == SAMPLES:
        return Detected(SAMPLES)
    kind, _ = tables_in(path)
    if kind:
        return Detected(kind)
    names = _readers(known, files) if len(files) > 1 else []
    return Detected(f"parts:of={names[0]}") if len(names) == 1 else None


def detect_groups(
    path: Path, name: str, groups: Mapping[str, Mapping[str, ShapeAndDtype]], given: str | None = None
) -> Detected:
    """Return what reads the alike groups of a file in format `name` as one dataset; as `detect_files`."""
    arrays = [
        {one: ArrayInFile(shape, np.dtype(dtype)) for one, (shape, dtype) in own.items()}
        for own in groups.values()
    ]
    shapes = ArrayShapes([path / one for one in groups], arrays, "group")
    if name != "hdf5":  # `samples` reads no other
        shapes.readings.remove(SAMPLES)
    taken = given or shapes.relation(path)
    if taken not in shapes.readings:
        raise shapes.ambiguous(path, f"cannot be read as {taken}")
    variant = {SAMPLES: SAMPLES, FIELDS: name, PARTS: f"parts:of={name}"}[taken]
    return Detected(variant, () if given else tuple(shapes.taken(taken)))


def _detect_arrays(path: Path, files: Sequence[Path], given: str | None, selected: Sequence[str]) -> Detected:
    notes = list[Finding]()
    if given is None and files[0].parent != path and is_class_folder(path, ARRAYS):
        given = SAMPLES
    if given is None:
        arrays = [shapes_in(file) for file in files]
        if selected:
            arrays = [{name: own[name] for name in select_arrays(path, own, selected)} for own in arrays]
        shapes = ArrayShapes(files, arrays)
        given = shapes.relation(path)
        notes = shapes.taken(given)
    suffix = files[0].suffix.lower()[1:]
    own = {"h5": "hdf5"}.get(suffix, suffix)
    return Detected({SAMPLES: SAMPLES, FIELDS: "npy", PARTS: f"parts:of={own}"}[given], tuple(notes))


def _reads_folders(path: Path, known: Sequence[Format]) -> Format | None:
    """Return the format that recognizes each subfolder of a folder without other data, if it is only one."""
    entries = entries_of(path)
    folders = [Path(one.path) for one in entries if one.is_dir()]
    if len(folders) < 2 or any(not one.is_dir() and not has_suffix(one.name, DESCRIBING) for one in entries):
        return None
    forms = [form for form in known if all(recognizes(form, one) for one in folders)]
    if len(forms) != 1 or (forms[0].name == "npy" and any(len(data_files(one)) == 1 for one in folders)):
        return None  # a single .npy file in a folder may be a sample, too
    return forms[0]


def _readers(known: Sequence[Format], files: Sequence[Path]) -> list[str]:
    """Return the formats that read a file of each suffix that any format recognizes."""
    largest = _largest(files)
    by_suffix = {
        suffix: [form for form in known if recognizes(form, file)] for suffix, file in largest.items()
    }
    of_data = {suffix: forms for suffix, forms in by_suffix.items() if forms}
    return [
        form.name
        for form in known
        if any(form in forms for forms in of_data.values())
        and all(
            form in forms or (isinstance(form, Detectable) and _describes(form, largest[suffix]))
            for suffix, forms in of_data.items()
        )
    ]


def tables_in(path: Path) -> tuple[str | None, list[Path]]:
    """Return the kind of tables in text that are the only data in a folder, and the files in natural order.

    None without files for any other folder; a file is its own.
    """
    if not path.is_dir():
        return TABLES.get(suffix_of(path)), [path]
    by_kind: dict[str | None, list[Path]] = {None: []}
    for file in map(Path, (one.path for one in files_below(path))):
        kind = TABLES.get(suffix_of(file))
        if kind or not has_suffix(file.name, DESCRIBING):
            by_kind.setdefault(kind, []).append(file)
    if by_kind[None] or len(by_kind) != 2:
        return None, []
    _, (kind, files) = by_kind.items()
    return kind, sorted(files, key=natural)


def recognizes(form: Format, path: Path) -> bool:
    """Return whether a format recognizes data; False if it cannot say."""
    try:
        return isinstance(form, Detectable) and form.sniff(path)
    except (IobenchError, MemoryError):
        return False


def _describes(form: Detectable, file: Path) -> bool:
    try:
        return bool(form.infer_schema(file).samples)
    except (IobenchError, MemoryError):
        return False


class ArrayShapes:
    """Names, shapes and dtypes of the arrays in each of several files.

    CorruptArtifact of kind ``missing-array`` if some files lack an array that others have, or
    ``unequal-shapes`` if arrays differ in more than their first axis.
    """

    def __init__(
        self, files: Sequence[Path], arrays: Sequence[Mapping[str, ArrayInFile]], noun: str = "file"
    ) -> None:
        self._files, self.arrays, self._noun = files, arrays, noun
        self._first = self.arrays[0]
        for file, own in zip(files, self.arrays, strict=True):
            if missing := sorted(self._first.keys() ^ own.keys()):
                name = missing[0]
                lacking, other = (file, files[0]) if name in self._first else (files[0], file)
                problem = f"it has no array {name}, which {other.name} has"
                raise CorruptArtifact(problem, "missing-array", lacking, hint=SAME_ARRAYS)
            for name, array in own.items():
                self._compare(file, name, array)
        self.lengths = {
            name: [arrays[name].shape[0] if array.shape else -1 for arrays in self.arrays]
            for name, array in self._first.items()
        }

    def _compare(self, file: Path, name: str, array: ArrayInFile) -> None:
        first = self._first[name]
        alike = (array.dtype, len(array.shape)) == (first.dtype, len(first.shape))
        if alike and array.shape[1:] == first.shape[1:]:
            return
        problem = f"{name}: the files differ in more than the first axis"
        expected = f"{first.dtype} {first.shape}, as in {self._files[0].name}"
        hint = "save arrays of one dtype, pad or crop them to one shape, or name one file to read"
        pairs = enumerate(zip(array.shape, first.shape, strict=False))
        differ = [axis for axis, lengths in pairs if len({*lengths}) > 1]
        if alike and len(differ) == 1:
            hint = f"save them with the axis that differs first: numpy.moveaxis(x, {differ[0]}, 0)"
            hint += f"; or give --files {FIELDS} if each {MEANING[FIELDS]}" * (file.suffix == ".npy")
        elif file.suffix == ".npy" and any(
            re.search(r"train|test|val", one.name, re.I) for one in self._files
        ):
            hint = f"move the files of each split into a folder of its own, where each {MEANING[FIELDS]}"
        found = f"{array.dtype} {array.shape}"
        raise CorruptArtifact(problem, "unequal-shapes", file, expected=expected, found=found, hint=hint)

    @property
    def _rows(self) -> list[list[int]]:
        """Lengths of the first axes of each array, of scalars too unless the format leaves them out."""
        left_out = self._noun == "group" or has_suffix(self._files[0].name, OF_ROWS)
        return [n for name, n in self.lengths.items() if self._first[name].shape or not left_out]

    @cached_property
    def readings(self) -> list[str]:
        """The relations that the files may have."""
        fields = len(self._files) > 1 and self._files[0].suffix == ".npy" and self._alike
        rows = list(zip(*self._rows, strict=True))
        parts = bool(rows) and all(len(set(lengths)) == 1 and lengths[0] >= 0 for lengths in rows)
        if self._noun == "group":
            fields = parts and self._alike
        return [SAMPLES, *[PARTS] * parts, *[FIELDS] * fields]

    def relation(self, path: Path) -> str:
        """Return the relation of the files; CorruptArtifact (``several-readings``) if it is not certain."""
        count = len(self._files)
        if len(self.readings) == 1:
            return self.readings[0]
        scalars = any(not one.shape for one in self._first.values())
        if scalars and SAMPLES in self.readings:
            return PARTS if len(self._rows) > 1 and not self._alike else SAMPLES
        numbered = len({re.sub(r"\d+", "0", file.name) for file in self._files}) == 1
        if self._noun == "group" and not (numbered and self._alike):
            return FIELDS if self._alike else PARTS
        if PARTS in self.readings and all(SHARD.search(file.name) for file in self._files):
            return PARTS
        if has_suffix(self._files[0].name, OF_ROWS) and (count <= MOST_FIELDS or not self._alike):
            return PARTS
        uneven_last = any(len(set(n[:-1])) == 1 and n[-1] < n[0] for n in self.lengths.values()) and count > 2
        sure = not (uneven_last or self._tokens) and (numbered or count > MOST_FIELDS or not self._alike)
        if sure and self._noun == "file" and not has_suffix(self._files[0].name, OF_ROWS):
            return SAMPLES
        raise self.ambiguous(path)

    def ambiguous(self, path: Path, problem: str = "") -> CorruptArtifact:
        """Return the error for files that can be read in several ways, which it names."""
        ways = [f"if each {self._noun} {MEANING[one]}, give --files {one}" for one in self.readings]
        if self._tokens:
            ways.append("if they hold token ids, give --format parts:of=tokens (or --source-format)")
        described = f"its {counted(len(self._files), self._noun)} of {self._described}"
        return CorruptArtifact(
            f"{described} {problem or f'can be read in {len(ways)} ways'}",
            "several-readings",
            path,
            hint="; ".join(ways),
        )

    @property
    def _tokens(self) -> bool:
        lengths, only = next(iter(self.lengths.values())), next(iter(self._first.values()))
        integers = (len(only.shape), only.dtype.kind in "iu") == (1, True)
        return self._noun == "file" and integers and min(lengths) >= TOKENS

    def taken(self, relation: str) -> list[Finding]:
        """Return the relation that was inferred, and the option for each other one, if there are others."""
        count, others = len(self._files), [one for one in self.readings if one != relation]
        if not others and self._noun == "file":
            return []
        described = f"{counted(count, self._noun)} of {self._described}"
        hint = ", ".join(f"--files {one} if each {MEANING[one]}" for one in others) or None
        message = f"{described}: taken as {count:,} {relation}"
        return [Finding("files", message, hint, {f"{self._noun}s": count, "relation": relation})]

    def samples(self) -> tuple[dict[str, tuple[tuple[int, ...], np.dtype[Any]]], dict[str, int]]:
        """Return shape and dtype of each array over all samples, a file each, and totals of ragged ones."""
        arrays, totals = {}, dict[str, int]()
        for name, array in self._first.items():
            shape: tuple[int, ...] = (len(self._files), *array.shape)
            if len(set(self.lengths[name])) > 1:
                shape, totals[name] = (len(self._files), VARIES, *array.shape[1:]), sum(self.lengths[name])
            arrays[name] = shape, array.dtype
        return arrays, totals

    @property
    def _alike(self) -> bool:
        return all(len(set(lengths)) == 1 for lengths in self.lengths.values())

    @property
    def _described(self) -> str:
        return ", ".join(f"{name} {one.dtype} {one.shape}" for name, one in list(self._first.items())[:3])
