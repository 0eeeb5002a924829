"""A .pt file of tensors, read by the child of `apart`: mapped, and only what `weights_only` lets through.

torch maps the file, so no tensor is in memory before rows of it are asked for. Its restricted unpickler
makes tensors and plain containers, and runs nothing that the file names.
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
from iobench.base.errors import (
    CorruptArtifact,
)
from iobench.base.text import reason, shortened
from iobench.formats import (
    DTYPES,
    Array,
    Convert,
    Field,
    Reader,
    Schema,
    same,
)

SINGLE = "x"  # the field of a tensor that is no dict's
MOST_LEVELS = 16
DAMAGE = (UnpicklingError, RuntimeError, OSError, ValueError, TypeError, KeyError, EOFError, AttributeError)


class Torch:
    """What a format is to whoever reads: a schema, and readers."""

    name = variant = "torch"

    def check(self, path: Path, schema: Schema) -> None:
        """Nothing: `open` looks at all there is."""

    def schema_of(self, path: Path, told: Sequence[Field] = ()) -> Schema:
        """The tensors of a file, or those that follow `::`; their first axis is that of samples."""
        path, chosen = formats.choice(path)
        tensors = _tensors(path)
        names = formats.choose(path, tensors, chosen)
        shapes = {name: (tuple(tensors[name].shape), _dtype(path, name, tensors[name])) for name in names}
        schema = formats.arrays_schema(path, shapes, tensors)
        for name in names:
            _check_stored(path, name, tensors[name])
        return schema

    def open(self, path: Path, schema: Schema, random: bool = False) -> TorchReader:
        """Rows of the mapped tensors."""
        tensors = {formats.field_name(name): tensor for name, tensor in _tensors(path).items()}
        return TorchReader(schema, {field.name: tensors[field.name] for field in schema.fields})


class TorchReader(Reader):
    """Rows out of mapped tensors, whatever their strides."""

    def __init__(self, schema: Schema, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__(schema)
        self._tensors = tensors

    def sample(self, row: int, convert: Convert = same) -> dict[str, Any]:
        """One sample in fresh arrays."""
        return {
            name: convert(formats.array_of(tensor[row].clone())) for name, tensor in self._tensors.items()
        }

    def close(self) -> None:
        """Drop the tensors, and so the map."""
        self._tensors = {}

    def _read_slice(self, start: int, stop: int, out: Mapping[str, Array]) -> None:
        for name, target in out.items():
            target[...] = formats.array_of(self._tensors[name][start:stop])

    def _read_rows(self, rows: npt.NDArray[np.int64], out: Mapping[str, Array]) -> None:
        for name, target in out.items():
            target[...] = formats.array_of(self._tensors[name][torch.from_numpy(rows)])


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    """Each tensor of a file by its name, nested ones by their path."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except UnpicklingError as error:  # whose message says how to load it after all
        raise CorruptArtifact(
            f"{path}: it holds more than tensors, or is damaged, and nothing else is unpickled; save them "
            "with torch.save({'x': x, 'y': y}, file)"
        ) from error
    except DAMAGE as error:
        raise CorruptArtifact(
            f"{path}: cannot be read as mapped tensors ({reason(error)}); save them anew with "
            "torch.save({'x': x, 'y': y}, file)"
        ) from error
    named = {SINGLE: found} if isinstance(found, torch.Tensor) else found
    tensors: dict[str, torch.Tensor] = {}
    _collect(path, "", named, tensors, MOST_LEVELS)
    return tensors


def _collect(path: Path, above: str, found: Any, tensors: dict[str, torch.Tensor], levels: int) -> None:
    if isinstance(found, torch.Tensor):
        tensors[above] = found.detach()
    elif isinstance(found, dict) and levels and all(isinstance(name, str) for name in found):
        for name, inner in found.items():
            _collect(path, f"{above}/{name}".strip("/"), inner, tensors, levels - 1)
    else:
        what = f"{shortened(above)} is" if above else "it holds"
        raise CorruptArtifact(
            f"{path}: {what} a {type(found).__name__}; only a tensor, or a dict of tensors by name, is read"
        )


def _dtype(path: Path, name: str, tensor: torch.Tensor) -> np.dtype[Any]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout is not torch.strided or tensor.is_quantized or dtype not in DTYPES:
        raise CorruptArtifact(f"{path}: {shortened(name)} is {dtype}, {tensor.layout}; {formats.NO_NUMBER}")
    return np.dtype(dtype)


def _check_stored(path: Path, name: str, tensor: torch.Tensor) -> None:
    """CorruptArtifact where a few stored numbers stand for many: nobody knows what reading would take."""
    logical, stored = tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes()
    if logical > stored:
        raise CorruptArtifact(
            f"{path}: {shortened(name)} has {logical:,} bytes, and {stored:,} are stored: it repeats them; "
            "save .contiguous() of it"
        )
