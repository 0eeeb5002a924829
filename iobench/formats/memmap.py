"""Format memmap: TensorDict's directory, one raw `<field>.memmap` per field and `meta.json`."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import numpy as np

from iobench.base.errors import CorruptArtifact, corrupt, expecting
from iobench.base.text import shortened
from iobench.formats._array_format import ArrayFormat, StoredArray
from iobench.formats._arrays import arrays_schema, unsupported_dtype
from iobench.formats._format import Detectable
from iobench.formats._mapped_reader import MappedReader
from iobench.formats._placement import Strided
from iobench.formats._reader import Convert, Rows, identity
from iobench.formats._schema import DTYPES, Array, Batch, Field, Schema, field_names, raw_bytes

META = "meta.json"
INNER = "_tensordict"  # folder in which a tensorclass stores its tensors
MOST_META_BYTES = 16 << 20
# Classes whose saved form is parsed here; others are built by code that the data name.
PLAIN = ("<class 'tensordict._td.TensorDict'>", "tensordict:TensorDict")


@dataclass(frozen=True)
class Memmap(ArrayFormat, Detectable):
    """A directory that `TensorDict.load_memmap` opens as a TensorDict or tensorclass."""

    name: ClassVar[str] = "memmap"
    summary: ClassVar[str] = "TensorDict memmap directory, loaded as a tensorclass"
    library: ClassVar[str] = "tensordict"
    modules: ClassVar[tuple[str, ...]] = ("tensordict",)
    dtypes: ClassVar[frozenset[str]] = frozenset(DTYPES)

    def write_arrays(self, path: Path, arrays: Collection[StoredArray], batches: Iterable[Batch]) -> None:
        """Pre-allocate the directory with TensorDict, then fill its raw files.

        The TensorDict has a batch size if all arrays have one length.

        Uses plain writes, because writing through the maps costs a page fault every 4 KiB and makes
        resident memory grow with the dataset.
        """
        import torch
        from tensordict import TensorDict

        rows = {a.name: torch.empty(1, *a.row.shape, dtype=getattr(torch, a.row.dtype)) for a in arrays}
        whole = {array.name: rows[array.name].expand(array.shape) for array in arrays}
        lengths = {array.length for array in arrays}
        TensorDict(whole, [*lengths] if len(lengths) == 1 else []).memmap_like(path)
        with ExitStack() as stack:
            files = {name: stack.enter_context(open(path / f"{name}.memmap", "r+b")) for name in whole}
            for batch in batches:
                for name, file in files.items():
                    file.write(raw_bytes(batch[name]))

    def open_arrays(
        self, path: Path, schema: Schema, random: bool = False, others: Collection[str] = ()
    ) -> MemmapReader:
        """Check keys and file sizes, and return a read-only reader.

        The check comes first because tensordict drops a missing key silently and, when it opens for
        writing, extends a truncated file with zeros.
        """
        tensors = _tensors(path)
        names = field_names(tensors)
        expected = {*others, *(field.name for field in schema.fields)}
        if expected != set(names):
            raise corrupt(path / META, f"keys {sorted(expected)}", sorted(tensors))
        keys = {field.name: names[field.name] for field in schema.fields}
        files = {name: _file(path, key) for name, key in keys.items()}
        arrays = {
            f.name: _mapped(path, files[f.name], tensors[keys[f.name]], f, schema) for f in schema.fields
        }
        places = {f.name: Strided((files[f.name],), 0, f.sample_bytes) for f in schema.fields}
        reader = MemmapReader(schema, arrays, places, functools.partial(_load, _folder(path), keys, schema))
        with contextlib.suppress(CorruptArtifact):  # too little memory: `native` tries again and raises
            reader.load()
        return reader

    def sniff(self, path: Path) -> bool:
        """Return True for a folder with TensorDict's description."""
        try:
            return any(
                "shape" in _meta(folder) for folder in (path, path / INNER) if _is_plain(_meta(folder))
            )
        except CorruptArtifact:
            return False

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema of a TensorDict or tensorclass; imports no class and unpickles nothing."""
        tensors = _tensors(path)
        shapes = {key: (tuple(one["shape"]), np.dtype(one["dtype"])) for key, one in tensors.items()}
        schema = arrays_schema(path, shapes)
        for key, field in zip(tensors, schema.fields, strict=True):
            _check_size(_file(path, key), field, schema)
        return schema


class MemmapReader(MappedReader):
    """Reads rows of the mapped files; `native` returns tensorclass batches."""

    def __init__(
        self, schema: Schema, arrays: Batch, places: dict[str, Strided], load: Callable[[], Any]
    ) -> None:
        super().__init__(schema, arrays, places)
        self._load = load
        self._samples: Any = None
        self._tensors: tuple[tuple[str, Any], ...] = ()

    def load(self) -> None:
        """Map the files with TensorDict as well, for `native` and `sample`."""
        self._samples = self._load()
        self._tensors = tuple((f.name, self._samples.get(f.name)) for f in self.schema.fields)

    def sample(self, row: int, convert: Convert = identity) -> dict[str, Any]:
        """Return one sample as views of the map; instead of converted arrays, TensorDict's own tensors."""
        if convert is identity or not self._tensors:
            return super().sample(row, convert)
        return {name: tensor[row] for name, tensor in self._tensors}

    def native(self, rows: Rows) -> Any:
        """Return a tensorclass of the rows: a lazy view of the map for a slice, a copy for indices."""
        import torch

        self._mapped()
        if self._samples is None:
            self.load()
        return self._samples[rows if isinstance(rows, slice) else torch.from_numpy(rows)]

    def close(self) -> None:
        """Drop the maps; they are released with the last view of them."""
        super().close()
        self._samples, self._tensors = None, ()


@functools.cache
def sample_class(schema: Schema) -> Any:
    """Return a tensorclass with one tensor per field."""
    import torch
    from tensordict import tensorclass

    annotations = {field.name: torch.Tensor for field in schema.fields}
    return tensorclass(type("Samples", (), {"__annotations__": annotations}), shadow=True)


def _load(folder: Path, keys: dict[str, str], schema: Schema) -> Any:
    """Load these keys as a tensorclass with TensorDict: mapped copy-on-write, nothing unpickled."""
    from tensordict import TensorDict

    damage = (RuntimeError, ValueError, KeyError, OSError, TypeError)
    with expecting(folder, "a TensorDict memmap directory", damage):
        loaded = TensorDict.load_memmap(folder, mode="r", allow_pickle=False)
        chosen = TensorDict({name: loaded[key] for name, key in keys.items()}, [schema.samples])
    return sample_class(schema).from_tensordict(chosen)


def _folder(path: Path) -> Path:
    """Return the folder that holds the tensors; a tensorclass has an inner one."""
    return path / INNER if (path / INNER / META).is_file() else path


def _meta(folder: Path) -> dict[str, Any]:
    """Parse TensorDict's description of a folder; CorruptArtifact if there is none."""
    file = folder / META
    with expecting(file, "TensorDict's description of the fields", (OSError, ValueError, RecursionError)):
        if not file.is_file() or file.stat().st_size > MOST_META_BYTES:
            raise OSError("no such file" if not file.exists() else "not a file, or a very large one")
        described = json.loads(file.read_text())
        if not isinstance(described, dict):
            raise ValueError("not an object")
    return described


def _is_plain(meta: dict[str, Any]) -> bool:
    return meta.get("_type") == PLAIN[0] or meta.get("_class") == PLAIN[1]


def _tensors(path: Path) -> dict[str, dict[str, Any]]:
    """Return shape and NumPy dtype of each tensor by key; CorruptArtifact if there is anything else."""
    folder = _folder(path)
    meta, tensors = _meta(folder), dict[str, dict[str, Any]]()
    if not _is_plain(meta):
        raise CorruptArtifact(
            "saved from an unsupported class",
            kind="unsupported-class",
            path=path,
            expected="a TensorDict or a tensorclass of tensors",
            found=shortened(str(meta.get("_type"))),
            hint="save td.to_tensordict()",
        )
    for key, one in meta.items():
        if not isinstance(one, dict):
            continue
        dtype, shape = str(one.get("dtype")).removeprefix("torch."), one.get("shape")
        if "type" in one or one.get("is_nested") or not isinstance(shape, list):
            raise CorruptArtifact(
                f"{shortened(key)} is not a tensor of one shape",
                kind="unequal-shapes",
                path=path,
                found=shortened(str(one.get("type") or "a nested tensor")),
                hint="leave it out, or save td.flatten_keys()",
            )
        if dtype not in DTYPES or not all(type(n) is int and 0 <= n < 1 << 62 for n in shape):
            raise unsupported_dtype(path, shortened(key), f"{dtype} {shape}")
        tensors[key] = {"dtype": dtype, "shape": shape}
    if not tensors:
        raise CorruptArtifact("it holds no tensor", kind="no-arrays", path=path)
    return tensors


def _file(path: Path, key: str) -> Path:
    """Return the file of a tensor; TensorDict percent-encodes unusual names."""
    folder = _folder(path)
    for file in (folder / f"{key}.memmap", folder / f"{quote(key, safe='')}.memmap"):
        if file.parent == folder and file.is_file():
            return file
    raise corrupt(folder, f"a file {quote(key, safe='')}.memmap", "no such file")


def _check_size(file: Path, field: Field, schema: Schema) -> None:
    size = file.stat().st_size
    if size != schema.samples * field.sample_bytes:
        raise corrupt(file, f"{schema.samples * field.sample_bytes} bytes", size)


def _mapped(path: Path, file: Path, one: dict[str, Any], field: Field, schema: Schema) -> Array:
    """Map a tensor's file as a read-only array; by NumPy, because TensorDict's maps count as memory."""
    expected, actual = ((schema.samples, *field.shape), field.dtype), (tuple(one["shape"]), one["dtype"])
    if actual != expected:
        raise corrupt(path / META, expected, actual)
    _check_size(file, field, schema)
    return np.asarray(np.memmap(file, field.dtype, "r", shape=expected[0]))
