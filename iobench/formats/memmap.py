"""TensorDict's memory-mapped directory: one raw `<field>.memmap` per field beside `meta.json`."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import numpy as np
import torch
from tensordict import TensorDict, tensorclass

from iobench.base.errors import (
    CorruptArtifact,
    corrupt,
)
from iobench.base.text import shortened
from iobench.formats._arrays import arrays_schema
from iobench.formats._format import Format
from iobench.formats._mapped_reader import MappedReader
from iobench.formats._placement import Strided
from iobench.formats._reader import Rows
from iobench.formats._schema import DTYPES, Array, Batch, Field, Schema, field_name, raw_bytes

META = "meta.json"
INNER = "_tensordict"  # where a tensorclass keeps its tensors
MOST_META_BYTES = 16 << 20
# The classes whose saved form this reads by itself; others are made by code that the data name.
PLAIN = ("<class 'tensordict._td.TensorDict'>", "tensordict:TensorDict")


@dataclass(frozen=True)
class Memmap(Format):
    """A directory that `TensorDict.load_memmap` opens, as a TensorDict or as a tensorclass."""

    name: ClassVar[str] = "memmap"
    summary: ClassVar[str] = "TensorDict memmap directory, loaded as a tensorclass"
    library: ClassVar[str] = "tensordict"
    dtypes: ClassVar[frozenset[str]] = frozenset(DTYPES)

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Pre-allocate the directory with TensorDict, then fill its raw files.

        Plain writes, because storing through the maps costs a page fault every 4 KiB and
        lets resident memory grow with the dataset.
        """
        one = {f.name: torch.empty(1, *f.shape, dtype=getattr(torch, f.dtype)) for f in schema.fields}
        whole = {name: t.expand(schema.samples, *t.shape[1:]) for name, t in one.items()}
        TensorDict(whole, [schema.samples]).memmap_like(path)
        with ExitStack() as stack:
            files = {name: stack.enter_context(open(path / f"{name}.memmap", "r+b")) for name in one}
            for batch in batches:
                for name, file in files.items():
                    file.write(raw_bytes(batch[name]))

    def open(self, path: Path, schema: Schema, random: bool = False) -> MemmapReader:
        """A read-only reader, after keys and file sizes were checked.

        The check comes first because tensordict drops a missing key silently and, opened for
        writing, grows a truncated file with zeros.
        """
        found = _tensors(path)
        names = {field_name(key): key for key in found}
        if {f.name for f in schema.fields} != set(names):
            raise corrupt(path / META, f"keys {sorted(f.name for f in schema.fields)}", sorted(found))
        keys = {field.name: names[field.name] for field in schema.fields}
        files = {name: _file(path, key) for name, key in keys.items()}
        arrays = {f.name: _mapped(path, files[f.name], found[keys[f.name]], f, schema) for f in schema.fields}
        places = {f.name: Strided((files[f.name],), 0, f.sample_bytes) for f in schema.fields}
        reader = MemmapReader(schema, arrays, places, functools.partial(_load, _folder(path), keys, schema))
        with contextlib.suppress(CorruptArtifact):  # where memory is short: `native` asks again, and says so
            reader.load()
        return reader

    def sniff(self, path: Path) -> bool:
        """Whether it is a folder in which TensorDict described what is in it."""
        try:
            return any(
                "shape" in _meta(folder) for folder in (path, path / INNER) if _is_plain(_meta(folder))
            )
        except CorruptArtifact:
            return False

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """The tensors of a TensorDict, or of a tensorclass, which is not imported; nothing is unpickled."""
        found = _tensors(path)
        shapes = {key: (tuple(one["shape"]), np.dtype(one["dtype"])) for key, one in found.items()}
        schema = arrays_schema(path, shapes)
        for key, field in zip(found, schema.fields, strict=True):
            _check_size(_file(path, key), field, schema)
        return schema


class MemmapReader(MappedReader):
    """Rows out of the mapped files; `native` hands over tensorclass batches."""

    def __init__(
        self, schema: Schema, arrays: Batch, places: dict[str, Strided], load: Callable[[], Any]
    ) -> None:
        super().__init__(schema, arrays, places)
        self._load = load
        self._samples: Any = None

    def load(self) -> None:
        """Have TensorDict map the files, too, as `native` needs."""
        self._samples = self._load()

    def native(self, rows: Rows) -> Any:
        """A tensorclass of these rows: a slice is a lazy view of the map, indices are a copy."""
        self._mapped()
        if self._samples is None:
            self.load()
        return self._samples[rows if isinstance(rows, slice) else torch.from_numpy(rows)]

    def close(self) -> None:
        """Drop the maps; they go when the last view of them does."""
        super().close()
        self._samples = None


@functools.cache
def sample_class(schema: Schema) -> Any:
    """A tensorclass with one tensor per field."""
    annotations = {field.name: torch.Tensor for field in schema.fields}
    return tensorclass(type("Samples", (), {"__annotations__": annotations}), shadow=True)


def _load(folder: Path, keys: dict[str, str], schema: Schema) -> Any:
    """The tensorclass of these keys, loaded by TensorDict: mapped copy-on-write, with nothing unpickled."""
    try:
        loaded = TensorDict.load_memmap(folder, mode="r", allow_pickle=False)
        chosen = TensorDict({name: loaded[key] for name, key in keys.items()}, [schema.samples])
    except (RuntimeError, ValueError, KeyError, OSError, TypeError) as error:
        raise corrupt(folder, "a TensorDict memmap directory", error) from error
    return sample_class(schema).from_tensordict(chosen)


def _folder(path: Path) -> Path:
    """The folder that holds the tensors: a tensorclass keeps them in an inner one."""
    return path / INNER if (path / INNER / META).is_file() else path


def _meta(folder: Path) -> dict[str, Any]:
    """What TensorDict says of a folder; CorruptArtifact where that is not to be had."""
    file = folder / META
    try:
        if not file.is_file() or file.stat().st_size > MOST_META_BYTES:
            raise OSError("no such file" if not file.exists() else "it is not a file, or a very large one")
        described = json.loads(file.read_text())
        if not isinstance(described, dict):
            raise ValueError("no description")
    except (OSError, ValueError, RecursionError) as error:
        raise corrupt(file, "TensorDict's description of the fields", shortened(str(error))) from error
    return described


def _is_plain(meta: dict[str, Any]) -> bool:
    return meta.get("_type") == PLAIN[0] or meta.get("_class") == PLAIN[1]


def _tensors(path: Path) -> dict[str, dict[str, Any]]:
    """Shape and NumPy dtype of each tensor by its key; CorruptArtifact where there is anything else."""
    folder = _folder(path)
    meta, found = _meta(folder), dict[str, dict[str, Any]]()
    if not _is_plain(meta):
        raise CorruptArtifact(
            f"{path}: it was saved from {shortened(str(meta.get('_type')))}, and only TensorDicts and "
            "tensorclasses of tensors are read; save td.to_tensordict() of it"
        )
    for key, one in meta.items():
        if not isinstance(one, dict):
            continue
        dtype, shape = str(one.get("dtype")).removeprefix("torch."), one.get("shape")
        if "type" in one or one.get("is_nested") or not isinstance(shape, list):
            raise CorruptArtifact(
                f"{path}: {shortened(key)} is {shortened(str(one.get('type') or 'a nested tensor'))}, no "
                "tensor of one shape; leave it out, or save td.flatten_keys() of nested ones"
            )
        if dtype not in DTYPES or not all(type(n) is int and 0 <= n < 1 << 62 for n in shape):
            raise CorruptArtifact(
                f"{path}: {shortened(key)} is {shortened(f'{dtype} {shape}')}; "
                f"formats store {', '.join(DTYPES)}"
            )
        found[key] = {"dtype": dtype, "shape": shape}
    if not found:
        raise CorruptArtifact(f"{path}: it holds no tensor")
    return found


def _file(path: Path, key: str) -> Path:
    """The file of a tensor: TensorDict encodes what is no plain name."""
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
    """A tensor's file as a read-only array; mapped by NumPy, as TensorDict's maps count as memory."""
    expected, found = ((schema.samples, *field.shape), field.dtype), (tuple(one["shape"]), one["dtype"])
    if found != expected:
        raise corrupt(path / META, expected, found)
    _check_size(file, field, schema)
    return np.asarray(np.memmap(file, field.dtype, "r", shape=expected[0]))
