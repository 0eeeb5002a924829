"""What a dataset holds: fields of samples, and how many of them."""

from __future__ import annotations

import itertools
import keyword
import math
import re
from dataclasses import dataclass
from typing import Any, TypeAlias

import ml_dtypes  # noqa: F401  # from here on NumPy knows bfloat16 by its name
import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Batch: TypeAlias = dict[str, Array]

COMPLEX = ("complex64", "complex128")
NUMPY_DTYPES = [  # NumPy's own, which every library that takes its arrays knows
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "float32", "float64", *COMPLEX),
]
DTYPES = [*NUMPY_DTYPES, "bfloat16"]
MOST_PIXELS = 65_500  # to a side of an image: what JPEG can hold
FIELD_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
# A tensorclass has no attribute `class`, and its own methods by these names are needed; TensorDict's
# meta.json keeps its own `shape` and `device`.
RESERVED_NAMES = {*keyword.kwlist, "shape", "device", "to", "clone", "items", "pin_memory"}


@dataclass(frozen=True)
class Field:
    """A named array per sample.

    `shape` is one sample's, `()` for a scalar; `dtype` is a NumPy name out of DTYPES.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if not FIELD_NAME.fullmatch(self.name):
            raise ValueError(f"field name {self.name!r} is not a letter followed by letters, digits or _")
        if self.name in RESERVED_NAMES:
            raise ValueError(f"field name {self.name!r} is reserved")
        if self.dtype not in DTYPES:
            raise ValueError(f"field {self.name}: dtype {self.dtype} is not one of {', '.join(DTYPES)}")
        if any(n < 1 for n in self.shape):
            raise ValueError(f"field {self.name}: shape {self.shape} holds no element")

    @property
    def typed(self) -> str:
        """The field as it is typed: `x=float32[3,224,224]`."""
        shape = f"[{','.join(map(str, self.shape))}]" if self.shape else ""
        return f"{self.name}={self.dtype}{shape}"

    @property
    def elements(self) -> int:
        """Scalar elements in one sample."""
        return math.prod(self.shape)

    @property
    def is_image(self) -> bool:
        """Whether it is uint8 (H, W, 3) or (H, W), and no larger than JPEG can be."""
        axes = len(self.shape) == 2 or self.shape[2:] == (3,)
        return self.dtype == "uint8" and axes and max(self.shape) <= MOST_PIXELS

    @property
    def is_channels_first(self) -> bool:
        """Whether it is an image as torch has them, uint8 (3, H, W), and no larger than JPEG can be."""
        axes = len(self.shape) == 3 and self.shape[0] == 3 and not self.is_image
        return self.dtype == "uint8" and axes and max(self.shape) <= MOST_PIXELS

    @property
    def sample_bytes(self) -> int:
        """Logical bytes of one sample."""
        return self.elements * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Schema:
    """What every artifact of a dataset holds: the number of samples and their fields."""

    samples: int
    fields: tuple[Field, ...]

    @property
    def sample_bytes(self) -> int:
        """Logical bytes of one sample over all its fields."""
        return sum(field.sample_bytes for field in self.fields)

    @property
    def logical_bytes(self) -> int:
        """Bytes of the whole dataset as arrays."""
        return self.samples * self.sample_bytes

    @property
    def elements(self) -> int:
        """Scalar elements of the whole dataset."""
        return self.samples * sum(field.elements for field in self.fields)

    def field(self, name: str) -> Field:
        """The field of that name; KeyError lists the known ones."""
        for field in self.fields:
            if field.name == name:
                return field
        raise KeyError(f"no field {name!r}; there are {', '.join(f.name for f in self.fields)}")

    def offsets(self, first: int = 0) -> dict[str, int]:
        """Where each field begins in a sample whose fields follow each other from byte `first` on."""
        ends = itertools.accumulate((field.sample_bytes for field in self.fields), initial=first)
        return {field.name: begin for field, begin in zip(self.fields, ends, strict=False)}

    def empty(self, count: int) -> Batch:
        """A batch of `count` uninitialised samples."""
        return {f.name: np.empty((count, *f.shape), f.dtype) for f in self.fields}

    def batch_rows(self, target_bytes: int) -> int:
        """How many samples fit `target_bytes`, at least 1 and at most all of them."""
        return max(1, min(self.samples, target_bytes // self.sample_bytes))


def field_name(text: str) -> str:
    """A name out of other people's data, made into one that a field can have: train/x is train_x."""
    name = re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_")
    return name if name[:1].isalpha() and name not in RESERVED_NAMES else f"f_{name}"


def raw_bytes(array: Array) -> memoryview:
    """The bytes of a C-contiguous array, as a flat view of its memory."""
    return array.reshape(-1).view(np.uint8).data


def plain_bools(batch: Batch) -> Batch:
    """The batch itself if all its bools are the bytes 0 and 1, else one in which every other byte is 1.

    To NumPy any byte but 0 is true, but libraries store, convert and compare the bytes, each in its
    way. So whoever takes arrays from outside passes them through here before they are summed or written.
    """
    odd = {
        name: array.view(np.uint8) != 0
        for name, array in batch.items()
        if array.dtype == np.bool_ and array.view(np.uint8).max(initial=0) > 1
    }
    return {**batch, **odd} if odd else batch
