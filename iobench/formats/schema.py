"""Fields and schema of a dataset's samples."""

from __future__ import annotations

import itertools
import keyword
import math
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from iobench.base.text import LISTED, listed, numbered, printable, shortened, suggestion
from iobench.formats.ragged import VARIES, Ragged, map_values

Array: TypeAlias = npt.NDArray[Any]
Batch: TypeAlias = dict[str, Array]

COMPLEX = ("complex64", "complex128")
NUMPY_DTYPES = [  # NumPy's own dtypes, which every library that accepts its arrays knows
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "float32", "float64", *COMPLEX),
]
DTYPES = [*NUMPY_DTYPES, "bfloat16"]
MOST_PIXELS = 65_500  # along a side of an image: libjpeg's limit
MAX_NAME_BYTES = 200  # as UTF-8; several formats use the name as a file name, which may have 255 bytes
EXTENTS = "_extents"  # after the name of a field in which several axes vary
# A tensorclass cannot have an attribute `class`, and its own methods of these names are needed;
# TensorDict's meta.json has its own keys `shape` and `device`.
RESERVED_NAMES = {*keyword.kwlist, "shape", "device", "to", "clone", "items", "pin_memory"}


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of a name in `DTYPES`; bfloat16 is that of ml_dtypes, whose import may take 0.4 s."""
    if name == "bfloat16":
        import ml_dtypes  # noqa: F401  # registers it with NumPy
    return np.dtype(name)


@dataclass(frozen=True)
class Field:
    """A named array per sample.

    Attributes
    ----------
    name : str
        A letter of any script followed by letters, digits or underscores, as composed by NFKC.
    shape : tuple of int
        Shape of one sample, ``()`` for a scalar. The first axes may be `VARIES`, written `*`: samples differ
        in size there, and a batch holds the field as `Ragged`: all these axes are one, whose length is the
        product of their sizes. Where they are several, another field holds the sizes: `extents`.
    dtype : str
        NumPy name, one of `DTYPES`.

    Raises
    ------
    ValueError
        The name is invalid or reserved, the dtype unknown, or the shape holds no element or varies along an
        axis after one that does not.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if self.name in RESERVED_NAMES:
            raise ValueError(f"field name {self.name!r} is reserved")
        if not _is_field_name(self.name):
            raise ValueError(
                f"field name {self.name!r} is not a letter followed by letters, digits or _, "
                f"of at most {MAX_NAME_BYTES} bytes"
            )
        if self.dtype not in DTYPES:
            raise ValueError(f"field {self.name}: dtype {self.dtype} is not one of {', '.join(DTYPES)}")
        numpy_dtype(self.dtype)  # where there is such a field, NumPy knows its dtype
        if VARIES in self.inner:
            raise ValueError(f"field {self.name}: only the first axes may be *")
        if any(n < 1 for n in self.inner):
            raise ValueError(f"field {self.name}: shape {self.shape} holds no element")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a call, so that the other process's NumPy knows the dtype, too."""
        return Field, (self.name, self.shape, self.dtype)

    @property
    def typed(self) -> str:
        """The field as an argument of ``--field``: `x=float32[3,224,224]`."""
        shape = f"[{','.join(self.sizes)}]" if self.shape else ""
        return f"{self.name}={self.dtype}{shape}"

    @property
    def is_ragged(self) -> bool:
        """True if samples differ in length."""
        return self.varying > 0

    @property
    def varying(self) -> int:
        """Number of axes that vary."""
        return self.shape.count(VARIES)

    @property
    def inner(self) -> tuple[int, ...]:
        """The axes of fixed size."""
        return self.shape[self.varying :]

    @property
    def merged_shape(self) -> tuple[int, ...]:
        """The shape with one axis in place of all that vary, as in memory and in files."""
        return (VARIES, *self.inner) if self.is_ragged else self.shape

    @property
    def extents(self) -> Field | None:
        """The field of the sizes along several axes that vary, such as `image_extents`; else None."""
        return Field(f"{self.name}{EXTENTS}", (self.varying,), "int32") if self.varying > 1 else None

    @property
    def sizes(self) -> list[str]:
        """The shape in words, with `*` for an axis that varies."""
        return ["*" if size == VARIES else str(size) for size in self.shape]

    @property
    def elements(self) -> int:
        """Number of scalar elements per sample; of a ragged field, per unit of length."""
        return math.prod(self.inner)

    @property
    def is_image(self) -> bool:
        """True for uint8 of shape (H, W, 3) or (H, W), within libjpeg's size limit."""
        axes = len(self.shape) == 2 or self.shape[2:] == (3,)
        return self.dtype == "uint8" and axes and not self.is_ragged and max(self.shape) <= MOST_PIXELS

    @property
    def is_channels_first(self) -> bool:
        """True for an image in torch's layout, uint8 of shape (3, H, W), within libjpeg's size limit."""
        axes = len(self.shape) == 3 and self.shape[0] == 3 and not self.is_image
        return self.dtype == "uint8" and axes and max(self.shape) <= MOST_PIXELS

    @property
    def sample_bytes(self) -> int:
        """Logical bytes per sample; of a ragged field, per unit of length."""
        return self.elements * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Schema:
    """Number of samples and their fields, shared by all artifacts of a dataset.

    `renamed` holds the names from outside of fields that could not keep them, where they are known.
    `totals` holds the sum of the lengths of all samples of each ragged field.
    """

    samples: int
    fields: tuple[Field, ...]
    renamed: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    totals: dict[str, int] = field(default_factory=dict, hash=False, repr=False)

    def __post_init__(self) -> None:
        names = [field.name for field in self.fields if field.is_ragged]
        if sorted(names) != sorted(self.totals) or min(self.totals.values(), default=0) < 0:
            raise ValueError(f"totals of {listed(list(self.totals))}, but {listed(names)} differ in length")

    @property
    def ragged(self) -> tuple[Field, ...]:
        """The fields whose samples differ in length."""
        return tuple(field for field in self.fields if field.is_ragged) if self.totals else ()

    @property
    def extents(self) -> dict[str, str]:
        """The name of the field of extents of each field in which several axes vary."""
        return own_extents(self.ragged)

    @property
    def fixed(self) -> Schema:
        """The schema of the fields that have one shape in all samples."""
        return self.chosen([f.name for f in self.fields if not f.is_ragged]) if self.totals else self

    @property
    def sample_bytes(self) -> int:
        """Logical bytes per sample over all fields; the mean, rounded up, if samples differ in length."""
        if self.totals:
            return max(1, -(-self.logical_bytes // self.samples))
        return sum(field.sample_bytes for field in self.fields)

    @property
    def logical_bytes(self) -> int:
        """Bytes of the whole dataset as arrays, without offsets."""
        return sum(self.rows(field) * field.sample_bytes for field in self.fields)

    @property
    def elements(self) -> int:
        """Number of scalar elements of the whole dataset."""
        return sum(self.rows(field) * field.elements for field in self.fields)

    def rows(self, field: Field) -> int:
        """Return the length of a field's array of values: the number of samples, unless it is ragged."""
        return self.totals.get(field.name, self.samples)

    def describe(self, renamed: Mapping[str, str] | None = None) -> str:
        """List the fields; more than LISTED of one dtype and shape are a count, like `40 × float32`.

        `renamed` holds the names from outside to show, as in a manifest. Fields of extents are not listed.
        """
        alike: dict[tuple[str, bool], list[str]] = {}
        own = set(self.extents.values())
        for one in (known for known in self.fields if known.name not in own):
            original = (renamed or {}).get(one.name)
            origin = f" from {shortened(printable(repr(original)))}" if original is not None else ""
            kind = f"{one.dtype} {'x'.join(one.sizes)}".rstrip()
            alike.setdefault((kind, bool(origin)), []).append(f"{one.name}{origin} {kind}")
        return ", ".join(
            f"{len(texts)} × {kind}" if len(texts) > LISTED else ", ".join(texts)
            for (kind, _), texts in alike.items()
        )

    def field(self, name: str) -> Field:
        """Return the field of that name; KeyError lists the known ones."""
        for one in self.fields:
            if one.name == name:
                return one
        known = [one.name for one in self.fields]
        raise KeyError(f"no field {name!r}; {suggestion(name, known)}there are {listed(known)}")

    def chosen(self, names: Collection[str]) -> Schema:
        """Return the schema of these fields alone."""
        totals = {name: total for name, total in self.totals.items() if name in names}
        return Schema(self.samples, tuple(f for f in self.fields if f.name in names), totals=totals)

    def offsets(self, first: int = 0) -> dict[str, int]:
        """Return the byte offset of each field in a packed sample that begins at byte `first`."""
        ends = itertools.accumulate((field.sample_bytes for field in self.fields), initial=first)
        return {field.name: begin for field, begin in zip(self.fields, ends, strict=False)}

    def empty(self, count: int) -> Batch:
        """Return a batch of `count` uninitialized samples; those of ragged fields have the length 0."""
        batch: dict[str, Any] = {f.name: np.empty((count, *f.shape), f.dtype) for f in self.fixed.fields}
        for one in self.ragged:
            batch[one.name] = Ragged(np.empty((0, *one.inner), one.dtype), np.zeros(count + 1, np.int64))
        return {one.name: batch[one.name] for one in self.fields}

    def batch_rows(self, target_bytes: int) -> int:
        """Return the number of samples that fit in `target_bytes`: at least 1, at most all."""
        return max(1, min(self.samples, target_bytes // self.sample_bytes))


def own_extents(fields: Iterable[Field]) -> dict[str, str]:
    """Return the name of the field of extents of each field in which several axes vary."""
    return {one.name: own.name for one in fields if (own := one.extents)}


def with_extents(fields: Iterable[Field]) -> tuple[Field, ...]:
    """Return the fields, each in which several axes vary followed by that of its extents.

    Raises ValueError if another field has that name.
    """
    given = tuple(fields)
    names = {one.name for one in given}
    for one in given:
        if (own := one.extents) and own.name in names:
            raise ValueError(f"field {own.name} is for the extents of {one.typed}; give it another name")
    return tuple(part for one in given for part in (one, one.extents) if part)


def _is_field_name(text: str) -> bool:
    plain = text.isidentifier() and text[0] != "_" and unicodedata.is_normalized("NFKC", text)
    return plain and text not in RESERVED_NAMES and len(text.encode()) <= MAX_NAME_BYTES


def field_names(names: Iterable[str]) -> dict[str, str]:
    """Return the name from outside of each field: the same where it is a field's name.

    The other fields have similar names, train_x for train/x, with a number where that is another field's.
    """
    return _unique(names, _similar)


def stored_names(fields: Iterable[Field], similar: Callable[[str], str]) -> dict[str, str]:
    """Return the name of each field in files that hold only some names.

    `similar` returns a name that the files hold, which is the same for a name that they hold. It is short
    enough for a number after it.
    """
    return {name: stored for stored, name in _unique((field.name for field in fields), similar).items()}


def names_within(
    own: Iterable[str], fields: Iterable[Field], similar: Callable[[str], str]
) -> dict[str, str]:
    """Return the name of each field in files with the names `own`, by whichever program wrote them."""
    return stored_names(fields, similar) | field_names(own)


def renamed(fields: Iterable[Field], names: Mapping[str, str]) -> dict[str, str]:
    """Return the name from outside of each field that has another one, given all `names` from outside."""
    return {f.name: names[f.name] for f in fields if names[f.name] != f.name}


def _unique(names: Iterable[str], similar: Callable[[str], str]) -> dict[str, str]:
    """Return each name by what is stored: the same, or a similar one with a number where that is taken."""
    own = list(dict.fromkeys(names))
    kept = {name: name for name in own if similar(name) == name}
    for name in sorted(set(own) - set(kept)):
        kept[next(one for one in numbered(similar(name)) if one not in kept)] = name
    stored = {name: one for one, name in kept.items()}
    return {stored[name]: name for name in own}


def _similar(text: str) -> str:
    """Return a field's name with the letters and digits of a text: the text itself if it is one."""
    if _is_field_name(text):
        return text
    letters = re.sub(r"\W+", "_", unicodedata.normalize("NFKC", text)).strip("_")
    letters = letters.encode()[: MAX_NAME_BYTES // 2].decode(errors="ignore").strip("_")
    return letters if _is_field_name(letters) else f"f_{letters}".strip("_")


def raw_bytes(array: Array) -> memoryview:
    """Return the bytes of a C-contiguous array as a flat view of its memory."""
    return array.reshape(-1).view(np.uint8).data


def plain_bools(batch: Batch) -> Batch:
    """Return the batch with all bools as the bytes 0 and 1; the batch itself if they already are.

    NumPy treats any byte but 0 as true, but libraries store, convert and compare the bytes, each in its
    own way. Arrays from outside therefore pass through here before they are hashed or written.
    """
    odd = {
        name: map_values(lambda values: values.view(np.uint8) != 0, array)
        for name, array in batch.items()
        if array.dtype == np.bool_ and getattr(array, "values", array).view(np.uint8).max(initial=0) > 1
    }
    return {**batch, **odd} if odd else batch


class BatchStream:
    """Batches whose samples are taken in other numbers."""

    def __init__(self, batches: Iterable[Batch]) -> None:
        self._batches = iter(batches)
        self._rest: Batch | None = None  # of the batch that was cut last

    def take(self, samples: int) -> Iterator[Batch]:
        """Yield the next samples, fewer if the batches end."""
        while samples and (batch := self._rest or next(self._batches, None)):
            count, self._rest = len(next(iter(batch.values()))), None
            if count > samples:
                self._rest = {name: array[samples:] for name, array in batch.items()}
                batch = {name: array[:samples] for name, array in batch.items()}
            samples -= min(count, samples)
            yield batch


LENGTH = np.dtype("<i8")


def payloads(schema: Schema, batch: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the payload of each sample of a batch."""
    fixed = [(raw_bytes(batch[f.name]), f.sample_bytes) for f in schema.fixed.fields]
    ragged = [(batch[field.name], field.sample_bytes) for field in schema.ragged]
    lengths = [np.diff(field.offsets).astype(LENGTH) for field, _ in ragged]
    columns = fixed + [(raw_bytes(column), LENGTH.itemsize) for column in lengths]
    values = [(raw_bytes(field.values), (field.offsets * width).tolist()) for field, width in ragged]
    for row in range(len(batch[schema.fields[0].name])):
        parts = [column[row * width : (row + 1) * width] for column, width in columns]
        parts += [memory[edges[row] : edges[row + 1]] for memory, edges in values]
        yield b"".join(parts)
