"""Options of `iobench prepare` that say which data are written: generated ones, or a user's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iobench.base.errors import InvalidSettings, SourceError
from iobench.base.units import parse_elements, parse_shape
from iobench.bench.options import check_declared, command_option, declared
from iobench.terminal.commands._options import (
    FIELD_HELP,
    FILES,
    FILES_HELP,
    ON_ERROR,
    ON_ERROR_HELP,
    SOURCE_FORMAT_HELP,
    fields_of,
    fields_with_extents,
    parsed,
)

if TYPE_CHECKING:
    from iobench.dataset.sources import Source

OF_GENERATED = ("size", "dtype", "seed", "compressibility", "fields", "lengths")
OF_SOURCE = ("columns", "source_format", "on_error", "files", "field")
OF_RAGGED = ("fields", "lengths", "size", "seed")


@dataclass(frozen=True)
class SourceOptions:
    """The options as they are typed; None for those that were not.

    Raises
    ------
    InvalidSettings
        If a value is unknown, or options exclude each other.
    """

    size: str | None = command_option(
        None, "Elements to generate (1e7, 2_000_000), or bytes (4GiB). [default: 1e7]"
    )
    sample_shape: str | None = command_option(
        None,
        "Shape of one sample; '*x*x3' keeps the size of each image. [default: 128; 3x224x224 for images]",
    )
    dtype: str | None = command_option(None, "Dtype of generated data. [default: float32]")
    seed: int | None = command_option(None, "Seed of generated data. [default: 0]")
    compressibility: float | None = command_option(
        None, "Fraction (0 to 1) of each generated sample that repeats one value. [default: 0]"
    )
    fields: str | None = command_option(
        None,
        "Fields to generate, with * where samples differ in length: 'tokens=uint16[*],label=int64'. --size "
        "counts the elements of that field.",
    )
    lengths: str | None = command_option(
        None,
        "Lengths of the samples of --fields: lognormal:MEDIAN,SIGMA, uniform:LOW,HIGH or file:PATH of an "
        ".npy array. [default: lognormal:512,1.2]",
    )
    source: str | None = command_option(
        None,
        "Your own data: .npy, .npz, .pt, .csv, a folder of images, or any readable format; FILE::NAME,NAME "
        "selects arrays. [default: data added to --name, else generated]",
    )
    source_format: str | None = command_option(None, SOURCE_FORMAT_HELP)
    field: tuple[str, ...] = command_option((), FIELD_HELP, repeatable=True)
    columns: str | None = command_option(
        None,
        "Columns of one dtype in a table given by --source: packed makes them one field, separate keeps a "
        "field for each. [default: packed]",
        choices=("packed", "separate"),
    )
    on_error: str | None = command_option(None, ON_ERROR_HELP, choices=ON_ERROR)

    files: str | None = command_option(None, FILES_HELP, choices=FILES)

    def __post_init__(self) -> None:
        check_declared(self)
        if self.source is not None and (given := self._typed(OF_GENERATED)):
            raise InvalidSettings(
                f"{', '.join(given)} with --source",
                kind="conflicting-options",
                hint="use them for generated data only",
            )
        for flag in self._typed(OF_SOURCE) if self.source is None else ():
            problem = f"{flag} is for data given by --source"
            raise InvalidSettings(problem, kind="conflicting-options", hint=f"omit {flag}")

    def _typed(self, names: tuple[str, ...]) -> list[str]:
        """Return the flags of the options among these that were typed."""
        return [
            one.flag
            for one in declared(type(self))
            if one.name in names and getattr(self, one.name) not in (None, ())
        ]

    @property
    def name_data(self) -> bool:
        """True if any option says which data are meant."""
        return bool(self._typed((*OF_GENERATED, "source", "sample_shape")))

    def open(self) -> Source:
        """Return the source to write: the user's files, or generated data with defaults filled in."""
        from iobench.dataset.sources import open_source

        shape = None
        if self.sample_shape is not None:
            shape = parsed("--sample-shape", parse_shape, self.sample_shape, True)
        if self.source is not None:
            columns, on_error = self.columns or "packed", self.on_error or "stop"
            fields = fields_with_extents(self.field)
            return open_source(self.source, shape, columns, self.source_format, on_error, self.files, fields)
        try:
            if self.fields is not None or self.lengths is not None:
                return self._ragged()
            return self._synthetic(shape or (128,))
        except SourceError as error:
            raise error.converted(InvalidSettings) from None

    def _synthetic(self, shape: tuple[int, ...]) -> Source:
        import numpy as np

        from iobench.dataset.sources import Synthetic
        from iobench.formats import DTYPES, VARIES

        if VARIES in shape:
            problem, hint = "--sample-shape with * and without --source", "give --fields 'x=uint8[*,*,3]'"
            raise InvalidSettings(problem, kind="conflicting-options", hint=hint)
        dtype = "float32" if self.dtype is None else self.dtype
        if dtype not in DTYPES:
            known = f"one of {', '.join(DTYPES)}"
            raise InvalidSettings("--dtype", kind="unknown-dtype", expected=known, found=repr(dtype))
        given: dict[str, Any] = {"seed": self.seed, "compressibility": self.compressibility}
        others = {name: value for name, value in given.items() if value is not None}
        return Synthetic(self._elements(np.dtype(dtype).itemsize), shape, dtype=dtype, **others)

    def _ragged(self) -> Source:
        """Return generated samples of different lengths."""
        import numpy as np

        from iobench.dataset.sources import GeneratedLengths

        others = [name for name in (*OF_GENERATED, "sample_shape") if name not in OF_RAGGED]
        wrong = self._typed(tuple(others))
        if wrong or self.fields is None:
            listed = ", ".join(wrong) or "--lengths without --fields"
            hint = "give --fields 'tokens=uint16[*]', --lengths, --size and --seed"
            raise InvalidSettings(listed, kind="conflicting-options", hint=hint)
        lengths = self.lengths or "lognormal:512,1.2"
        if self.size is not None and lengths.startswith("file:"):
            raise InvalidSettings(
                "--size with --lengths file:", kind="conflicting-options", hint="omit --size"
            )
        fields = fields_of(self.fields)
        item = max((np.dtype(field.dtype).itemsize for field in fields if field.is_ragged), default=1)
        return GeneratedLengths(fields, lengths, self._elements(item), self.seed or 0)

    def _elements(self, item_bytes: int) -> int:
        return parsed("--size", parse_elements, "1e7" if self.size is None else self.size, item_bytes)
