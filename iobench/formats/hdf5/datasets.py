"""Datasets of an HDF5 file that another program wrote, with the reason for each that cannot be read.

The library trusts what it reads, so a damaged file can end the process. Files from an unknown source are
therefore inspected in a separate process.

Data may be in other files, by links, as sources of virtual datasets, and as raw bytes. These have to lie
beside the file or below its folder. The library reads what a virtual dataset does not find as its fill value,
and what a raw file lacks as zeros, so all of these are checked.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import numpy as np

from iobench.base.errors import CorruptArtifact, in_use
from iobench.base.files import name_problem, regular
from iobench.base.text import reason, shortened
from iobench.formats.array_schema import DTYPE_HINT, ShapeAndDtype
from iobench.formats.folders import ATTRIBUTES, file_of

Selection: TypeAlias = tuple[tuple[int, ...], ...]  # start, stride, count and block of each axis
MAX_OBJECTS = 10_000
MAX_PATH = 1000
MAX_CHUNK_BYTES = 128 << 20
# What h5py raises for damaged metadata and chunks, a missing dataset, and types that NumPy does not have.
DAMAGE = (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError, AttributeError)

COPY = "copy its data in"
SAME_FILE = "."  # name of a source in the file of the virtual dataset
MAX_LEVELS = 8  # of links to links, and of virtual datasets of such

_KINDS = {
    h5py.h5t.VLEN: "variable length",
    h5py.h5t.STRING: "text",
    h5py.h5t.REFERENCE: "references to other objects",
    h5py.h5t.OPAQUE: "opaque bytes",
    h5py.h5t.ARRAY: "an array type",
    h5py.h5t.BITFIELD: "bit fields",
    h5py.h5t.TIME: "times",
}


def open_file(path: Path, locking: bool | None = None, **options: int) -> h5py.File:
    """Open a file for reading as h5py does by default, or as this process has it open.

    HDF5 opens a file several times in a process only with equal flags for its lock. Without a lock it also
    opens files on network file systems that have none. LoaderFailed (`in-use`) if the file is open for
    writing elsewhere: it may change.
    """
    try:
        return h5py.File(regular(path), "r", locking=locking, **options)
    except BlockingIOError as error:
        raise in_use(path, "another process has it open for writing", "close it there first") from error
    except OSError as error:
        if locking is False or "lock" not in str(error):
            raise
    return open_file(path, locking is None, **options)


def other_file(origin: Path, name: str) -> Path:
    """Return the file that a file names, as HDF5 finds it; raises the refusal of one that is not read."""
    inside = os.path.relpath(name, origin.parent) if os.path.isabs(name) else os.path.normpath(name)
    found = shortened(name, 200)
    if name_problem(inside):
        problem, hint = "its data are in a file outside its folder", f"{COPY}, or move the file beside it"
        raise CorruptArtifact(problem, "external-data", found=found, hint=hint)
    if not (file := origin.parent / inside).exists():
        problem, hint = "its data are in a file that is missing", "restore the file, or leave the data out"
        raise CorruptArtifact(problem, "missing-file", found=found, hint=hint)
    return file


def own_object(file: h5py.File, key: str) -> Any:
    """Return a dataset or group that is in the file and no link leads to; None if there is none.

    The names of raw files are those from the file's folder, not the current one.
    """
    parts = key.strip("/").split("/")
    for count in range(1, len(parts) + 1):
        if not isinstance(file.get("/".join(parts[:count]), getlink=True), h5py.HardLink):
            return None
    found = file[key]
    if not isinstance(found, h5py.Dataset) or not found.id.get_create_plist().get_external_count():
        return found
    del found  # an open dataset keeps its prefix
    access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
    access.set_efile_prefix(b"${ORIGIN}")
    return h5py.Dataset(h5py.h5d.open(file.id, key.encode("utf-8", "surrogateescape"), access))


@dataclass(frozen=True)
class VirtualSource:
    """A part of a virtual dataset: the selection of it, and that of a dataset in a file, None for all."""

    file: Path
    key: str
    target: Selection
    own: Selection | None

    @contextmanager
    def opened(self, path: Path, whole: h5py.Dataset) -> Iterator[Any]:
        """Yield the source of a part of `whole`, a dataset of the file `path`."""
        if self.file == path:
            yield own_object(whole.file, self.key)
            return
        with open_file(self.file) as file:
            yield own_object(file, self.key)


def is_virtual(dataset: h5py.Dataset) -> bool:
    """Return whether a dataset is composed of others."""
    return bool(dataset.id.get_create_plist().get_layout() == h5py.h5d.VIRTUAL)


def raw_parts(dataset: h5py.Dataset, path: Path) -> list[tuple[Path, int, int]]:
    """Return the parts of a dataset of the file `path` in raw files, end to end: file, offset and bytes.

    Raises a refusal unless they hold all of it.
    """
    properties, parts = dataset.id.get_create_plist(), list[tuple[Path, int, int]]()
    left = math.prod(dataset.shape or ()) * dataset.dtype.itemsize
    for number in range(properties.get_external_count()):
        _refuse_moved("HDF5_EXTFILE_PREFIX")
        name, offset, size = properties.get_external(number)
        file = other_file(path, name.decode("utf-8", "surrogateescape"))
        held = min(size, left, max(0, regular(file).stat().st_size - offset))
        parts, left = [*parts, (file, offset, held)], left - held
        if held < size and left:
            found = f"{offset + held:,} bytes"
            raise CorruptArtifact(f"{file.name} is truncated", "not-stored", found=found)
    return parts


def _refuse_moved(variable: str) -> None:
    if os.environ.get(variable):
        hint = "unset it, and keep the sources beside the file"
        raise CorruptArtifact(f"{variable} moves its sources", "external-data", hint=hint)


def data_elsewhere(dataset: h5py.Dataset) -> str | None:
    """Return the first other file that holds data of a dataset; None if there is none."""
    properties = dataset.id.get_create_plist()
    if properties.get_external_count():
        return shortened(properties.get_external(0)[0].decode(errors="replace"), 200)
    return shortened(properties.get_virtual_filename(0), 200) if is_virtual(dataset) else None


def sources_of(dataset: h5py.Dataset, path: Path) -> list[VirtualSource]:
    """Return the parts of a virtual dataset of the file `path`; raises a refusal if it is not read."""
    properties, sources = dataset.id.get_create_plist(), []
    for number in range(properties.get_virtual_count()):
        name, key = properties.get_virtual_filename(number), properties.get_virtual_dsetname(number)
        spaces = properties.get_virtual_vspace(number), properties.get_virtual_srcspace(number)
        target, own = map(_selected, spaces)
        if "%" in name + key or target is None or h5py.h5s.UNLIMITED in target[2]:
            problem = "a virtual dataset whose number of sources is open"
            raise CorruptArtifact(problem, "external-data", found=shortened(name, 200), hint=COPY)
        file = path if name == SAME_FILE else other_file(path, name)
        sources.append(VirtualSource(file, key, target, own))
    return sources


def _selected(space: Any) -> Selection | None:
    """Return a regular selection; None for all, and for what is not regular."""
    try:
        selection: Selection = space.get_regular_hyperslab()
    except ValueError:
        return None
    return selection


def files_of_virtual(dataset: h5py.Dataset, path: Path, levels: int = MAX_LEVELS) -> set[Path]:
    """Return the files of a virtual dataset's sources; raises a refusal unless they hold all of it."""
    if not levels:
        raise CorruptArtifact("its sources are virtual datasets of such", "external-data", hint=COPY)
    _refuse_moved("HDF5_VDS_PREFIX")
    files, covered = set[Path](), h5py.h5s.create_simple(dataset.shape)
    covered.select_none()
    for source in sources_of(dataset, path):
        with source.opened(path, dataset) as stored:
            if not isinstance(stored, h5py.Dataset) or not _holds(stored, source):
                problem = "a source of it is missing, or smaller than the part that it stands for"
                found = f"{source.key} in {source.file.name}"
                raise CorruptArtifact(problem, "not-stored", found=shortened(found, 200))
            files.add(source.file)
            if is_virtual(stored):
                files |= files_of_virtual(stored, source.file, levels - 1)
            elif other := data_elsewhere(stored):
                problem = "the data of a source of it are in raw files"
                raise CorruptArtifact(problem, "external-data", found=other, hint=COPY)
            else:
                check_stored(stored)
        covered.select_hyperslab(*source.target, op=h5py.h5s.SELECT_OR)
    if (rest := math.prod(dataset.shape) - covered.get_select_npoints()) > 0:
        problem, found = "part of it has no source", f"{rest:,} elements that read as the fill value"
        raise CorruptArtifact(problem, "not-stored", found=found)
    return files - {path}


def _holds(stored: h5py.Dataset, source: VirtualSource) -> bool:
    if source.own is None:
        _, _, count, block = source.target
        return bool(math.prod(stored.shape) == math.prod(count) * math.prod(block))
    ends = (begin + (n - 1) * step + size for begin, step, n, size in zip(*source.own, strict=True))
    inside = (end <= size for end, size in zip(ends, stored.shape, strict=False))
    return len(stored.shape) == len(source.own[0]) and all(inside)


@dataclass(frozen=True)
class Described:
    """A dataset, or a member of a compound one, or a link that may lead to one."""

    file: Path  # that it is in
    key: str  # its path in that file
    shape: tuple[int, ...] | None = None  # None if it is unknown
    dtype: np.dtype[Any] | None = None  # None if it cannot be read
    refused: CorruptArtifact | None = None  # why not, without name and path, so that others can be selected
    member: str | None = None
    chunk_rows: int = 0
    chunk_bytes: int = 0
    packed: bool = False
    attributes: Mapping[str, Any] = field(default_factory=dict)  # those of ATTRIBUTES
    sources: frozenset[Path] = frozenset()  # raw files, or files with the sources of a virtual dataset

    @property
    def typed(self) -> ShapeAndDtype | CorruptArtifact:
        """Shape and dtype, or why it is not read."""
        if self.refused:
            return self.refused
        assert self.shape is not None
        assert self.dtype is not None
        return self.shape, self.dtype


def described(group: h5py.Group, path: Path, levels: int = MAX_LEVELS) -> dict[str, Described]:
    """Return what a group of the file `path` holds, by path below the group.

    Each member of a compound type is of its own, `name/member`. Links to other files are followed if these
    lie below the file's folder. ValueError if there are more objects than are inspected, one of DAMAGE if the
    file is damaged.
    """
    datasets: dict[str, Described] = {}
    firsts: dict[tuple[int, int], str] = {}  # an object's address → the first path to it
    paths = {"": ""}  # any path → the first one to the same object
    links, above = _links(group), group.name.strip("/")
    for name, kind in links:
        if kind == h5py.h5l.TYPE_HARD:
            info = h5py.h5o.get_info(group.id, name.encode("utf-8", "surrogateescape"))
            paths[name] = firsts.setdefault((info.fileno, info.addr), name)
            if info.type == h5py.h5o.TYPE_DATASET and paths[name] == name:
                whole = Described(path, f"{above}/{name}".strip("/"))
                datasets.update(_dataset(group, name, whole))
    for name, kind in links:
        if kind == h5py.h5l.TYPE_EXTERNAL:
            try:
                datasets.update(_linked(group, name, path, levels))
            except CorruptArtifact as refusal:
                datasets[name] = Described(path, name, refused=refusal)
        elif kind != h5py.h5l.TYPE_HARD and (refused := _other_link(group, name, kind, paths)):
            datasets[name] = Described(path, name, refused=refused)
    return datasets


def _linked(group: h5py.Group, name: str, path: Path, levels: int) -> dict[str, Described]:
    """Return what a link to another file leads to; raises its refusal."""
    target = group.id.links.get_val(name.encode("utf-8", "surrogateescape"))
    other, key = (one.decode("utf-8", "surrogateescape") for one in target)
    if not levels:
        raise CorruptArtifact("links to files that link to others", "external-data", hint=COPY)
    with open_file(file := other_file(path, other)) as opened:
        every, key = described(opened, file, levels - 1), key.strip("/")
    linked = {
        f"{name}/{own.removeprefix(key).strip('/')}".strip("/"): one
        for own, one in every.items()
        if not key or own == key or own.startswith(f"{key}/")
    }
    if not linked:
        problem, found = "a link to data that its file does not hold", f"{key} in {file.name}"
        raise CorruptArtifact(problem, "dangling-link", found=shortened(found))
    return linked


def _links(file: h5py.Group) -> list[tuple[str, int]]:
    """Return path and kind of all links below the root; leaves the file by none, enters no group twice."""
    links: list[tuple[str, int]] = []

    def note(name: bytes, link: Any) -> bool | None:
        if len(links) == MAX_OBJECTS or len(name) > MAX_PATH:
            return True  # ends the visit
        links.append((name.decode("utf-8", "surrogateescape"), link.type))  # h5py reuses `link` itself
        return None

    if file.id.links.visit(note, info=True):
        raise ValueError(f"more than {MAX_OBJECTS:,} objects, or a path longer than {MAX_PATH} bytes")
    return links


def _other_link(file: h5py.Group, name: str, kind: int, paths: dict[str, str]) -> CorruptArtifact | None:
    """Return why a link within the file that is not a hard link is refused; None for a soft link."""
    if kind != h5py.h5l.TYPE_SOFT:
        return CorruptArtifact(
            "a user-defined link, which only the program that defined it follows", "unknown-link"
        )
    target = file.id.links.get_val(name.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")
    at = "" if target.startswith("/") else paths.get(name.rpartition("/")[0], "")
    for part in target.split("/"):
        path = f"{at}/{part}".strip("/") if part not in ("", ".") else at
        if path not in paths:
            problem = "a soft link to a path that is not in the file"
            return CorruptArtifact(problem, "dangling-link", found=repr(shortened(target)))
        at = paths[path]
    return None


def _dataset(group: h5py.Group, name: str, whole: Described) -> dict[str, Described]:
    identifier = h5py.h5d.open(group.id, name.encode("utf-8", "surrogateescape"))
    kind = identifier.get_type().get_class()
    if kind in _KINDS:
        try:
            text = str(identifier.dtype)
        except DAMAGE:
            text = "no NumPy dtype"
        found = f"{_KINDS[kind]} ({shortened(text)})"
        return {name: replace(whole, refused=_unsupported(found), shape=identifier.shape or ())}
    dataset = h5py.Dataset(identifier)
    try:
        dtype = dataset.dtype
    except TypeError as error:
        problem = "a number type that NumPy does not have"
        refused = CorruptArtifact(problem, kind="unsupported-dtype", found=reason(error))
        return {name: replace(whole, refused=refused)}
    try:
        if is_virtual(dataset):
            whole = replace(whole, sources=frozenset(files_of_virtual(dataset, whole.file)))
        else:
            raw = (file for file, _, _ in raw_parts(dataset, whole.file))
            whole = replace(whole, sources=frozenset(raw))
            check_stored(dataset)
    except CorruptArtifact as error:
        return {name: replace(whole, refused=error, shape=dataset.shape or ())}
    whole = replace(
        whole,
        shape=dataset.shape or (),
        dtype=dtype,
        chunk_rows=dataset.chunks[0] if dataset.chunks else 0,
        chunk_bytes=math.prod(dataset.chunks) * dtype.itemsize if dataset.chunks else 0,
        packed=identifier.get_create_plist().get_nfilters() > 0,
        attributes={key: dataset.attrs[key] for key in ATTRIBUTES if key in dataset.attrs},
    )
    if dtype.names is None:
        return {name: whole}
    members = {}
    for member in dtype.names:
        base, inner = dtype[member].subdtype or (dtype[member], ())
        refusal = None if base.kind in "biufc" else _unsupported(shortened(str(base)))
        shape = (*(dataset.shape or ()), *inner)
        one = replace(whole, shape=shape, dtype=base, refused=refusal, member=member, attributes={})
        members[f"{name}/{member}"] = one
    return members


def _unsupported(found: str) -> CorruptArtifact:
    return CorruptArtifact("unsupported dtype", "unsupported-dtype", found=found, hint=DTYPE_HINT)


class Member:
    """A member of a compound dataset, which is read and located as a dataset of its own."""

    def __init__(self, whole: h5py.Dataset, name: str) -> None:
        self.whole, self.name, self.file, self.chunks = whole, name, whole.file, whole.chunks
        self.dtype, inner = whole.dtype[name].subdtype or (whole.dtype[name], ())
        self.shape = (*whole.shape, *inner)

    def __getitem__(self, rows: Any) -> Any:
        """Return the member of some rows."""
        return self.whole.fields(self.name)[rows]


def attributes_in(path: Path) -> set[str]:
    """Return the names of the attributes in an HDF5 file, or in a group of it; of none if it is damaged."""
    names, file = set[str](), file_of(path)
    with suppress(*DAMAGE), open_file(file) as opened:
        group = opened if path == file else opened[os.path.relpath(path, file)]
        names.update(group.attrs)
        group.visititems(lambda _, item: names.update(item.attrs))
    return names


def check_stored(dataset: h5py.Dataset) -> None:
    """Raise the refusal of data that are incomplete, in chunks too large, or that need a plug-in."""
    properties = dataset.id.get_create_plist()
    if dataset.shape is None or 0 in dataset.shape:
        return
    for number in range(properties.get_nfilters()):
        code, _, _, name = properties.get_filter(number)
        if not h5py.h5z.filter_avail(code):
            codec = shortened(name.decode(errors="replace")) or "a filter"
            problem = f"compressed with {codec} ({code}), which is not installed"
            hint = "install the filter's plug-in in HDF5_PLUGIN_PATH"
            raise CorruptArtifact(problem, "unknown-codec", hint=hint)
    unit, declared = "bytes", math.prod(dataset.shape) * dataset.dtype.itemsize
    stored = dataset.id.get_storage_size()
    if dataset.chunks:
        chunk_bytes = math.prod(dataset.chunks) * dataset.dtype.itemsize
        if chunk_bytes > MAX_CHUNK_BYTES:
            problem = "its chunks are too large, because each must fit in memory"
            expected, found = f"at most {MAX_CHUNK_BYTES >> 20} MiB", f"{chunk_bytes >> 20:,} MiB"
            hint = "rewrite it with h5repack and smaller chunks"
            raise CorruptArtifact(problem, "chunks-too-large", expected=expected, found=found, hint=hint)
        unit, stored = "chunks", dataset.id.get_num_chunks()
        declared = math.prod(-(-n // c) for n, c in zip(dataset.shape, dataset.chunks, strict=True))
    if stored < declared:
        problem, expected = "part of it was never written", f"{declared:,} {unit}"
        hint = "if that part is to be its fill value, store it: array[...] = array[...] with h5py"
        raise CorruptArtifact(problem, "not-stored", expected=expected, found=f"{stored:,} stored", hint=hint)
