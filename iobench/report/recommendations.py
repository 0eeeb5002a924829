"""Section of a recommendation: what to use, why, the alternatives, and the code."""

from __future__ import annotations

from dataclasses import dataclass

from iobench.recommendation.result import Finalist, RacedFormat, Recommendation
from iobench.report import charts, plots
from iobench.report.figure import Figure
from iobench.report.rows import FASTEST, RIVAL, SLOWER, Row


@dataclass(frozen=True)
class RecommendationSection:
    """One recommendation with its table and its charts."""

    recommendation: Recommendation
    titles: list[str]
    rows: list[list[str]]
    figures: list[Figure]


def section(recommendation: Recommendation, number: int) -> RecommendationSection:
    """Return the section of a recommendation; its number makes the names of its charts unique."""
    titles, columns = zip(*recommendation.columns, strict=True)
    rows = [[cell or "" for cell in cells] for cells in zip(*columns, strict=True)]
    charts = figures(recommendation, f"recommended-{number}-")
    return RecommendationSection(recommendation, list(titles), rows, charts)


def figures(recommendation: Recommendation, prefix: str = "") -> list[Figure]:
    """Return the finalists' speeds, and formats by size and speed where there are several."""
    speeds = [_row(one, place) for place, one in enumerate(recommendation.finalists)]
    notes = {one.key: ", ".join(one.roles) for one in recommendation.finalists}
    title, caption = "Speed of the finalists", "Medians of the final rounds with 95 % intervals, "
    if any(one.trained_per_s for one in recommendation.finalists):
        title, caption = f"{title} with the training step", f"{caption}with the training step."
    else:
        caption += "and the lowest limit of each."
    if any(one.tied for one in recommendation.finalists):
        caption += (
            " Significance is judged by the ratio round by round, corrected for all comparisons: intervals "
            "of medians may not overlap although there is no significant difference."
        )
    result = [Figure(f"{prefix}speed", title, caption, speeds, charts.speeds(speeds, [], notes))]
    if len(recommendation.raced) > 1:
        caption = (
            "Each format by its fastest case in the race, which had few rounds. The line joins the "
            "Pareto-optimal formats."
        )
        sizes = [_size(one) for one in recommendation.raced]
        result.append(Figure(f"{prefix}size", "Stored size and speed", caption, sizes, plots.sizes(sizes)))
    return result


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
        "stored_bytes": one.disk_bytes,
        "bytes_per_s": one.bytes_per_s,
        "case": one.label,
        "frontier": "yes" if one.pareto else "no",
    }
