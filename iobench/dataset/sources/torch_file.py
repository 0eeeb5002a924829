"""Adapter of the sandbox for .pt files of tensors, which are mapped and loaded with `weights_only`.

torch maps the file, so no tensor is in memory before its rows are read. Its restricted unpickler makes
tensors and plain containers, and runs nothing that the file names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from iobench import formats
from iobench.base.errors import CorruptArtifact
from iobench.base.text import reason, shortened
from iobench.formats import DTYPES, Array, Field, Reader, Schema

SINGLE = "x"  # field name of a tensor that is not in a dict
MAX_LEVELS = 16
DAMAGE = (UnpicklingError, RuntimeError, OSError, ValueError, TypeError, KeyError, EOFError, AttributeError)
SAVE = "save them with torch.save({'x': x, 'y': y}, file)"


class TorchAdapter(formats.Detectable):
    """The methods of a format that the sandbox uses."""

    name = variant = "torch"

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema of a file's tensors, or of those named after `::`; the first axis is samples."""
        path, chosen = formats.split_selection(path)
        tensors = _tensors(path)
        names = formats.select_arrays(path, tensors, chosen)
        shapes = {name: (tuple(tensors[name].shape), _dtype(path, name, tensors[name])) for name in names}
        schema = formats.arrays_schema(path, shapes, tensors)
        for name in names:
            _check_stored(path, name, tensors[name])
        return schema

    def open(self, path: Path, schema: Schema, random: bool = False) -> TorchReader:
        """Open a reader of the mapped tensors."""
        tensors = _tensors(path)
        names = formats.field_names(tensors)
        return TorchReader(schema, {field.name: tensors[names[field.name]] for field in schema.fields})


class TorchReader(Reader):
    """Reader of rows of mapped tensors with any strides."""

    def __init__(self, schema: Schema, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__(schema)
        self._tensors = tensors

    def close(self) -> None:
        """Drop the tensors and with them the map."""
        self._tensors = {}

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        for name, target in out.items():
            target[...] = formats.array_of(self._tensors[name][start:stop])

    def _read_rows(self, rows: npt.NDArray[np.int64], out: Mapping[str, Array]) -> None:
        for name, target in out.items():
            target[...] = formats.array_of(self._tensors[name][torch.from_numpy(rows)])


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    """Load the tensors of a file by name; nested ones are named by their path."""
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except UnpicklingError as error:  # torch's message explains how to run the file's code instead
        raise CorruptArtifact(
            "contains more than tensors, or is damaged; nothing else is unpickled",
            kind="not-tensors",
            path=path,
            hint=SAVE,
        ) from error
    except DAMAGE as error:
        problem = f"cannot be read as mapped tensors: {reason(error)}"
        raise CorruptArtifact(problem, kind="damaged", path=path, hint=SAVE) from error
    named = {SINGLE: loaded} if isinstance(loaded, torch.Tensor) else loaded
    tensors: dict[str, torch.Tensor] = {}
    _collect(path, "", named, tensors, MAX_LEVELS)
    return tensors


def _collect(path: Path, name: str, value: Any, tensors: dict[str, torch.Tensor], levels: int) -> None:
    if isinstance(value, torch.Tensor):
        tensors[name] = value.detach()
    elif isinstance(value, dict) and levels and all(isinstance(key, str) for key in value):
        for key, inner in value.items():
            _collect(path, f"{name}/{key}".strip("/"), inner, tensors, levels - 1)
    else:
        raise CorruptArtifact(
            f"the value {shortened(name)!r}" if name else "",
            kind="not-tensors",
            path=path,
            expected="a tensor, or a dict of tensors by name",
            found=type(value).__name__,
        )


def _dtype(path: Path, name: str, tensor: torch.Tensor) -> np.dtype[Any]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout is not torch.strided or tensor.is_quantized or dtype not in DTYPES:
        raise formats.unsupported_dtype(path, shortened(name), f"{dtype}, {tensor.layout}")
    return np.dtype(dtype)


def _check_stored(path: Path, name: str, tensor: torch.Tensor) -> None:
    """Raise CorruptArtifact if few stored numbers stand for many: reading could take any amount of memory."""
    logical, stored = tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes()
    if logical > stored:
        raise CorruptArtifact(
            f"{shortened(name)} repeats its stored numbers",
            kind="repeated-storage",
            path=path,
            expected=f"{logical:,} bytes",
            found=f"{stored:,}",
            hint="save .contiguous() of it",
        )
