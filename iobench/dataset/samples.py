"""Format samples: a file of arrays per sample, such as .npz, .npy, .pt or .safetensors.

Files that lie in a subfolder per class have it as their label. What lies next to each file under its name is
a field, too: a number in a .cls or .txt file, or the numbers in an object of a .json file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from iobench import formats
from iobench.base.errors import CorruptArtifact, corrupt, expecting
from iobench.base.files import regular
from iobench.base.finding import Finding
from iobench.dataset.file_set import ArrayShapes, attributes_of, data_files, load, shapes_in, texts_in
from iobench.formats import Array, Batch, Field, Index, Placement, Ragged, Schema, folders, unclosed
from iobench.formats.folders import ARRAYS, ClassFolder, entries_of, file_of, has_suffix, is_class_folder

LABEL = "label"
FOLDER_FILES = 1000  # per folder that is written
NEIGHBORS = (".cls", ".txt", ".json")
MOST_MAPPED = 30_000  # files: the kernel lets a process map 65,530


@dataclass(frozen=True)
class Samples(formats.Format, formats.Detectable):
    """A .npz file per sample; of data of other programs, also other files of arrays."""

    name: ClassVar[str] = "samples"
    summary: ClassVar[str] = "one file of arrays per sample: .npz, .npy, .pt, .safetensors"
    library: ClassVar[str] = "numpy"
    holds_ragged: ClassVar[bool] = True
    survives_unlink: ClassVar[bool] = False
    offered: ClassVar[bool] = False

    @property
    def parallel(self) -> bool:
        """True: each sample is a file to open and to decode."""
        return True

    def size_bound(self, schema: Schema) -> int:
        """Return logical bytes, and headers and a partly filled block per file."""
        return super().size_bound(schema) + schema.samples * (8192 + 512 * len(schema.fields))

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Write `000/000000012.npz` for sample 12."""
        row = 0
        for batch in batches:
            fields: dict[str, Any] = dict(batch)
            for number in range(len(next(iter(fields.values())))):
                folder = path / f"{row // FOLDER_FILES:03}"
                folder.mkdir(parents=True, exist_ok=True)
                sample = {}
                for name, one in fields.items():
                    own = slice(*one.offsets[number : number + 2]) if isinstance(one, Ragged) else number
                    sample[name] = (one.values if isinstance(one, Ragged) else one)[own]
                np.savez(folder / f"{row:09}.npz", **sample)
                row += 1

    def open(self, path: Path, schema: Schema, random: bool = False) -> _SamplesReader:
        """Compare the number of files with the schema, and return a reader."""
        files, labels = files_of(path)
        if len(files) != schema.samples:
            raise corrupt(path, f"{schema.samples} files", len(files))
        return _SamplesReader(schema, files, labels)

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema of the samples; reads a header of each file.

        CorruptArtifact as of `ArrayShapes`, or ``missing-label`` if only some samples have one.
        """
        files, labels = files_of(path)
        arrays, totals = ArrayShapes(files, [shapes_in(file) for file in files]).samples()
        known: dict[str, Any] = dict(arrays)
        others = neighbors_of(files)[0] if path.is_dir() else {}
        others |= {LABEL: labels} if labels is not None else {}
        for name, values in others.items():
            known.setdefault(name, (values.shape, values.dtype))
        return formats.arrays_schema(path, known, totals=totals)

    def files(self, path: Path) -> Sequence[Path]:
        """Return the files of arrays and what lies next to them."""
        files, _ = files_of(path)
        return [*files, *neighbors_of(files)[1]]

    def notes(self, path: Path, schema: Schema) -> list[Finding]:
        """Return how labels were taken, where folders lie inside those of the classes."""
        if not path.is_dir():
            left = folders.parts_not_read("array", groups_of(path).left, " outside of the groups")
            return left + attributes_of(path)
        notes = ClassFolder.of(path, ARRAYS).notes() if is_class_folder(path, ARRAYS) else []
        first = files_of(path)[0][0]
        return notes + folders.parts_not_read("array", texts_in(first)) + attributes_of(first)


class _SamplesReader(formats.Reader):
    """Loads a file for each sample; none stays open between reads."""

    def __init__(self, schema: Schema, files: Sequence[Path], labels: Array | None) -> None:
        super().__init__(schema)
        self._files: Sequence[Path] | None = files
        self._labels, self._names = labels, formats.field_names(shapes_in(files[0]))
        self._others: Mapping[str, Array] | None = None

    def batch(self, rows: formats.Rows | Sequence[int]) -> Batch:
        checked, count = self._checked(rows)
        return self._timed(self._loaded)(formats.index_of(checked)) if count else self.schema.empty(0)

    def placement(self) -> Mapping[str, Placement]:
        """Return the places of the arrays that lie in their files as in memory."""
        stored = [file_of(one) for one in unclosed(self._files)]
        files = tuple(dict.fromkeys(stored))
        if len(files) > MOST_MAPPED:
            return {}
        index, places = self.load_or_build("places", self._places), dict[str, Placement]()
        of_file = {file: number for number, file in enumerate(files)}
        numbers = np.array([of_file[one] for one in stored])
        for field in self.schema.fields:
            offset = index.get(f"{field.name}.offset")
            if offset is None or (offset < 0).any():
                continue
            size = index[f"{field.name}.size"]
            if field.is_ragged:
                places[field.name] = formats.ListedSpans(files, numbers, offset, size)
            elif (size == field.sample_bytes).all():
                places[field.name] = formats.Listed(files, numbers, offset)
        return places

    def close(self) -> None:
        self._files = None

    def _places(self) -> Iterator[dict[str, Array]]:
        """Yield the offset and the bytes of each array in each file; -1 where it is encoded."""
        files, names = unclosed(self._files), self._names
        own = [field for field in self.schema.fields if field.name in names]
        for low in range(0, len(files), FOLDER_FILES):
            stored = [shapes_in(file) for file in files[low : low + FOLDER_FILES]]
            piece = dict[str, Array]()
            for field in own:
                lacking = (n for n, one in enumerate(stored) if names[field.name] not in one)
                if (number := next(lacking, None)) is not None:
                    raise corrupt(files[low + number], f"an array {names[field.name]}", "none")
                some = [one[names[field.name]] for one in stored]
                known = [one.offset is not None and one.dtype == field.dtype for one in some]
                offsets = [one.offset if plain else -1 for one, plain in zip(some, known, strict=True)]
                sizes = [math.prod(one.shape) * one.dtype.itemsize for one in some]
                piece |= {f"{field.name}.offset": np.array(offsets), f"{field.name}.size": np.array(sizes)}
            yield piece

    def _loaded(self, rows: Index) -> Batch:
        files, batch = unclosed(self._files), dict[str, Any]()
        names = set(self._names.values())
        loaded = [load(files[row], names) for row in rows.tolist()]
        for field in self.schema.fields:
            name = self._names.get(field.name)
            if name is None:
                batch[field.name] = self._known(field)[rows]
                continue
            arrays = []
            for row, one in zip(rows.tolist(), loaded, strict=True):
                array = formats.native(np.asarray(one[name])) if name in one else None
                shape = None if array is None else array.shape[1:] if field.is_ragged else array.shape
                if array is None or (shape, array.dtype.name) != (field.inner, field.dtype):
                    found = "none" if array is None else f"{array.dtype} {array.shape}"
                    raise corrupt(files[row], f"{name}: {field.typed}", found)
                arrays.append(array)
            batch[field.name] = (
                Ragged.of(arrays, field.inner, field.dtype) if field.is_ragged else np.stack(arrays)
            )
        return batch

    def _known(self, field: Field) -> Array:
        """Return the values of a field that are not in the files themselves."""
        if field.name == LABEL and self._labels is not None:
            return self._labels
        if self._others is None:
            files = unclosed(self._files)
            self._others = self.load_or_build("neighbors", lambda: [neighbors_of(files)[0]])
        if field.name not in self._others:
            raise corrupt(unclosed(self._files)[0], f"an array {field.name}", "none")
        return self._others[field.name]

    def _read_rows(self, rows: Index, out: Mapping[str, Array]) -> None:
        batch = self._timed(self._loaded)(rows)
        for name, target in out.items():
            target[...] = batch[name]


def groups_of(path: Path) -> formats.Groups:
    """Return the alike groups of an HDF5 file."""
    from iobench.formats.hdf5 import Hdf5

    return Hdf5().groups(path)


def files_of(path: Path) -> tuple[Sequence[Path], Array | None]:
    """Return the files in a folder, or the groups of a file; labels if there is a subfolder per class."""
    if not path.is_dir():
        return [path / name for name in groups_of(path).arrays], None
    written = path / "000" / f"{0:09}.npz"
    if not written.exists() and is_class_folder(path, ARRAYS):
        folder = ClassFolder.of(path, ARRAYS)
        return folder.files, folder.labels
    found = [file for file in data_files(path) if has_suffix(file.name, ARRAYS)]
    if not found:
        raise CorruptArtifact(f"it holds no {', '.join(ARRAYS)} file", "no-files", path)
    return found, None


def neighbors_of(files: Sequence[Path]) -> tuple[dict[str, Array], list[Path]]:
    """Return the numbers in what lies next to files under their names, by field, and the files with them.

    CorruptArtifact (``missing-label``) if only some samples have a number.
    """
    fields, read = dict[str, Array](), list[Path]()
    present = {Path(one.path) for folder in {file.parent for file in files} for one in entries_of(folder)}
    for suffix in NEIGHBORS:
        beside = [file.with_suffix(suffix) for file in files]
        values = [_numbers(file) if file in present else {} for file in beside]
        names = sorted({name for one in values for name in one})
        for file, own in zip(beside, values, strict=True):
            if lacking := [name for name in names if name not in own]:
                problem = f"no number {lacking[0]} in {file.name}, and other samples have one"
                hint = "add it, or move the sample out of the folder"
                raise CorruptArtifact(problem, "missing-label", file.parent, hint=hint)
        fields |= {name: np.array([one[name] for one in values]) for name in names}
        read += beside if names else []
    return fields, read


def _numbers(file: Path) -> dict[str, int | float]:
    """Return the numbers in a file by name; those of .cls and .txt are named by their suffix."""
    with expecting(file, "a number, or an object of numbers", (OSError, UnicodeError, ValueError)):
        text = regular(file).read_text()
        try:
            value = json.loads(text)
        except ValueError:
            value = None
    members = value if isinstance(value, dict) else {file.suffix[1:]: value}
    return {name: one for name, one in members.items() if isinstance(one, int | float)}
