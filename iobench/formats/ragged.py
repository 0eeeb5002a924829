"""Fields whose samples differ in length: one array of values, and the offset at which each sample begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from iobench.base.errors import CorruptArtifact

if TYPE_CHECKING:
    import torch

LONG = 100  # elements per sample: longer ones are gathered faster by slices than by element
VARIES = -1  # in a field's shape, as in torch and NumPy: an axis whose size is not given


@dataclass(frozen=True)
class Ragged:
    """Samples of different lengths, as in Arrow's large_list and torch's jagged layout.

    Attributes
    ----------
    values : array or tensor
        Elements of all samples, one after the other, of shape ``(total, *inner)``.
    offsets : array or tensor
        int64 of shape ``(samples + 1,)``: sample i is ``values[offsets[i] : offsets[i + 1]]``.
    """

    values: Any
    offsets: Any

    @classmethod
    def of(cls, samples: Sequence[Any], inner: tuple[int, ...], dtype: npt.DTypeLike) -> Ragged:
        """Return arrays of shape ``(length, *inner)`` end to end, in new memory."""
        lengths = np.fromiter(map(len, samples), np.int64, len(samples))
        return cls(np.concatenate([np.empty((0, *inner), dtype), *samples]), offsets_of(lengths))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, rows: slice | npt.NDArray[np.int64]) -> Ragged:
        """Return these samples: those of a slice of step 1 as a view, others in new arrays."""
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self))
            offsets = self.offsets[start : max(start, stop) + 1]
            return Ragged(self.values[offsets[0] : offsets[-1]], offsets - offsets[0])
        begins, ends = self.offsets[rows], self.offsets[rows + 1]
        lengths = ends - begins
        offsets = offsets_of(lengths)
        if offsets[-1] > LONG * len(rows):
            pairs = zip(begins.tolist(), ends.tolist(), strict=True)
            return Ragged(np.concatenate([self.values[begin:end] for begin, end in pairs]), offsets)
        elements = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], lengths)
        return Ragged(self.values[elements], offsets)

    def to(self, *args: Any, **kwargs: Any) -> Ragged:
        """Return both tensors moved or converted as by `torch.Tensor.to`."""
        return Ragged(self.values.to(*args, **kwargs), self.offsets.to(*args, **kwargs))

    def pin_memory(self) -> Ragged:
        """Return both tensors in pinned memory; torch's DataLoader calls it, too."""
        return Ragged(self.values.pin_memory(), self.offsets.pin_memory())

    def split(self, extents: torch.Tensor | None = None) -> list[torch.Tensor]:
        """Return the tensor of each sample, a view of the values.

        `extents`, int of shape ``(samples, k)``, are the sizes of each sample along its k axes that vary.
        CorruptArtifact if they do not make the samples' lengths.
        """
        parts: list[torch.Tensor] = list(self.values.split(self.offsets.diff().tolist()))
        if extents is None:
            return parts
        known = array_of(extents.cpu())
        check_extents(np.fromiter(map(len, parts), np.int64, len(parts)), known)
        return [part.reshape(*own, *part.shape[1:]) for part, own in zip(parts, known.tolist(), strict=True)]

    def padded(
        self,
        fill: float = 0,
        multiple: int = 1,
        length: int | None = None,
        extents: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the tensors as one, of shape ``(samples, length, *inner)``, with `fill` behind each sample.

        By default the length is the longest sample's, rounded up to a multiple of `multiple`. With `extents`,
        see `split`, each axis that varies is padded so: ``(samples, height, width, *inner)``.
        """
        known = self.offsets.diff()[:, None] if extents is None else extents
        longest = known.amax(0).tolist() if len(self) else [0] * known.shape[1]
        sizes = [-(-size // multiple) * multiple if length is None else length for size in longest]
        padded: torch.Tensor = self.values.new_full((len(self), *sizes, *self.values.shape[1:]), fill)
        if padded.device.type == "cpu" and extents is None:  # a quarter of the time of torch's pad_sequence
            target, source, edges = array_of(padded), array_of(self.values), self.offsets.tolist()
            for sample, (begin, end) in zip(target, pairwise(edges), strict=True):
                sample[: end - begin] = source[begin:end]
            return padded
        if padded.device.type == "cpu":
            for sample, part in zip(array_of(padded), self.split(extents), strict=True):
                sample[tuple(map(slice, part.shape[: len(sizes)]))] = array_of(part)
            return padded
        signed(padded)[element_mask(known, sizes)] = signed(self.values)
        return padded

    def nested(self) -> torch.Tensor:
        """Return the tensors as torch's nested tensor in jagged layout, a view of the same memory."""
        import torch

        return torch.nested.nested_tensor_from_jagged(self.values, self.offsets)

    @property
    def tensors(self) -> tuple[Any, Any]:
        """Values and offsets."""
        return self.values, self.offsets

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape as an array's, with VARIES as the size of the axis that varies."""
        return (len(self), VARIES, *self.values.shape[1:])

    @property
    def dtype(self) -> Any:
        """Dtype of the values."""
        return self.values.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return int(self.values.nbytes)


def joined(parts: Sequence[Any]) -> Any:
    """Return one array of several, or one ragged field; if only one has samples, this one."""
    parts = [part for part in parts if len(part)] or parts[:1]
    if len(parts) == 1:
        return parts[0]
    if not isinstance(parts[0], Ragged):
        return np.concatenate(parts)
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    return Ragged(joined([part.values for part in parts]), offsets_of(lengths))


def offsets_of(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the offsets of samples of these lengths."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def map_arrays(function: Callable[[Any], Any], array: Any) -> Any:
    """Return `function` of an array, or a ragged field of `function` of its values and of its offsets."""
    if isinstance(array, Ragged):
        return Ragged(function(array.values), function(array.offsets))
    return function(array)


def map_values(function: Callable[[npt.NDArray[Any]], npt.NDArray[Any]], array: Any) -> Any:
    """Return `function` of an array, or of the values of a ragged field."""
    if isinstance(array, Ragged):
        return Ragged(function(array.values), array.offsets)
    return function(array)


def signed(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of unsigned numbers as signed ones, which older releases of torch index and assign."""
    import torch

    dtypes = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
    return tensor.view(dtypes.get(tensor.dtype, tensor.dtype))


def element_mask(extents: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """Return where padded samples have elements, bool of shape ``(samples, *sizes)``; see `Ragged.split`."""
    import torch

    mask = torch.ones(len(extents), dtype=torch.bool, device=extents.device)
    for axis, size in enumerate(sizes):
        inside = torch.arange(size, device=extents.device) < extents[:, axis, None]
        mask = mask[..., None] & inside.reshape(len(extents), *[1] * axis, size)
    return mask


def check_extents(
    lengths: npt.NDArray[np.int64],
    extents: npt.NDArray[Any],
    name: str = "",
    path: Path | None = None,
    first: int = 0,
) -> None:
    """Raise CorruptArtifact for the first sample whose extents do not make its length.

    `name` is the field's and `first` the row of the first sample, if they are known.
    """
    products = extents.prod(1, dtype=np.float64)  # integers would wrap
    wrong = np.flatnonzero((products != lengths) | (extents < 0).any(1))
    if wrong.size:
        sample = int(wrong[0])
        raise CorruptArtifact(
            f"{name}: the extents of sample {first + sample:,} do not make its length"
            if name
            else f"the extents of sample {sample:,} of a batch do not make its length",
            "wrong-extents",
            path,
            expected=f"a product of {lengths[sample]:,}",
            found=" x ".join(map(str, extents[sample].tolist())),
        )


def check_offsets(offsets: npt.NDArray[np.int64], total: int, name: str, path: Path) -> None:
    """Raise CorruptArtifact, naming field and sample, unless the offsets rise from 0 to `total`."""
    falling = np.flatnonzero(offsets[1:] < offsets[:-1])
    beyond = np.flatnonzero((offsets < 0) | (offsets > total))
    wrong = falling if falling.size and not (beyond.size and beyond[0] <= falling[0]) else beyond
    if wrong.size:
        sample = int(wrong[0])
        problem = f"{name}: the offsets of sample {sample:,} are wrong"
        expected = f"rising, from 0 to {total:,}"
        found = " ".join(f"{offset:,}" for offset in offsets[sample : sample + 2].tolist())
        raise CorruptArtifact(problem, "wrong-offsets", path, expected=expected, found=found)
    if (offsets[0], offsets[-1]) != (0, total):
        problem, found = f"{name}: the offsets do not cover the values", f"{offsets[0]:,} to {offsets[-1]:,}"
        raise CorruptArtifact(problem, "wrong-offsets", path, expected=f"0 to {total:,}", found=found)


def array_of(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Return an array that shares the memory of a CPU tensor."""
    import torch

    if tensor.dtype != torch.bfloat16:
        return tensor.numpy()
    from ml_dtypes import bfloat16  # which torch does not know

    return tensor.view(torch.int16).numpy().view(bfloat16)
