"""Adapter of the sandbox for .pt files of tensors, which are mapped and loaded with `weights_only`.

torch maps the file, so no tensor is in memory before its rows are read. Its restricted unpickler makes
tensors and plain containers, and runs nothing that the file names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypeAlias

import numpy as np
import torch

from iobench import formats
from iobench.base.errors import CorruptArtifact
from iobench.base.text import listed, reason, shortened
from iobench.dataset.sources.source import BATCH_BYTES
from iobench.formats import DTYPES, VARIES, Batch, Field, Ragged, Schema, array_of
from iobench.formats.array_schema import ShapeAndDtype
from iobench.formats.npy import SINGLE

MAX_LEVELS = 16
DAMAGE = (UnpicklingError, RuntimeError, OSError, ValueError, TypeError, KeyError, EOFError, AttributeError)
SAVE = "save them with torch.save({'x': x, 'y': y}, file)"


# Tensors of a file by name: all samples, a tensor per sample, or why a value is not read.
Content: TypeAlias = "torch.Tensor | list[torch.Tensor] | CorruptArtifact"


class TorchAdapter(formats.Detectable):
    """The methods of a format that the sandbox uses."""

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema of a file's tensors, or of those named after `::`; the first axis is samples."""
        path, chosen = formats.split_selection(path)
        contents = _contents(path)
        names = formats.select_arrays(path, contents, chosen)
        arrays = {name: _typed(path, one) for name, one in contents.items()}
        totals = {name: sum(map(len, one)) for name, one in contents.items() if isinstance(one, list)}
        schema = formats.selected_schema(path, arrays, names, totals=totals)
        for name in names:
            _check_stored(path, name, contents[name])
        return schema

    def batches(self, path: Path, schema: Schema) -> Iterator[Batch]:
        """Yield the rows of mapped tensors with any strides, and of lists of a tensor per sample."""
        contents: dict[str, Any] = {**_contents(path)}
        names, rows = formats.field_names(contents), schema.batch_rows(BATCH_BYTES)
        for start in range(0, schema.samples, rows):
            batch = dict[str, Any]()
            for field in schema.fields:
                some = contents[names[field.name]][start : start + rows]
                if field.is_ragged:
                    batch[field.name] = Ragged.of(list(map(array_of, some)), field.inner, field.dtype)
                else:
                    one = torch.stack(some) if isinstance(some, list) else some
                    batch[field.name] = np.ascontiguousarray(array_of(one))
            yield batch


def tensors_in(path: Path) -> dict[str, torch.Tensor]:
    """Load the tensors of a file that is one sample, by name; numbers of Python are tensors, too."""
    tensors = dict[str, torch.Tensor]()
    for name, one in _contents(path, numbers=True).items():
        if isinstance(one, CorruptArtifact):
            raise one.changed(problem=f"{shortened(name)}: {one.problem}", path=path)
        tensors[name] = torch.stack(one) if isinstance(one, list) else one
    return tensors


def _contents(path: Path, numbers: bool = False) -> dict[str, Content]:
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
    contents = dict[str, Content]()

    def collect(name: str, value: Any, levels: int) -> None:
        rows = value if isinstance(value, list) and value else []
        if isinstance(value, torch.Tensor):
            contents[name or SINGLE] = value.detach()
        elif numbers and _are_numbers([value]):
            contents[name] = _tensor_of([value])[0]
        elif isinstance(value, dict) and levels and all(isinstance(key, str) for key in value):
            for key, inner in value.items():
                collect(f"{name}/{key}".strip("/"), inner, levels - 1)
        elif rows and all(isinstance(row, torch.Tensor) for row in rows):
            contents[name or SINGLE] = [row.detach() for row in rows]
        elif rows and levels and all(isinstance(row, dict) and row.keys() == rows[0].keys() for row in rows):
            for key in rows[0]:
                collect(f"{name}/{key}".strip("/"), [row[key] for row in rows], levels - 1)
        elif rows and name and _are_numbers(rows):
            contents[name] = _tensor_of(rows)
        else:
            expected = "a tensor, a dict of tensors by name, or a list of a tensor per sample"
            found = _found(value)
            if not name:
                raise CorruptArtifact("", "not-tensors", path, expected=expected, found=found)
            contents[name] = CorruptArtifact("no tensor", "not-tensors", expected=expected, found=found)

    collect("", loaded, MAX_LEVELS)
    return contents


def _are_numbers(values: Sequence[Any]) -> bool:
    """Return whether these are Python's numbers, of which 64 bits hold each."""
    most = 2**53 if float in map(type, values) else 2**63 - 1
    return all(type(one) is float or (type(one) in (bool, int) and abs(one) <= most) for one in values)


def _tensor_of(numbers: Sequence[float]) -> torch.Tensor:
    """Return Python's numbers as they are: floats have 64 bits, as in a batch of DataLoader."""
    return torch.tensor(numbers, dtype=torch.float64 if float in map(type, numbers) else None)


def _found(value: Any) -> str:
    """Return the type of what is no tensor; of a list that of its samples, or the first that is another."""
    if not isinstance(value, list) or not value:
        return type(value).__name__
    first = value[0]
    for number, row in enumerate(value):
        if isinstance(row, dict) and isinstance(first, dict) and (differ := row.keys() ^ first.keys()):
            return f"{listed(sorted(map(repr, differ)))} in sample 0 or {number:,} alone"
        if type(row) is not type(first):
            return f"{type(first).__name__} in sample 0, {type(row).__name__} in sample {number:,}"
        if type(row) is int and not _are_numbers([row]):
            return f"an int of more than 64 bits in sample {number:,}"
    return f"a list of {type(first).__name__}"


def _typed(path: Path, content: Content) -> ShapeAndDtype | CorruptArtifact:
    """Return shape and dtype, or the error of a value, or of tensors that formats do not store."""
    if isinstance(content, CorruptArtifact):
        return content
    tensors = content if isinstance(content, list) else [content]
    for one in tensors:
        dtype = str(one.dtype).removeprefix("torch.")
        if one.layout is not torch.strided or one.is_quantized or dtype not in DTYPES:
            return formats.unsupported_dtype(path, "", f"{dtype}, {one.layout}")
    if not isinstance(content, list):
        return tuple(content.shape), dtype
    first, shapes = content[0], {tuple(one.shape) for one in content}
    typed = {f"{one.dtype} {tuple(one.shape)}".removeprefix("torch.") for one in content}
    if len({(one.dtype, one.ndim, one.shape[1:]) for one in content}) > 1:
        problem = "a list of tensors that differ in dtype, or in more than their first axis"
        found = listed(sorted(typed))
        hint = "save tensors of one dtype, and of one shape behind the first axis"
        return CorruptArtifact(problem, "unequal-shapes", found=found, hint=hint)
    shape = (VARIES, *first.shape[1:]) if len(shapes) > 1 else tuple(first.shape)
    return (len(content), *shape), dtype


def _check_stored(path: Path, name: str, content: Any) -> None:
    """Raise CorruptArtifact if few stored numbers stand for many: reading could take any amount of memory."""
    for tensor in content if isinstance(content, list) else [content]:
        logical, stored = tensor.nbytes, tensor.untyped_storage().nbytes()
        if logical > stored:
            problem, expected = f"{shortened(name)} repeats its stored numbers", f"{logical:,} bytes"
            found, hint = f"{stored:,}", "save .contiguous() of it"
            raise CorruptArtifact(
                problem, "repeated-storage", path, expected=expected, found=found, hint=hint
            )
