"""Figures of results: of a run, a recommendation and watched loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import singledispatch

from iobench.advise.checks.loop_stats import LoopStats
from iobench.advise.checks.watched_loader import WatchedLoader
from iobench.advise.recommendation import Finalist, RacedFormat, Recommendation
from iobench.bench.outcome import Run
from iobench.report import charts, figures, plots
from iobench.report.figure import Figure
from iobench.report.rows import FASTEST, RIVAL, SLOWER, Row
from iobench.results.display import Displayed

MAX_CONTEXTS = 6  # of a run, with a chart


@singledispatch
def figures_of(result: Displayed) -> list[Figure]:
    """Return the charts of a result, the most important first."""
    return []


@figures_of.register
def _of_run(run: Run) -> list[Figure]:
    contexts = run.summary.contexts[:MAX_CONTEXTS] if run.summary else []
    speeds = [figures.of_context(one, number, whole=False)[0] for number, one in enumerate(contexts, 1)]
    return [replace(one, title=at.title or one.title) for one, at in zip(speeds, contexts, strict=True)]


@figures_of.register
def _of_recommendation(recommendation: Recommendation) -> list[Figure]:
    return finalists_and_formats(recommendation)


@figures_of.register
def _of_loops(watched: WatchedLoader) -> list[Figure]:  # type: ignore[type-arg]
    times = _times(watched.loops)
    caption = "Time of each loop after its first batch: waiting for batches, and everything else."
    return [Figure("watch", "Time of each loop", caption, times, charts.stages(times))] if times else []


def finalists_and_formats(recommendation: Recommendation, prefix: str = "") -> list[Figure]:
    """Return the finalists' speeds, and formats by size and speed where there are several."""
    speeds = [_row(one, place) for place, one in enumerate(recommendation.finalists)]
    notes = {one.key: ", ".join(one.roles) for one in recommendation.finalists}
    rounds = "the final rounds" if recommendation.confirmed else "the race"
    title, caption = "Speed of the finalists", f"Medians of {rounds} with 95 % intervals, "
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


def _times(loops: Sequence[LoopStats]) -> list[Row]:
    """Return the parts of each loop's time after its first batch."""
    return [
        {
            "key": f"{number:06}",
            "case": f"loop {number}",
            "stage": stage,
            "share": seconds / (loop.wait_s + loop.step_s),
            "seconds": seconds,
            "place": place,
        }
        for number, loop in enumerate(loops, 1)
        for place, (stage, seconds) in enumerate({"wait": loop.wait_s, "compute": loop.step_s}.items())
        if seconds
    ]
