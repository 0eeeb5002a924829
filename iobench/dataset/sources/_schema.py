"""The schema of a user's named arrays, as formats find it, with refusals that are about a source."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from iobench import formats
from iobench.base.errors import (
    CorruptArtifact,
    SourceError,
)
from iobench.formats import NO_NUMBER, Schema, Shaped, how_to_choose, native_dtype

__all__ = ["NO_NUMBER", "check_sample", "choose", "how_to_choose", "native_dtype", "schema_of"]


def choose(path: Path, available: Collection[str], chosen: Collection[str]) -> list[str]:
    """As `formats.choose`; SourceError where a choice is not there, or is more than can become fields."""
    with _refusals("--source "):
        return formats.choose(path, available, chosen)


def schema_of(path: Path, arrays: Mapping[str, Shaped], available: Collection[str] = ()) -> Schema:
    """As `formats.arrays_schema`; SourceError where the arrays are no samples that every format stores."""
    with _refusals("--source "):
        return formats.arrays_schema(path, arrays, available)


def check_sample(what: str, shape: tuple[int, ...], sample_bytes: int) -> None:
    """SourceError where one sample has more axes or bytes than can be prepared."""
    with _refusals(""):
        formats.check_sample(what, shape, sample_bytes)


@contextmanager
def _refusals(prefix: str) -> Iterator[None]:
    try:
        yield
    except CorruptArtifact as error:
        raise SourceError(f"{prefix}{error}") from None
