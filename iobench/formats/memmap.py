"""Format memmap: what TensorDict saves, a folder of raw `<field>.memmap` files with `meta.json`.

Of data that other programs saved, it also reads nested TensorDicts and tensorclasses, lazy stacks, of which
each part is a sample, the file of `consolidate()`, and the raw file of a MemoryMappedTensor.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from iobench.base.errors import CorruptArtifact, corrupt, expecting
from iobench.base.finding import Finding
from iobench.base.options import option
from iobench.base.text import enumerated, shortened
from iobench.base.units import counted
from iobench.formats.array_format import ArrayFormat, RaggedColumn, RaggedReader, StoredArray, StoredColumn
from iobench.formats.array_schema import select_arrays, selected_schema, split_selection
from iobench.formats.folders import MOST_NAMED, NOT_READ
from iobench.formats.format import Detectable
from iobench.formats.placement import Placement, Spans
from iobench.formats.ragged import Ragged
from iobench.formats.reader import Convert, MappedReader, Reader, Rows, identity, index_of, unclosed
from iobench.formats.saved_tensors import Column, Jagged, Leaf, SavedTensors, Stack, is_saved, saved_tensors
from iobench.formats.schema import DTYPES, Array, Batch, Field, Schema, field_names, raw_bytes


@dataclass(frozen=True)
class Memmap(ArrayFormat, Detectable):
    """A directory that `TensorDict.load_memmap` opens as a TensorDict or tensorclass."""

    name: ClassVar[str] = "memmap"
    summary: ClassVar[str] = "TensorDict memmap directory, loaded as a tensorclass"
    library: ClassVar[str] = "tensordict"
    modules: ClassVar[tuple[str, ...]] = ("tensordict",)
    dtypes: ClassVar[frozenset[str]] = frozenset(DTYPES)
    selectable: ClassVar[bool] = True

    batch_dims: int = option(1, "axes of a saved batch size that count the samples", minimum=1)

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

    def open(self, path: Path, schema: Schema, random: bool = False) -> Reader:
        """Return a reader; lazy stacks and jagged tensors have samples of different lengths in other ways."""
        columns = self._columns(path, schema)
        ragged = {f.name: columns.get(f.name) for f in schema.ragged}
        if not any(isinstance(column, Stack | Jagged) for column in ragged.values()):
            return super().open(path, schema, random)
        fixed, parts = schema.fixed, dict[str, RaggedColumn]()
        for name, column in ragged.items():
            if isinstance(column, Jagged):
                row = Field(name, column.values.shape[1:], column.values.dtype)
                reader = _mapped_reader(path, Schema(column.total, (row,)), {name: column.values})
                parts[name] = StoredColumn(reader, column.offsets, path)
            elif isinstance(column, Stack):
                parts[name] = StackColumn(schema.field(name), column)
            else:
                raise corrupt(path, f"samples of different lengths in {name}", "one tensor")
        return RaggedReader(schema, self.open_arrays(path, fixed) if fixed.fields else None, parts)

    def open_arrays(self, path: Path, schema: Schema, random: bool = False) -> Reader:
        """Check keys and file sizes, and return a read-only reader.

        The check comes first because tensordict drops a missing key silently and, when it opens for
        writing, extends a truncated file with zeros.
        """
        columns = self._columns(path, schema)
        for field in schema.fields:
            column, expected = columns.get(field.name), ((schema.samples, *field.shape), field.dtype)
            if column is None or column.typed != expected:
                raise corrupt(path, f"{field.name}: {expected}", column and column.typed)
        leaves = {f.name: columns[f.name] for f in schema.fields}
        if any(isinstance(column, Stack) for column in leaves.values()):
            return StackReader(schema, leaves)  # type: ignore[arg-type]
        return _mapped_reader(path, schema, leaves)  # type: ignore[arg-type]

    def _columns(self, path: Path, schema: Schema) -> dict[str, Column]:
        """Return what was saved of each field; raise the error of one that cannot be read."""
        saved = self._saved(path, schema.fields).columns
        named = {name: saved[own] for name, own in field_names(saved).items()}
        for error in (named.get(field.name) for field in schema.fields):
            if isinstance(error, CorruptArtifact):
                raise error
        return {name: one for name, one in named.items() if not isinstance(one, CorruptArtifact)}

    def _saved(self, path: Path, fields: Sequence[Field]) -> SavedTensors:
        """Return the tensors at a path, the leading axes as one; `fields` is that of a raw file."""
        if path.is_dir() or is_saved(path):
            saved = saved_tensors(path)
            axes = min(self.batch_dims, max(1, len(saved.batch_size)))
            merged = {
                k: one.merged(axes) if isinstance(one, Leaf) else one for k, one in saved.columns.items()
            }
            return SavedTensors(saved.batch_size, merged, saved.left_out)
        if len(fields) != 1:
            hint = "give them for one sample: --field x=float32[3,224,224]"
            raise CorruptArtifact("a raw file says neither shape nor dtype", "unknown-shape", path, hint=hint)
        (field,), size = fields, path.stat().st_size
        samples, rest = divmod(size, field.sample_bytes)
        if rest:
            raise corrupt(path, f"samples of {field.sample_bytes} bytes ({field.typed})", f"{size} bytes")
        return SavedTensors((samples,), {field.name: Leaf(path, 0, (samples, *field.shape), field.dtype)})

    def sniff(self, path: Path) -> bool:
        """Return True for a folder or file with TensorDict's description, and for a raw file by its name."""
        return is_saved(path) or (path.suffix == ".memmap" and path.is_file())

    def infer_schema(self, path: Path, fields: Sequence[Field] = ()) -> Schema:
        """Return the schema of what was saved, or of the keys after `::`; imports and unpickles nothing."""
        path, chosen = split_selection(path)
        saved = self._saved(path, fields)
        totals = {key: one.total for key, one in saved.columns.items() if isinstance(one, Stack | Jagged)}
        arrays = {
            key: one if isinstance(one, CorruptArtifact) else one.typed for key, one in saved.columns.items()
        }
        return selected_schema(path, arrays, select_arrays(path, arrays, chosen), totals=totals)

    def notes(self, path: Path, schema: Schema) -> list[Finding]:
        """Report what has no tensor, and the other reading of a batch size of several axes."""
        path, _ = split_selection(path)
        saved, notes = self._saved(path, schema.fields), list[Finding]()
        if saved.left_out:
            named = [f"{shortened(key)} ({kind})" for key, kind in sorted(saved.left_out.items())]
            message = (
                f"{counted(len(named), 'key')} not read, without tensors: {enumerated(named, MOST_NAMED)}"
            )
            notes.append(Finding(NOT_READ, message, None, {"keys": len(named)}))
        axes = [*saved.batch_size]
        if (
            len(axes) > 1
            and self.batch_dims == 1
            and not any(isinstance(one, Stack | Jagged) for one in saved.columns.values())
        ):
            message = f"the batch size is {axes}: read as {counted(axes[0], 'sample')}"
            hint = f"to read {np.prod(axes):,}, give format memmap:batch_dims={len(axes)}"
            notes.append(Finding("batch-size", message, hint, {"samples": axes[0], "axes": len(axes)}))
        return notes


class MemmapReader(MappedReader):
    """Reads rows of the mapped files; `native` returns tensorclass batches."""

    def __init__(
        self, schema: Schema, arrays: Batch, places: Mapping[str, Placement], load: Callable[[], Any]
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


class StackReader(Reader):
    """Reads samples that lie in files of their own, of which none stays open."""

    def __init__(self, schema: Schema, columns: Mapping[str, Leaf | Stack]) -> None:
        super().__init__(schema)
        self._columns: Mapping[str, Leaf | Stack] | None = columns

    def placement(self) -> dict[str, Placement]:
        """Return the location of each field."""
        return {name: column.placement() for name, column in unclosed(self._columns).items()}

    def close(self) -> None:
        """Refuse later reads."""
        self._columns = None

    def _read_rows(self, rows: npt.NDArray[np.int64], out: Mapping[str, Array]) -> None:
        columns = unclosed(self._columns)
        for name, target in out.items():
            for slot, row in enumerate(rows.tolist()):
                target[slot] = columns[name].row(row)


class StackColumn(RaggedColumn):
    """A ragged field whose samples lie in files of their own."""

    def __init__(self, field: Field, stack: Stack) -> None:
        self._field, self._place = field, stack.placement()
        self._stack: Stack | None = stack

    def sample(self, row: int) -> Array:
        """Return the elements of a sample in new memory."""
        return unclosed(self._stack).row(row)

    def batch(self, rows: Rows) -> Ragged:
        """Return checked rows in new arrays."""
        return Ragged.of([self.sample(row) for row in index_of(rows)], self._field.inner, self._field.dtype)

    def spans(self) -> Spans | None:
        """Return the location of the samples."""
        return self._place if isinstance(self._place, Spans) else None

    def close(self) -> None:
        """Refuse later reads."""
        self._stack = None


def _mapped_reader(path: Path, schema: Schema, leaves: Mapping[str, Leaf]) -> MemmapReader:
    arrays = {name: np.asarray(leaf.mapped()) for name, leaf in leaves.items()}
    places = {name: leaf.placement() for name, leaf in leaves.items()}
    reader = MemmapReader(schema, arrays, places, functools.partial(_load, path, leaves, schema))
    with contextlib.suppress(CorruptArtifact):  # too little memory: `native` tries again and raises
        reader.load()
    return reader


def _load(path: Path, leaves: Mapping[str, Leaf], schema: Schema) -> Any:
    """Load tensors as a tensorclass, as TensorDict does: mapped copy-on-write, nothing unpickled."""
    import torch
    from tensordict import TensorDict

    wholes, tensors = dict[Path, torch.Tensor](), {}
    with expecting(
        path, "tensors that TensorDict saved", (RuntimeError, ValueError, KeyError, OSError, TypeError)
    ):
        for name, leaf in leaves.items():
            dtype = getattr(torch, leaf.dtype)
            size = leaf.file.stat().st_size
            if leaf.nbytes == size:
                tensors[name] = _mapped_tensor(leaf.file, dtype, leaf.shape)
                continue
            if leaf.file not in wholes:
                wholes[leaf.file] = torch.from_file(str(leaf.file), size=size, dtype=torch.uint8)
            section = wholes[leaf.file][leaf.offset : leaf.offset + leaf.nbytes]
            tensors[name] = section.view(dtype).view(leaf.shape)
        return sample_class(schema).from_tensordict(TensorDict(tensors, [schema.samples]))


def _mapped_tensor(file: Path, dtype: Any, shape: Sequence[int]) -> Any:
    """Return a MemoryMappedTensor over a file, copy-on-write; before tensordict 0.15 only made by hand."""
    import torch
    from tensordict import MemoryMappedTensor

    own: Any = MemoryMappedTensor
    if "mode" in inspect.signature(own.from_filename).parameters:
        return own.from_filename(file, dtype, shape, mode="r")
    tensor = own(torch.from_file(str(file), size=math.prod(shape), dtype=dtype).view(*shape))
    tensor.filename, tensor._handler, tensor.index, tensor.parent_shape = file, None, None, torch.Size(shape)
    return tensor
