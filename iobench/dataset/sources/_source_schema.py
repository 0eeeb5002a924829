"""Schema of the user's arrays: the checks of `formats` with errors of the class SourceError."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from iobench import formats
from iobench.base.errors import CorruptArtifact, SourceError
from iobench.formats import DTYPE_HINT, Schema, ShapeAndDtype, native_dtype, selection_hint

__all__ = ["DTYPE_HINT", "arrays_schema", "check_sample", "native_dtype", "select_arrays", "selection_hint"]


def select_arrays(path: Path, available: Collection[str], chosen: Collection[str]) -> list[str]:
    """Select arrays as `formats.select_arrays` does; raises SourceError of the same kinds."""
    with _source_errors():
        return formats.select_arrays(path, available, chosen)


def arrays_schema(path: Path, arrays: Mapping[str, ShapeAndDtype], available: Collection[str] = ()) -> Schema:
    """Return the schema of arrays as `formats.arrays_schema` does; raises SourceError of the same kinds."""
    with _source_errors():
        return formats.arrays_schema(path, arrays, available)


def check_sample(what: str, shape: tuple[int, ...], sample_bytes: int) -> None:
    """Raise SourceError if one sample has more axes or bytes than can be prepared."""
    with _source_errors():
        formats.check_sample(what, shape, sample_bytes)


@contextmanager
def _source_errors() -> Iterator[None]:
    try:
        yield
    except CorruptArtifact as error:
        raise error.converted(SourceError) from None
