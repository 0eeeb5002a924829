"""TensorDict's memory-mapped directory: one raw `<field>.memmap` per field beside `meta.json`."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from tensordict import TensorDict, tensorclass

from iobench.formats._errors import corrupt
from iobench.formats._format import Format
from iobench.formats._mapped import MappedReader
from iobench.formats._placement import Strided
from iobench.formats._reader import Rows
from iobench.formats._schema import Array, Batch, Schema, raw_bytes


@dataclass(frozen=True)
class Memmap(Format):
    """A directory that `TensorDict.load_memmap` opens, as a TensorDict or as a tensorclass."""

    name: ClassVar[str] = "memmap"
    summary: ClassVar[str] = "TensorDict memmap directory, loaded as a tensorclass"
    library: ClassVar[str] = "tensordict"

    def write(self, path: Path, schema: Schema, batches: Iterable[Batch]) -> None:
        """Pre-allocate the directory with TensorDict, then fill its raw files.

        Plain writes, because storing through the maps costs a page fault every 4 KiB and
        lets resident memory grow with the dataset.
        """
        one = {f.name: torch.from_numpy(np.empty((1, *f.shape), f.dtype)) for f in schema.fields}
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
        _check_directory(path, schema)
        try:
            loaded = TensorDict.load_memmap(path, mode="r", allow_pickle=False)
        except (RuntimeError, ValueError, KeyError, OSError) as error:
            raise corrupt(path, "a TensorDict memmap directory", error) from error
        return MemmapReader(path, schema, loaded)


class MemmapReader(MappedReader):
    """Rows out of the mapped tensors; `native` hands over tensorclass batches."""

    def __init__(self, path: Path, schema: Schema, loaded: TensorDict) -> None:
        arrays: dict[str, Array] = {}
        for field in schema.fields:
            if field.name not in loaded.keys():  # noqa: SIM118 - iterating a TensorDict yields rows
                raise corrupt(path / "meta.json", f"a tensor {field.name}", sorted(loaded.keys()))
            # the plain tensor, because each index of a MemoryMappedTensor costs 7 µs more
            arrays[field.name] = loaded[field.name].as_subclass(torch.Tensor).numpy()
            expected, found = ((schema.samples, *field.shape), field.dtype), arrays[field.name]
            if (found.shape, str(found.dtype)) != expected:
                raise corrupt(path / "meta.json", expected, (found.shape, str(found.dtype)))
        places = {f.name: Strided((path / f"{f.name}.memmap",), 0, f.sample_bytes) for f in schema.fields}
        super().__init__(schema, arrays, places)
        self._samples: Any = sample_class(schema).from_tensordict(loaded)

    def native(self, rows: Rows) -> Any:
        """A tensorclass of these rows: a slice is a lazy view of the map, indices are a copy."""
        self._mapped()
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


def _check_directory(path: Path, schema: Schema) -> None:
    meta = path / "meta.json"
    try:
        described = json.loads(meta.read_text())
        keys = {key for key, value in described.items() if isinstance(value, dict)}
    except (OSError, ValueError, AttributeError) as error:
        raise corrupt(meta, "TensorDict's description of the fields", error) from error
    if keys != {field.name for field in schema.fields}:
        raise corrupt(meta, f"keys {sorted(f.name for f in schema.fields)}", sorted(keys))
    for field in schema.fields:
        file = path / f"{field.name}.memmap"
        size = file.stat().st_size if file.is_file() else "no such file"
        if size != schema.samples * field.sample_bytes:
            raise corrupt(file, f"{schema.samples * field.sample_bytes} bytes", size)
