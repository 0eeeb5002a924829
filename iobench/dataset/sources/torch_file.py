"""Adapter of the sandbox for .pt files of tensors, which are mapped and loaded with `weights_only`.

torch maps the file, so no tensor is in memory before its rows are read. Its restricted unpickler makes
tensors and plain containers, and runs nothing that the file names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch

from iobench import formats
from iobench.base.errors import CorruptArtifact
from iobench.base.text import listed, reason, shortened
from iobench.dataset.sources.source import BATCH_BYTES
from iobench.formats import DTYPES, VARIES, Batch, Field, Ragged, Schema, array_of
from iobench.formats.array_schema import ShapeAndDtype, suggesting_selection
from iobench.formats.npy import SINGLE

MAX_LEVELS = 16
DAMAGE = (UnpicklingError, RuntimeError, OSError, ValueError, TypeError, KeyError, EOFError, AttributeError)
SAVE = "save them with torch.save({'x': x, 'y': y}, file)"


class TorchAdapter(formats.Detectable):
    """The methods of a format that the sandbox uses."""

    name = variant = "torch"

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema of a file's tensors, or of those named after `::`; the first axis is samples."""
        path, chosen = formats.split_selection(path)
        tensors, refused = _contents(path)
        names = formats.select_arrays(path, [*tensors, *refused], chosen)
        every: dict[str, ShapeAndDtype] = {}
        for name, tensor in tensors.items():
            try:
                every[name] = _typed(path, name, tensor)
            except CorruptArtifact as error:
                refused[name] = error
        for name in names:
            if name in refused:
                raise suggesting_selection(refused[name], path, every, names)
        totals = {name: sum(map(len, one)) for name, one in tensors.items() if isinstance(one, list)}
        typed = {name: every[name] for name in names}
        schema = formats.arrays_schema(path, typed, [*tensors, *refused], totals=totals, others=every)
        for name in names:
            stored = tensors[name]
            for tensor in stored if isinstance(stored, list) else [stored]:
                _check_stored(path, name, tensor)
        return schema

    def batches(self, path: Path, schema: Schema) -> Iterator[Batch]:
        """Yield the rows of mapped tensors with any strides, and of lists of a tensor per sample."""
        tensors, refused = _contents(path)
        names, rows = formats.field_names([*tensors, *refused]), schema.batch_rows(BATCH_BYTES)
        for start in range(0, schema.samples, rows):
            batch = dict[str, Any]()
            for field in schema.fields:
                some = tensors[names[field.name]][start : start + rows]
                if field.is_ragged:
                    batch[field.name] = Ragged.of(list(map(array_of, some)), field.inner, field.dtype)
                else:
                    one = torch.stack(some) if isinstance(some, list) else some
                    batch[field.name] = np.ascontiguousarray(array_of(one))
            yield batch


def tensors_in(path: Path) -> dict[str, torch.Tensor]:
    """Load the tensors of a file that is one sample, by name; numbers of Python are tensors, too."""
    tensors, refused = _contents(path, numbers=True)
    for error in refused.values():
        raise error
    return {name: torch.stack(one) if isinstance(one, list) else one for name, one in tensors.items()}


def _contents(
    path: Path, numbers: bool = False
) -> tuple[dict[str, torch.Tensor | list[torch.Tensor]], dict[str, CorruptArtifact]]:
    """Load the tensors of a file, nested ones named by their path, and the errors of other values.

    A list has a tensor, or a dict of tensors, per sample.
    """
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except UnpicklingError as error:  # torch's message explains how to run the file's code instead
        problem = "contains more than tensors, or is damaged; nothing else is unpickled"
        raise CorruptArtifact(problem, "not-tensors", path, hint=SAVE) from error
    except DAMAGE as error:
        problem = f"cannot be read as mapped tensors: {reason(error)}"
        raise CorruptArtifact(problem, "damaged", path, hint=SAVE) from error
    tensors: dict[str, torch.Tensor | list[torch.Tensor]] = {}
    refused: dict[str, CorruptArtifact] = {}

    def collect(name: str, value: Any, levels: int) -> None:
        rows = value if isinstance(value, list) and value else []
        if isinstance(value, torch.Tensor):
            tensors[name or SINGLE] = value.detach()
        elif numbers and isinstance(value, int | float):
            tensors[name] = torch.tensor(value)
        elif isinstance(value, dict) and levels and all(isinstance(key, str) for key in value):
            for key, inner in value.items():
                collect(f"{name}/{key}".strip("/"), inner, levels - 1)
        elif rows and all(isinstance(row, torch.Tensor) for row in rows):
            tensors[name or SINGLE] = [row.detach() for row in rows]
        elif rows and levels and all(isinstance(row, dict) and row.keys() == rows[0].keys() for row in rows):
            for key in rows[0]:
                collect(f"{name}/{key}".strip("/"), [row[key] for row in rows], levels - 1)
        elif (
            rows
            and name
            and all(type(row) is type(rows[0]) and type(row) in (bool, int, float) for row in rows)
        ):
            tensors[name] = torch.tensor(rows)
        else:
            refused[name or SINGLE] = CorruptArtifact(
                f"the value {shortened(name)!r}" if name else "",
                kind="not-tensors",
                path=path,
                expected="a tensor, a dict of tensors by name, or a list of a tensor per sample",
                found=type(value).__name__,
            )

    collect("", loaded, MAX_LEVELS)
    return tensors, refused


def _typed(path: Path, name: str, stored: torch.Tensor | list[torch.Tensor]) -> ShapeAndDtype:
    """Return shape and dtype; CorruptArtifact if formats store no such tensors."""
    if isinstance(stored, torch.Tensor):
        return tuple(stored.shape), _dtype(path, name, stored)
    first, shapes = stored[0], {tuple(one.shape) for one in stored}
    if (
        len({one.dtype for one in stored}) > 1
        or len({len(s) for s in shapes}) > 1
        or len({s[1:] for s in shapes}) > 1
    ):
        found = listed([str(shape) for shape in sorted(shapes)])
        problem = f"the tensors of list {shortened(name)} differ in more than their first axis"
        hint = "save tensors of one dtype, and of one shape behind the first axis"
        raise CorruptArtifact(problem, "unequal-shapes", path, found=found, hint=hint)
    for one in stored:
        dtype = _dtype(path, name, one)
    shape = (VARIES, *first.shape[1:]) if len(shapes) > 1 else tuple(first.shape)
    return (len(stored), *shape), dtype


def _dtype(path: Path, name: str, tensor: torch.Tensor) -> np.dtype[Any]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout is not torch.strided or tensor.is_quantized or dtype not in DTYPES:
        raise formats.unsupported_dtype(path, shortened(name), f"{dtype}, {tensor.layout}")
    return np.dtype(dtype)


def _check_stored(path: Path, name: str, tensor: torch.Tensor) -> None:
    """Raise CorruptArtifact if few stored numbers stand for many: reading could take any amount of memory."""
    logical, stored = tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes()
    if logical > stored:
        problem, expected = f"{shortened(name)} repeats its stored numbers", f"{logical:,} bytes"
        found, hint = f"{stored:,}", "save .contiguous() of it"
        raise CorruptArtifact(problem, "repeated-storage", path, expected=expected, found=found, hint=hint)
