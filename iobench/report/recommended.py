"""A recommendation as a section of the page: what to use, why, what else there is, and the code."""

from __future__ import annotations

from dataclasses import dataclass

from iobench.recommendation.result import Finalist, RacedFormat, Recommendation
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
    title, says = "How fast the finalists are", "Medians of fresh rounds with 95 % intervals, "
    if any(one.trained_per_s for one in found.candidates):
        title, says = f"{title} with the training step", f"{says}with the training step."
    else:
        says += "and the lowest limit on the way of each."
    if any(one.tied for one in found.candidates):
        says += (
            " Who is told apart from the fastest is judged by their ratio round by round, all comparisons "
            "together: intervals of medians may lie apart where some rounds went the other way."
        )
    drawn = [Figure(f"{prefix}speed", title, says, speeds, charts.speeds(speeds, [], notes))]
    if len(found.raced) > 1:
        says = (
            "Each format by its fastest case in the race, which had few rounds. The line joins those that no "
            "other beats in both: they are the choices that there are."
        )
        sizes = [_size(one) for one in found.raced]
        drawn.append(Figure(f"{prefix}size", "Bytes on disk and speed", says, sizes, plots.sizes(sizes)))
    return drawn


def _row(one: Finalist, place: int) -> Row:
    rate, sample_bytes = one.decisive_per_s, one.bytes_per_s / one.samples_per_s.median
    low, high = (None if end is None else end * sample_bytes for end in (rate.low, rate.high))
    trained = one.trained_per_s is not None
    return {
        "key": one.key,
        "case": one.label,
        "bytes_per_s": rate.median * sample_bytes,
        "bytes_per_s low": low,
        "bytes_per_s high": high,
        "limit": None if trained else one.limit,
        "limit_bytes_per_s": None if trained else one.limit_bytes_per_s,
        "rounds": one.decisive_rounds,
        "standing": RIVAL if one.tied else SLOWER if place else FASTEST,
    }


def _size(one: RacedFormat) -> Row:
    return {
        "format": one.format,
        "stored_bytes": one.stored_bytes,
        "bytes_per_s": one.bytes_per_s,
        "case": one.label,
        "frontier": "yes" if one.pareto else "no",
    }
