"""Collation of samples that differ in length: end to end, padded, or packed into rows.

Batches are padded with zeros. A case names its way as `Collate.parse` reads it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from iobench.base.errors import InvalidSettings, LoaderFailed
from iobench.formats import Ragged, offsets_of
from iobench.loading.portable_error import PortableError

if TYPE_CHECKING:
    import torch

JAGGED = "jagged"
WAYS = f"{JAGGED}, pad, pad:multiple=N, pad:to=N or pack:N"
GRAMMAR = re.compile(r"jagged|pad(:(multiple|to)=(?P<padded>\d{1,9}))?|pack:(?P<packed>\d{1,9})")


@dataclass(frozen=True)
class Dense:
    """A field of a batch whose samples differ in length, as one dense tensor.

    Attributes
    ----------
    values : torch.Tensor
        Shape ``(samples, length, *inner)``, with zeros behind each sample. Packed: ``(rows, length,
        *inner)``, the samples one after the other over all rows, and zeros behind the last sample.
    lengths : torch.Tensor
        Lengths of the samples, int64.
    total : int
        Sum of the lengths, known without waiting for the device.
    packed : bool
        Whether the samples are packed.
    """

    values: torch.Tensor
    lengths: torch.Tensor
    total: int
    packed: bool = False

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def shape(self) -> torch.Size:
        """Shape of the values."""
        return self.values.shape

    @property
    def nbytes(self) -> int:
        """Bytes of real elements."""
        return self.total * self.values.itemsize * math.prod(self.values.shape[2:])

    def to(self, *args: Any, **kwargs: Any) -> Dense:
        """Return it with both tensors moved or converted as by `torch.Tensor.to`."""
        values, lengths = self.values.to(*args, **kwargs), self.lengths.to(*args, **kwargs)
        return replace(self, values=values, lengths=lengths)

    def pin_memory(self) -> Dense:
        """Return it in pinned memory; torch's DataLoader calls it, too."""
        return replace(self, values=self.values.pin_memory(), lengths=self.lengths.pin_memory())

    def parted(self) -> tuple[Ragged, torch.Tensor]:
        """Return the samples end to end, and the padding."""
        import torch

        offsets = torch.nn.functional.pad(self.lengths.cumsum(0), (1, 0))
        flat = self.values.flatten(0, 1)
        if self.packed:
            return Ragged(flat[: self.total], offsets), flat[self.total :]
        positions = torch.arange(self.values.shape[1], device=self.values.device)
        inside = (positions < self.lengths[:, None]).flatten()
        return Ragged(flat[inside.nonzero()[:, 0]], offsets), flat[(~inside).nonzero()[:, 0]]


@dataclass(frozen=True)
class Collate:
    """A way to make a batch of samples that differ in length.

    Attributes
    ----------
    kind : str
        "jagged": values and offsets; "pad": zeros behind each sample; "pack": all samples one after the
        other, in rows of `length`.
    multiple : int
        Padded samples have the length of the longest, rounded up to a multiple of this.
    length : int or None
        Length of padded samples, or of packed rows.
    """

    kind: str = JAGGED
    multiple: int = 1
    length: int | None = None

    @classmethod
    def parse(cls, word: str) -> Collate:
        """Return the way that a word names; InvalidSettings for any other."""
        match = GRAMMAR.fullmatch(word)
        number = int((match["padded"] or match["packed"] or "1") if match else "0")
        if match is None or number < 1:
            raise InvalidSettings("--collate", kind="unknown-choice", expected=WAYS, found=repr(word))
        kind = word.partition(":")[0]
        if kind == "pack" or match[2] == "to":
            return cls(kind, length=number)
        return cls(kind, multiple=number)

    @property
    def is_jagged(self) -> bool:
        """True if a batch stays as values and offsets."""
        return self.kind == JAGGED

    def __call__(self, batch: Any) -> Any:
        """Return a batch with each ragged field made dense, unless it is to stay jagged."""
        if self.is_jagged:
            return batch
        return {name: self._dense(one) if isinstance(one, Ragged) else one for name, one in batch.items()}

    def samples(self, column: Sequence[torch.Tensor]) -> Ragged | Dense:
        """Return a field of a batch, given that of each sample; padded by torch's `pad_sequence`.

        Raises PortableError if a sample is too long.
        """
        import torch

        lengths = np.fromiter(map(len, column), np.int64, len(column))
        if self.kind != "pad":
            one = Ragged(torch.cat(tuple(column)), torch.from_numpy(offsets_of(lengths)))
            return one if self.is_jagged else self._dense(one)
        try:
            length = self._padded_length(int(lengths.max()))
        except LoaderFailed as error:
            raise PortableError.wrap(error) from error
        values = torch.nn.utils.rnn.pad_sequence(list(column), batch_first=True)
        values = _lengthened(values, length)
        return Dense(values, torch.from_numpy(lengths), int(lengths.sum()))

    def _dense(self, one: Ragged) -> Dense:
        lengths, total = one.offsets.diff(), len(one.values)
        if self.kind == "pad":
            values = one.padded(length=self._padded_length(int(lengths.max())))
            return Dense(values, lengths, total)
        assert self.length is not None
        rows = -(-total // self.length)
        flat = _lengthened(one.values[None], rows * self.length)
        values = flat.reshape(rows, self.length, *one.values.shape[1:])
        return Dense(values, lengths, total, packed=True)

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


def _lengthened(values: torch.Tensor, length: int) -> torch.Tensor:
    """Return values of shape ``(samples, at most length, *inner)`` with zeros up to this length."""
    if values.shape[1] == length:
        return values
    longer = values.new_zeros((values.shape[0], length, *values.shape[2:]))
    longer[:, : values.shape[1]] = values
    return longer
