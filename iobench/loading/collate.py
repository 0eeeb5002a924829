"""Collation of samples that differ in length: end to end, as a list, padded, or packed into rows.

Batches are padded with zeros. A case names its way as `Collate.parse` reads it.
"""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.base.errors import InvalidSettings, IobenchError, LoaderFailed
from iobench.formats import VARIES, Ragged, Schema, array_of, offsets_of
from iobench.formats.ragged import element_mask, signed
from iobench.loading.user_errors import PortableError

if TYPE_CHECKING:
    import torch

JAGGED, LIST = "jagged", "list"
WAYS = f"{JAGGED}, {LIST}, pad, pad:multiple=N, pad:to=N, pack:N or pack:best-fit=N"
EXAMPLES = (JAGGED, LIST, "pad", "pack:2048", "pack:best-fit=2048")  # a word of each way
DECODED = "images are scaled and cropped where they are decoded: --format images:shape=3x224x224,crop=random"
GRAMMAR = re.compile(
    r"jagged|list|pad(:(multiple|to)=(?P<padded>\d{1,9}))?|pack:(?P<best_fit>best-fit=)?(?P<packed>\d{1,9})"
)


@dataclass(frozen=True)
class Dense:
    """A field of a batch whose samples differ in length, as one dense tensor.

    Attributes
    ----------
    values : torch.Tensor
        Shape ``(samples, length, *inner)``, with zeros behind each sample; a length for each axis that
        varies. Packed: ``(rows, length, *inner)``, the samples at `starts`, and zeros elsewhere.
    lengths : torch.Tensor
        Lengths of the samples, int64; where k axes vary their extents, int32 of shape ``(samples, k)``.
    total : int
        Elements of all samples, in units of `inner`, known without waiting for the device.
    starts : torch.Tensor or None
        Of packed samples, the position in ``values.flatten(0, 1)`` at which each begins, int64.
    """

    values: torch.Tensor
    lengths: torch.Tensor
    total: int
    starts: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def shape(self) -> torch.Size:
        """Shape of the values."""
        return self.values.shape

    @property
    def extents(self) -> torch.Tensor:
        """Sizes of the samples along each axis that varies, of shape ``(samples, axes)``."""
        return self.lengths if self.lengths.ndim == 2 else self.lengths[:, None]

    @property
    def nbytes(self) -> int:
        """Bytes of real elements."""
        return self.total * self.values.itemsize * math.prod(self.values.shape[1 + self.extents.shape[1] :])

    def to(self, *args: Any, **kwargs: Any) -> Dense:
        """Return it with its tensors moved or converted as by `torch.Tensor.to`."""
        return self._mapped(lambda tensor: tensor.to(*args, **kwargs))

    def pin_memory(self) -> Dense:
        """Return it in pinned memory; torch's DataLoader calls it, too."""
        return self._mapped(lambda tensor: tensor.pin_memory())

    def _mapped(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Dense:
        starts = None if self.starts is None else function(self.starts)
        return replace(self, values=function(self.values), lengths=function(self.lengths), starts=starts)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All tensors that it is made of."""
        return (
            (self.values, self.lengths) if self.starts is None else (self.values, self.lengths, self.starts)
        )

    def parted(self) -> tuple[Ragged, torch.Tensor | None]:
        """Return the samples end to end, and the padding."""
        import torch

        extents = self.extents
        offsets = torch.nn.functional.pad(extents.prod(1).cumsum(0), (1, 0))
        if self.starts is None:
            flat = self.values.flatten(0, extents.shape[1])
            places = element_mask(extents, self.values.shape[1 : 1 + extents.shape[1]]).flatten()
            padding = ~places
        else:
            flat = self.values.flatten(0, 1)
            shifts = (self.starts - offsets[:-1]).repeat_interleave(self.lengths)
            places = torch.arange(len(shifts), device=flat.device) + shifts
            padding = torch.ones(len(flat), dtype=torch.bool, device=flat.device)
            padding[places] = False
        samples, rest = (signed(flat)[some].view(flat.dtype) for some in (places, padding))
        return Ragged(samples, offsets), rest


@dataclass(frozen=True)
class SampleList:
    """A field of a batch whose samples differ in length, as a tensor of each sample: `tensors`.

    `axes` is the number of axes that vary, which are the first ones.
    """

    tensors: tuple[torch.Tensor, ...]
    axes: int = 1

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of samples, and the axes that vary."""
        return len(self), *[VARIES] * self.axes

    @property
    def extents(self) -> torch.Tensor:
        """Sizes of the samples along each axis that varies, of shape ``(samples, axes)``."""
        import torch

        return torch.tensor([tensor.shape[: self.axes] for tensor in self.tensors]).reshape(-1, self.axes)

    @property
    def nbytes(self) -> int:
        """Bytes of all samples."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def to(self, *args: Any, **kwargs: Any) -> SampleList:
        """Return it with its tensors moved or converted as by `torch.Tensor.to`."""
        return replace(self, tensors=tuple(tensor.to(*args, **kwargs) for tensor in self.tensors))

    def pin_memory(self) -> SampleList:
        """Return it in pinned memory; torch's DataLoader calls it, too."""
        return replace(self, tensors=tuple(tensor.pin_memory() for tensor in self.tensors))

    def parted(self) -> tuple[Ragged, torch.Tensor | None]:
        """Return the samples end to end; there is no padding."""
        import torch

        values = torch.cat([tensor.flatten(0, self.axes - 1) for tensor in self.tensors])
        offsets = torch.nn.functional.pad(self.extents.prod(1).cumsum(0), (1, 0))
        return Ragged(values, offsets.to(values.device)), None


COLLATED = (Dense, SampleList)  # types of a field that does not stay values and offsets


@dataclass(frozen=True)
class Collate:
    """A way to make a batch of samples that differ in length.

    Attributes
    ----------
    kind : str
        "jagged": values and offsets; "list": a tensor of each sample; "pad": zeros behind each sample;
        "pack": all samples in rows of `length`, one after the other.
    multiple : int
        Padded samples have the length of the longest, rounded up to a multiple of this.
    length : int or None
        Length of padded samples, or of packed rows.
    best_fit : bool
        Packed samples begin where they fit into a row, see `best_fit`.
    extents : mapping of str to str
        The name of the field of extents of each field in which several axes vary; see `over`.
    """

    kind: str = JAGGED
    multiple: int = 1
    length: int | None = None
    best_fit: bool = False
    extents: Mapping[str, str] = field(default_factory=dict, hash=False)

    @classmethod
    def parse(cls, word: str) -> Collate:
        """Return the way that a word names; InvalidSettings for any other."""
        match = GRAMMAR.fullmatch(word)
        number = int((match["padded"] or match["packed"] or "1") if match else "0")
        if match is None or number < 1:
            hint = DECODED if word.partition(":")[0] in ("crop", "resize", "random-resized-crop") else None
            raise InvalidSettings(
                "--collate", kind="unknown-choice", expected=WAYS, found=repr(word), hint=hint
            )
        kind = word.partition(":")[0]
        if kind == "pack" or match[2] == "to":
            return cls(kind, length=number, best_fit=match["best_fit"] is not None)
        return cls(kind, multiple=number)

    def over(self, schema: Schema) -> Collate:
        """Return it for the fields of a schema; InvalidSettings to pack those in which several axes vary."""
        if self.kind == "pack" and (name := next(iter(schema.extents), None)):
            raise InvalidSettings(
                f"--collate pack: field {name} has no single length",
                kind="conflicting-options",
                expected="fields in which one axis varies",
                found=schema.field(name).typed,
                hint="use jagged, list or pad",
            )
        return replace(self, extents=schema.extents)

    @property
    def is_jagged(self) -> bool:
        """True if a batch stays as values and offsets."""
        return self.kind == JAGGED

    def __call__(self, batch: Any) -> Any:
        """Return a batch with its ragged fields made so, unless they are to stay jagged."""
        if self.is_jagged:
            return batch
        return {name: self._field(name, batch) for name in batch}

    def column(self, name: str, columns: Mapping[str, Sequence[torch.Tensor]]) -> Ragged | Dense | SampleList:
        """Return a field of a batch, given those of each sample; padded by torch's `pad_sequence`.

        Raises PortableError if a sample is too long, or its extents do not make its length.
        """
        import torch

        column, own = columns[name], self.extents.get(name)
        lengths = np.fromiter(map(len, column), np.int64, len(column))
        try:
            if own or self.kind not in (LIST, "pad"):
                one = Ragged(torch.cat(tuple(column)), torch.from_numpy(offsets_of(lengths)))
                extents = torch.stack(tuple(columns[own])) if own else None
                return one if self.is_jagged else self._made(one, extents)
            if self.kind == LIST:
                return SampleList(tuple(column))
            length = self._padded_length(int(lengths.max()))
        except IobenchError as error:
            raise PortableError.wrap(error) from error
        values = torch.nn.utils.rnn.pad_sequence(list(column), batch_first=True)
        values = _lengthened(values, length)
        return Dense(values, torch.from_numpy(lengths), int(lengths.sum()))

    def _field(self, name: str, batch: Mapping[str, Any]) -> Any:
        one, own = batch[name], self.extents.get(name)
        return self._made(one, batch[own] if own else None) if isinstance(one, Ragged) else one

    def _made(self, one: Ragged, extents: torch.Tensor | None) -> Dense | SampleList:
        if self.kind == LIST:
            return SampleList(tuple(one.split(extents)), 1 if extents is None else extents.shape[1])
        lengths, total = one.offsets.diff() if extents is None else extents, len(one.values)
        if self.kind == "pad":
            self._padded_length(int(lengths.max()))
            values = one.padded(multiple=self.multiple, length=self.length, extents=extents)
            return Dense(values, lengths, total)
        return self._packed(one, lengths, total)

    def _packed(self, one: Ragged, lengths: torch.Tensor, total: int) -> Dense:
        assert self.length is not None
        if self.best_fit:
            begins, rows = best_fit(lengths.tolist(), self.length)
            starts, flat = one.offsets.new_tensor(begins), _placed(one, begins, rows * self.length)
        else:
            starts, rows = lengths.cumsum(0) - lengths, -(-total // self.length)
            flat = _lengthened(one.values[None], rows * self.length)
        values = flat.reshape(rows, self.length, *one.values.shape[1:])
        return Dense(values, lengths, total, starts)

    def _padded_length(self, longest: int) -> int:
        """Return the length of padded samples; LoaderFailed if the longest is longer than the fixed one."""
        if self.length is None:
            return -(-longest // self.multiple) * self.multiple
        if longest > self.length:
            raise LoaderFailed(
                f"--collate pad:to={self.length}: a sample is longer",
                kind="too-long",
                expected=f"at most {self.length:,}",
                found=f"{longest:,}",
                hint="use a larger number, or pack",
            )
        return self.length


def best_fit(lengths: Sequence[int], length: int) -> tuple[list[int], int]:
    """Return where each sample begins in rows of `length` that follow each other, and the number of rows.

    From the longest to the shortest, each goes into the row with the least space left that holds it whole. A
    sample that is longer than a row takes several rows, and shares the last.
    """
    starts, spaces, rows = [0] * len(lengths), list[tuple[int, int]](), 0  # spaces: size and start, sorted
    for sample in sorted(range(len(lengths)), key=lambda one: -lengths[one]):
        size = lengths[sample]
        fitting = bisect.bisect_left(spaces, (size, 0))
        if fitting < len(spaces):
            space, start = spaces.pop(fitting)
        else:
            space, start = -(-size // length) * length, rows * length
            rows += space // length
        starts[sample] = start
        bisect.insort(spaces, (space - size, start + size))
    return starts, rows


def _placed(one: Ragged, starts: Sequence[int], total: int) -> torch.Tensor:
    """Return the samples at these positions among `total`, and zeros elsewhere."""
    placed: torch.Tensor = one.values.new_zeros((total, *one.values.shape[1:]))
    target, source, edges = array_of(placed), array_of(one.values), one.offsets.tolist()
    for start, (begin, end) in zip(starts, pairwise(edges), strict=True):
        target[start : start + end - begin] = source[begin:end]
    return placed


def _lengthened(values: torch.Tensor, length: int) -> torch.Tensor:
    """Return values of shape ``(samples, at most length, *inner)`` with zeros up to this length."""
    if values.shape[1] == length:
        return values
    longer = values.new_zeros((values.shape[0], length, *values.shape[2:]))
    longer[:, : values.shape[1]] = values
    return longer
