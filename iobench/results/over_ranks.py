"""Joining of what several ranks measured: each field of a part declares by its type how."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar, get_type_hints

T = TypeVar("T")


def _sum(values: Sequence[Any]) -> Any:
    return None if None in values else sum(values)


def _largest(values: Sequence[Any]) -> Any:
    return max((one for one in values if one is not None), default=None)


def _mean(values: Sequence[Any]) -> Any:
    known = [one for one in values if one is not None]
    if known and isinstance(known[0], dict):
        return {name: statistics.fmean(one.get(name, 0.0) for one in known) for name in known[0]}
    return statistics.fmean(known) if known else None


def _first(values: Sequence[Any]) -> Any:
    return values[0]


def _none(values: Sequence[Any]) -> None:
    return None


def _listed(values: Sequence[Any]) -> list[Any]:
    return [item for one in values for item in one or ()]


def _part(values: Sequence[Any]) -> Any:
    known = [one for one in values if one is not None]
    return joined(known) if known else None


Summed = Annotated[T, _sum]  # None where any is unknown
Largest = Annotated[T, _largest]
Averaged = Annotated[T, _mean]  # of the known ones; a dict by key
OfFirst = Annotated[T, _first]  # the same for all ranks, or of the machine itself
OfRank = Annotated[T, _none]  # of a single rank only
Listed = Annotated[T, _listed]
Part = Annotated[T, _part]  # a part whose own fields declare it


def joined(parts: Sequence[T]) -> T:
    """Return one part for those of all ranks; TypeError if a field does not declare how."""
    if len(parts) == 1:
        return parts[0]
    kind: Any = type(parts[0])
    values = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        join = next(filter(callable, getattr(hint, "__metadata__", ())), None)
        if join is None:
            raise TypeError(f"{kind.__name__}.{name} does not say how ranks join it")
        values[name] = join([getattr(one, name) for one in parts])
    joined_part: T = kind(**values)
    return joined_part
