"""Comparison across contexts: each choice in each context, and speed over each number that varies."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from iobench.base.units import three_digits
from iobench.report.rows import FASTEST, RIVAL, Row, standing
from iobench.results import cases
from iobench.results.case_key import Facets, key_of
from iobench.results.cases import FACETS
from iobench.results.metrics import BY_NAME as METRIC
from iobench.results.summary import MAX_SHOWN, CaseSummary, Context

NO_HEAT = 50.0  # relative time, from which on a cell has no color


@dataclass(frozen=True)
class Cell:
    """A choice in a context: its speed and its relative time as text.

    `heat` goes from 1 (as fast as the fastest) to 0.
    """

    speed: str
    relative: str
    standing: str
    heat: float


@dataclass(frozen=True)
class Matrix:
    """Cells in named rows and columns, None where not measured; `folded` rows are collapsed at first."""

    columns: list[str]
    rows: list[tuple[str, list[Cell | None]]]
    folded: list[tuple[str, list[Cell | None]]] = field(default_factory=list)


def matrix(contexts: Sequence[Context]) -> Matrix | None:
    """Return every choice of format, loader and options in every context, the fastest first.

    Of many, only the best of each format is shown; the others are folded. None for a single context.
    """
    if len(contexts) < 2:
        return None
    choices: dict[str, dict[int, CaseSummary]] = {}
    for column, context in enumerate(contexts):
        for case in context.cases:
            choices.setdefault(case.choice, {})[column] = case
    ordered, formats = sorted(choices.values(), key=_mean_relative), set()
    shown: list[tuple[str, list[Cell | None]]] = []
    folded: list[tuple[str, list[Cell | None]]] = []
    for by_column in ordered:
        first = next(iter(by_column.values()))
        row = [_cell(contexts[column], by_column.get(column)) for column in range(len(contexts))]
        repeated = len(ordered) > MAX_SHOWN and first.label.format in formats
        (folded if repeated else shown).append((first.label.short, row))
        formats.add(first.label.format)
    return Matrix([context.title for context in contexts], shown, folded)


def grid(context: Context) -> Matrix | None:
    """Return formats (rows) under loaders (columns), both by their fastest case; None with one of either."""
    formats, by_loader = context.grid
    if len(formats) < 2 or len(by_loader) < 2:
        return None
    rows = zip(formats, zip(*by_loader.values(), strict=True), strict=True)
    return Matrix(list(by_loader), [(name, [_cell(context, case) for case in row]) for name, row in rows])


def _mean_relative(by_column: Mapping[int, CaseSummary]) -> float:
    return statistics.geometric_mean(case.relative.median for case in by_column.values())


def _cell(context: Context, case: CaseSummary | None) -> Cell | None:
    if case is None:
        return None
    time = case.relative.median
    heat = max(0.0, 1 - math.log(max(1.0, time)) / math.log(NO_HEAT))
    name = standing(context, case.key)
    words = {FASTEST: "fastest", RIVAL: f"≈ {three_digits(time)} ×"}
    speed = METRIC["bytes_per_s"].text(case.bytes_per_s.median)
    return Cell(speed, words.get(name, f"{three_digits(time)} ×"), name, round(heat, 3))


@dataclass(frozen=True)
class Axis:
    """A number in which cases may differ: its value for a case, and the case's facets without it."""

    name: str
    value: Callable[[CaseSummary], float | None]
    rest: Callable[[Facets], dict[str, Any]]


def axes(summaries: Sequence[CaseSummary]) -> list[Axis]:
    """Return an axis for every numeric facet, every numeric loader option, and the dataset's size."""
    names = dict.fromkeys([*FACETS, *(name for case in summaries for name in case.facets)])
    facets = [name for name in names if any(_is_number(case.facets.get(name)) for case in summaries)]
    counts = [name for name in facets if name not in ("memory", "samples", "seed")]
    options = dict.fromkeys(name for case in summaries for name in case.facets.get("options") or {})
    return [
        *map(_by_facet, counts),
        *(_by_option(name) for name in options),
        Axis("dataset_bytes", lambda case: _sizes(case)[1], lambda facets: _without(facets, _DATA)),
    ]


_DATA = ("dataset", "content", "samples", "fields")


def series(summaries: Sequence[CaseSummary], axis: Axis) -> list[Row]:
    """Return, as lines, cases measured at several values of one number with all else equal.

    The line with the highest speed comes first.
    """
    lines: dict[str, dict[float, CaseSummary]] = {}
    rests: dict[str, dict[str, Any]] = {}
    for case in summaries:
        value = axis.value(case)
        if value is not None:
            rest = axis.rest(case.facets)
            key = key_of(rest)
            rests[key] = rest
            lines.setdefault(key, {})[value] = case
    several = {key: points for key, points in lines.items() if len(points) > 1}
    highest = {key: max(case.bytes_per_s.median for case in several[key].values()) for key in several}
    several = {key: several[key] for key in sorted(several, key=highest.__getitem__, reverse=True)}
    labels = cases.labels({key: rests[key] for key in several})
    return [row for key, points in several.items() for row in _points(key, str(labels[key]), points, axis)]


def _points(key: str, label: str, points: Mapping[float, CaseSummary], axis: Axis) -> Iterator[Row]:
    for value, case in sorted(points.items()):
        speed = case.bytes_per_s
        ends = {"bytes_per_s low": speed.low, "bytes_per_s high": speed.high}
        yield {"key": key, "series": label, axis.name: value, "bytes_per_s": speed.median, **ends}


def _by_facet(name: str) -> Axis:
    return Axis(name, lambda case: _number(case.facets.get(name)), lambda facets: _without(facets, (name,)))


def _by_option(name: str) -> Axis:
    def rest(facets: Facets) -> dict[str, Any]:
        return {**facets, "options": _without(facets.get("options") or {}, (name,))}

    return Axis(name, lambda case: _number((case.facets.get("options") or {}).get(name)), rest)


def _sizes(case: CaseSummary) -> tuple[float, float]:
    """Return the logical bytes of a sample and of the dataset."""
    sample = case.bytes_per_s.median / case.samples_per_s.median
    return sample, round(sample * case.facets["samples"])


def _without(values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(value: Any) -> float | None:
    return value if _is_number(value) else None
