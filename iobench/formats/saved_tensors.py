"""Tensors that TensorDict saved: where each lies, by key, and what has no tensor. No class is imported.

`memmap()` writes a folder per TensorDict, a raw file per tensor and a `meta.json`; `consolidate()` writes
one file, with the description at its end. Both hold TensorDicts and tensorclasses, nested or in lazy stacks.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote

import numpy as np

from iobench.base.errors import CorruptArtifact, corrupt, expecting
from iobench.base.files import regular
from iobench.base.text import shortened
from iobench.formats.array_schema import ShapeAndDtype, unsupported_dtype
from iobench.formats.placement import Index, Listed, ListedSpans, Placement, Strided
from iobench.formats.ragged import VARIES, offsets_of
from iobench.formats.schema import DTYPES, Array, numpy_dtype

META = "meta.json"
INNER = "_tensordict"  # folder in which a tensorclass stores its tensors
MOST_META_BYTES = 16 << 20
END = 8  # bytes at the end of a consolidated file: the size of the description before them
DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OverflowError)
PLAIN, STACK = "TensorDict", "LazyStackedTensorDict"
NO_TENSOR = ("NonTensorData", "NonTensorStack")


@dataclass(frozen=True)
class Leaf:
    """A tensor in one file, its first axis that of the samples."""

    file: Path
    offset: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def typed(self) -> ShapeAndDtype:
        """Shape and dtype, as of an array."""
        return self.shape, self.dtype

    def placement(self) -> Placement:
        """Return the location of the samples."""
        return Strided((self.file,), self.offset, self.nbytes // max(1, self.shape[0]))

    def merged(self, axes: int) -> Leaf:
        """Return it with the first axes as one."""
        shape = (math.prod(self.shape[:axes]), *self.shape[axes:])
        return Leaf(self.file, self.offset, shape, self.dtype) if axes > 1 else self

    def filling(self) -> Leaf:
        """Return it if it is all of its file; CorruptArtifact otherwise."""
        if (size := self.file.stat().st_size) != self.nbytes:
            raise corrupt(self.file, f"{self.nbytes} bytes", size)
        return self

    def mapped(self) -> Array:
        """Map it, read-only; by NumPy, because TensorDict's maps count as memory."""
        return np.memmap(self.file, self.dtype, "r", self.offset, self.shape)

    def row(self, number: int) -> Array:
        """Return a sample in new memory; opens and closes the file."""
        begin = self.offset + number * (self.nbytes // self.shape[0])
        return Leaf(self.file, begin, self.shape[1:], self.dtype).loaded()

    def loaded(self) -> Array:
        """Return the tensor in new memory; opens and closes the file."""
        values = np.fromfile(self.file, self.dtype, math.prod(self.shape), offset=self.offset)
        if values.size != math.prod(self.shape):
            raise corrupt(self.file, f"{self.nbytes} bytes at {self.offset}", values.nbytes)
        return values.reshape(self.shape)


@dataclass(frozen=True)
class Stack:
    """Samples of which each is a tensor of its own; their first axes may differ."""

    samples: tuple[Leaf, ...]

    @property
    def typed(self) -> ShapeAndDtype:
        """Shape and dtype, as of an array."""
        first, ragged = self.samples[0], len({leaf.shape for leaf in self.samples}) > 1
        shape = (VARIES, *first.shape[1:]) if ragged else first.shape
        return (len(self.samples), *shape), first.dtype

    @property
    def total(self) -> int:
        """Sum of the lengths of all samples."""
        return sum(leaf.shape[0] for leaf in self.samples if leaf.shape)

    def placement(self) -> Placement:
        """Return the location of the samples."""
        files = tuple(dict.fromkeys(leaf.file for leaf in self.samples))
        numbers = {file: number for number, file in enumerate(files)}
        number, offset, size = np.array(
            [(numbers[leaf.file], leaf.offset, leaf.nbytes) for leaf in self.samples], np.int64
        ).T.copy()
        ragged = VARIES in self.typed[0]
        return ListedSpans(files, number, offset, size) if ragged else Listed(files, number, offset)

    def row(self, number: int) -> Array:
        """Return a sample in new memory; opens and closes the file."""
        return self.samples[number].loaded()


@dataclass(frozen=True, eq=False)
class Jagged:
    """Samples of different lengths, end to end in one tensor."""

    values: Leaf
    offsets: Index

    @property
    def typed(self) -> ShapeAndDtype:
        """Shape and dtype, as of an array."""
        return (len(self.offsets) - 1, VARIES, *self.values.shape[1:]), self.values.dtype

    @property
    def total(self) -> int:
        """Sum of the lengths of all samples."""
        return self.values.shape[0]


Column: TypeAlias = Leaf | Stack | Jagged


@dataclass(frozen=True)
class SavedTensors:
    """Columns of what was saved, by key, with `/` between the names of nested ones.

    In place of a column that is not read is its error, without the key. `left_out` holds the kinds of what
    has no tensor.
    """

    batch_size: tuple[int, ...] = ()
    columns: dict[str, Column | CorruptArtifact] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def take(self, key: str, make: Callable[..., Column], *arguments: Any) -> None:
        """Add the column that `make` returns, or its error."""
        try:
            self.columns[key] = make(*arguments)
        except CorruptArtifact as error:
            self.columns[key] = error

    def nest(self, key: str, inner: SavedTensors) -> None:
        """Add the columns of a nested TensorDict."""
        self.columns.update((f"{key}/{own}", one) for own, one in inner.columns.items())
        self.left_out.update((f"{key}/{own}".strip("/"), kind) for own, kind in inner.left_out.items())


def saved_tensors(path: Path) -> SavedTensors:
    """Return the tensors in a folder or consolidated file; CorruptArtifact if there is another thing."""
    with expecting(path, "what TensorDict saved", DAMAGE):
        return _of_folder(path, path) if path.is_dir() else _of_file(path, consolidated(path), path)


def consolidated(file: Path) -> dict[str, Any]:
    """Return the description at the end of a consolidated file; CorruptArtifact if it is none."""
    damage = (OSError, ValueError, RecursionError)
    with expecting(file, "a file of TensorDict.consolidate()", damage), open(regular(file), "rb") as opened:
        size = opened.seek(0, os.SEEK_END)
        opened.seek(max(0, size - END))
        length = int.from_bytes(opened.read(END), "little", signed=True)
        if not 0 < length <= min(size - END, MOST_META_BYTES):
            raise ValueError("no description at its end")
        opened.seek(size - END - length)
        described = json.loads(opened.read(length))
        if not isinstance(described, dict) or not {"cls", "leaves", "non_tensors"} <= described.keys():
            raise ValueError("another description at its end")
    return described


def read_meta(folder: Path) -> dict[str, Any]:
    """Parse TensorDict's description of a folder; CorruptArtifact if there is none."""
    file = folder / META
    with expecting(file, "TensorDict's description of the fields", (OSError, ValueError, RecursionError)):
        if not file.is_file() or file.stat().st_size > MOST_META_BYTES:
            raise OSError("no such file" if not file.exists() else "not a file, or a very large one")
        described = json.loads(file.read_text())
        if not isinstance(described, dict):
            raise ValueError("not an object")
    return described


def _class_of(meta: Mapping[str, Any]) -> str:
    """Return the name of the class of a description; with its module, if it is not TensorDict's."""
    text = str(meta.get("_class") or meta.get("_type")).removeprefix("<class '").removesuffix("'>")
    module, _, name = text.replace(":", ".").rpartition(".")
    return name if module.partition(".")[0] == "tensordict" else text


def is_saved(path: Path) -> bool:
    """Return True for a folder with TensorDict's description, or a file that ends with one."""
    try:
        meta = read_meta(_inner(path)) if path.is_dir() else consolidated(path)
    except CorruptArtifact:
        return False
    return "cls" in meta or _class_of(meta) == STACK or (_class_of(meta) == PLAIN and "shape" in meta)


def _inner(folder: Path) -> Path:
    """Return the folder that holds the tensors; a tensorclass has an inner one."""
    return folder / INNER if (folder / INNER / META).is_file() else folder


def _of_folder(folder: Path, path: Path) -> SavedTensors:
    folder = _inner(folder)
    meta, entries = read_meta(folder), _entries(folder)
    name = _class_of(meta)
    if name == STACK:
        numbered = [entries[str(number)] for number in range(len(entries)) if str(number) in entries]
        return _stacked(path, meta["stack_dim"], (_of_folder(one, path) for one in numbered))
    if name in NO_TENSOR:
        return SavedTensors(left_out={"": name})
    if name != PLAIN:
        problem, expected = "saved from an unsupported class", "a TensorDict or a tensorclass of tensors"
        found, hint = shortened(name), "save td.to_tensordict()"
        raise CorruptArtifact(problem, "unsupported-class", path, expected=expected, found=found, hint=hint)
    saved = SavedTensors(_sizes(meta.get("shape", [])))
    for key, one in meta.items():
        if not isinstance(one, dict):
            continue
        if "type" in one:
            saved.nest(key, _of_folder(entries.get(key, folder / META), path))
        else:
            saved.take(key, _tensor, path, folder, entries, key, one)
    return saved


def _entries(folder: Path) -> dict[str, Path]:
    """Return the entries of a folder by key; TensorDict percent-encodes unusual names."""
    names = sorted(os.listdir(folder))
    return {**{unquote(name): folder / name for name in names}, **{name: folder / name for name in names}}


def _tensor(path: Path, folder: Path, entries: Mapping[str, Path], key: str, one: dict[str, Any]) -> Column:
    """Return a tensor of a folder, or a nested one, whose shapes lie in a file of their own."""
    file = entries.get(f"{key}.memmap")
    dtype, shape = _checked(path, one.get("dtype"), one.get("shape"))
    if file is None or not file.is_file():
        raise corrupt(folder, f"a file {key}.memmap", "no such file")
    leaf = Leaf(file, 0, shape, dtype)
    if not one.get("is_nested"):
        return leaf.filling()
    shapes = Leaf(entries[f"{key}.shape.memmap"], 0, shape, "int64").filling().loaded()
    inner = tuple(shapes[0, 1:].tolist())
    if (shapes < 0).any() or (shapes[:, 1:] != inner).any():
        raise _not_one_shape(path, "samples differ in several axes")
    offsets = offsets_of(shapes[:, 0])
    return Jagged(Leaf(file, 0, (int(offsets[-1]), *inner), dtype).filling(), offsets)


def _of_file(file: Path, meta: dict[str, Any], path: Path) -> SavedTensors:
    described = dict(meta)
    name, own = str(described.pop("cls")), described.pop("cls_metadata")
    leaves, non_tensors = described.pop("leaves"), described.pop("non_tensors")
    described.pop("size", None)
    if name == STACK:
        numbered = [described[str(number)] for number in range(len(described))]
        return _stacked(path, own["stack_dim"], (_of_file(file, one, path) for one in numbered))
    if name in NO_TENSOR:
        return SavedTensors(left_out={"": name})
    saved = SavedTensors(_sizes(own["batch_size"]), left_out=dict.fromkeys(non_tensors, "NonTensorData"))
    end = file.stat().st_size
    for key, one in leaves.items():
        if key.startswith(("<NJT_VALUES>", "<NJT_LENGTHS>")):
            continue
        plain = key.removeprefix("<NJT_OFFSETS>")
        saved.take(plain, _section, file, end, leaves, key, one)
    for key, one in described.items():
        saved.nest(key, _of_file(file, one, path))
    return saved


def _section(file: Path, end: int, leaves: Mapping[str, Any], key: str, one: list[Any]) -> Column:
    """Return a tensor of a consolidated file, or a jagged one, whose offsets are another."""
    plain = key.removeprefix("<NJT_OFFSETS>")
    dtype, shape = _checked(file, one[0], one[1])
    leaf = Leaf(file, one[2], shape, dtype)
    if type(one[2]) is not int or not 0 <= one[2] <= one[2] + leaf.nbytes <= end:
        raise corrupt(file, f"{leaf.nbytes} bytes of {shortened(plain)}", f"{end} bytes in all")
    if plain == key:
        return leaf
    if f"<NJT_LENGTHS>{plain}" in leaves or one[5:] not in ([], [1]) or dtype != "int64":
        raise _not_one_shape(file, "a nested tensor with gaps or another jagged axis")
    values = _section(file, end, leaves, f"<NJT_VALUES>{plain}", leaves[f"<NJT_VALUES>{plain}"])
    assert isinstance(values, Leaf)
    return Jagged(values, leaf.loaded())


def _stacked(path: Path, dim: object, parts: Iterable[SavedTensors]) -> SavedTensors:
    """Return the columns of a lazy stack, of which each part is a sample."""
    samples = list(parts)
    if not samples:
        raise CorruptArtifact("a lazy stack of nothing", "no-arrays", path)
    stacked = SavedTensors((len(samples), *samples[0].batch_size))
    for part in samples:
        stacked.left_out.update(part.left_out)
    for key in dict.fromkeys(key for part in samples for key in part.columns):
        leaves = [part.columns.get(key) for part in samples]
        stacked.take(key, _stack, path, dim, leaves)
    return stacked


def _stack(path: Path, dim: object, leaves: list[Column | CorruptArtifact | None]) -> Stack:
    for error in leaves:
        if isinstance(error, CorruptArtifact):
            raise error
    tensors = tuple(leaf for leaf in leaves if isinstance(leaf, Leaf))
    if len(tensors) < len(leaves):
        found = "stacks in stacks" if None not in leaves else f"{leaves.count(None):,} samples without it"
        raise _not_one_shape(path, found)
    kinds = {(leaf.dtype, leaf.shape[1:], len(leaf.shape)) for leaf in tensors}
    if dim != 0 or len(kinds) > 1:
        raise _not_one_shape(path, f"a lazy stack along axis {dim}" if dim else "samples of several kinds")
    return Stack(tensors)


def _checked(path: Path, dtype: object, shape: object) -> tuple[str, tuple[int, ...]]:
    """Return dtype and shape of a tensor; CorruptArtifact if formats do not store it."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise unsupported_dtype(path, "", f"{name} {shape}")
    return numpy_dtype(name).name, _sizes(shape)


def _sizes(shape: object) -> tuple[int, ...]:
    if not isinstance(shape, list) or not all(type(n) is int and 0 <= n < 1 << 62 for n in shape):
        raise ValueError(f"{shape} is no shape")
    return tuple(shape)


def _not_one_shape(path: Path, found: str) -> CorruptArtifact:
    problem = "no tensor of one shape, or of one axis that varies"
    return CorruptArtifact(problem, "unequal-shapes", path, found=found, hint="save td.contiguous() of it")
