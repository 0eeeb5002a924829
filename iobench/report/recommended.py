"""A recommendation as a section of the page: what to use, why, what else there is, and the code."""

from __future__ import annotations

from dataclasses import dataclass

from iobench.recommendation.result import Candidate, Raced, Recommendation
from iobench.report import charts, plots
from iobench.report.figure import Figure
from iobench.report.rows import FASTEST, RIVAL, SLOWER, Row


@dataclass(frozen=True)
class Advised:
    """One recommendation with its table and its charts."""

    found: Recommendation
    titles: list[str]
    rows: list[list[str]]
    figures: list[Figure]


def section(found: Recommendation, number: int) -> Advised:
    """The section of a recommendation, whose charts have names of their own by its number."""
    titles = [title for title, _ in found.columns]
    rows = [[cell or "" for cell in cells] for cells in zip(*(c for _, c in found.columns), strict=True)]
    return Advised(found, titles, rows, figures(found, f"recommended-{number}-"))


def figures(found: Recommendation, prefix: str = "") -> list[Figure]:
    """The finalists' speeds, and formats by size and speed where there are several."""
    speeds = [_row(one, place) for place, one in enumerate(found.candidates)]
    notes = {one.key: ", ".join(one.roles) for one in found.candidates}
    says = "Medians of fresh rounds with 95 % intervals, and the lowest limit on the way of each."
    drawn = [
        Figure(f"{prefix}speed", "How fast the finalists are", says, speeds, charts.speeds(speeds, [], notes))
    ]
    if len(found.raced) > 1:
        says = (
            "Each format by its fastest case in the race, which had few rounds. The line joins those that no "
            "other beats in both: they are the choices that there are."
        )
        sizes = [_size(one) for one in found.raced]
        drawn.append(Figure(f"{prefix}size", "Bytes on disk and speed", says, sizes, plots.sizes(sizes)))
    return drawn


def _row(one: Candidate, place: int) -> Row:
    rate, ends = one.samples_per_s, [one.samples_per_s.low, one.samples_per_s.high]
    low, high = (None if end is None else one.bytes_per_s * end / rate.median for end in ends)
    return {
        "key": one.key,
        "case": one.label,
        "bytes_per_s": one.bytes_per_s,
        "bytes_per_s low": low,
        "bytes_per_s high": high,
        "limit": one.limit,
        "limit_bytes_per_s": one.limit_bytes_per_s,
        "rounds": one.rounds,
        "standing": RIVAL if one.tied else SLOWER if place else FASTEST,
    }


def _size(one: Raced) -> Row:
    return {
        "format": one.format,
        "stored_bytes": one.stored_bytes,
        "bytes_per_s": one.bytes_per_s,
        "case": one.label,
        "frontier": "yes" if one.pareto else "no",
    }
