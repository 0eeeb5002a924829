"""Rows of plain values for each chart and its table; cases by key, with their labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from iobench.loading.stages import STAGES
from iobench.results import stats
from iobench.results.stats import Estimate
from iobench.results.summary import CaseSummary, Context
from iobench.results.trend import Trend

Row = dict[str, Any]

FASTEST, RIVAL, SLOWER = "fastest", "no significant difference", "slower"


def standing(context: Context, key: str) -> str:
    """Return whether a case is the fastest of its context, a rival, or significantly slower."""
    if key == context.verdict.fastest:
        return FASTEST
    return RIVAL if key in context.verdict.rivals else SLOWER


def identity(case: CaseSummary) -> Row:
    """Return the first columns of every row about a case: its key, and its name within its context."""
    return {"key": case.key, "case": case.label.short}


def shown_rows(context: Context, rows: Sequence[Row], small: bool = False) -> list[Row]:
    """Return the rows of the cases that a chart shows.

    Of many cases these are the fastest of each format and each loader; in a `small` chart, of each format.
    """
    shown = context.shown
    if small and len(shown) < len(context.cases):
        shown = list(fastest_by_format(context.cases).values())
    keys = {case.key for case in shown}
    return [row for row in rows if row["key"] in keys]


def cases(context: Context) -> list[Row]:
    """Return each case's speed with its interval, its limit and its relative time."""
    return [
        {
            **identity(case),
            **_with_ends("bytes_per_s", case.bytes_per_s),
            **_with_ends("samples_per_s", case.samples_per_s),
            **_with_ends("relative time", case.relative),
            "limit": case.limit,
            "limit_bytes_per_s": case.value("limit_bytes_per_s"),
            "% of limit": case.limit_share,
            "rounds": case.rounds,
            "standing": standing(context, case.key),
        }
        for case in context.cases
    ]


def rounds(context: Context) -> list[Row]:
    """Return every round, with its speed over its case's median."""
    by_key = {case.key: case for case in context.cases}
    rows = []
    for record, case in ((record, by_key[record.key]) for record in context.records):
        rows.append(
            {
                **identity(case),
                "round": record.round,
                "bytes_per_s": record.bytes_per_s,
                "of the median": record.bytes_per_s / case.bytes_per_s.median,
                "epoch_s": record.epoch_s,
                "epochs": record.timing.epochs,
                "when": record.time,
            }
        )
    return rows


def stages(context: Context) -> list[Row]:
    """Return each stage of each profiled case as a share of its epochs, without opening."""
    rows = []
    for case in context.cases:
        times = {stage: (case.stages or {}).get(stage, 0.0) for stage in STAGES if stage != "open"}
        whole = sum(times.values())
        for place, (stage, seconds) in enumerate(times.items()):
            if seconds:
                rows.append(
                    {
                        **identity(case),
                        "stage": stage.replace("_", " "),
                        "share": seconds / whole,
                        "seconds": seconds,
                        "place": place,
                    }
                )
    return rows


WAITS = {
    "wait_p50_s": "median wait",
    "wait_p99_s": "99th percentile wait",
    "first_batch_s": "first batch",
    "open_s": "opening",
}


def waits(context: Context) -> list[Row]:
    """Return the waits of a training: opening, the first batch, and quantiles of the later ones."""
    return [
        {**identity(case), "what": what, "seconds": seconds}
        for case in context.cases
        for metric, what in WAITS.items()
        if (seconds := case.value(metric))
    ]


def of(context: Context, *metrics: str) -> list[Row]:
    """Return these metrics of each case that has any of them."""
    return [
        {**identity(case), **{metric: case.value(metric) for metric in metrics}}
        for case in context.cases
        if any(case.value(metric) is not None for metric in metrics)
    ]


RANKS = (
    "rank_bytes_per_s",
    "rank_min_bytes_per_s",
    "rank_max_bytes_per_s",
    "rank_imbalance",
    "straggler_wait_share",
)


def ranks(context: Context) -> list[Row]:
    """Return the metrics of ranks of each case with several, and its slowest rank."""
    slowest = {case.key: case.slowest for case in context.cases if case.slowest}
    return [
        {**row, "slowest": one.name}
        for row in of(context, *RANKS)
        if (one := slowest.get(row["key"])) is not None
    ]


def sizes(context: Context) -> list[Row]:
    """Return each format's stored size, the speed of its fastest case, and if it is Pareto-optimal."""
    stored = {record.case["format"]: record.dataset.stored_bytes for record in context.records}
    rows: list[Row] = [
        {
            "format": name,
            "stored_bytes": stored[name],
            "bytes_per_s": case.bytes_per_s.median,
            "case": case.label.short,
        }
        for name, case in fastest_by_format(context.cases).items()
        if stored[name]
    ]
    merits = [(-row["stored_bytes"], row["bytes_per_s"]) for row in rows]
    return [
        {**row, "frontier": "no" if any(stats.dominates(other, own) for other in merits) else "yes"}
        for row, own in zip(rows, merits, strict=True)
    ]


def fastest_by_format(cases: Sequence[CaseSummary]) -> dict[str, CaseSummary]:
    """Return the fastest case of each format; the cases of a context are in order of speed."""
    best: dict[str, CaseSummary] = {}
    for case in cases:
        best.setdefault(case.facets["format"], case)
    return best


def over_runs(trends: Sequence[Trend]) -> list[Row]:
    """Return each case's speed in each run that measured it, in the order of the runs."""
    return [
        {
            "key": trend.key,
            "case": trend.case,
            "when": point.time,
            "run": point.run,
            **_with_ends("bytes_per_s", point.bytes_per_s),
            "limit_bytes_per_s": point.limit_bytes_per_s,
            "background load": "yes" if point.busy else "no",
        }
        for trend in trends
        for point in trend.points
    ]


def _with_ends(name: str, estimate: Estimate) -> Row:
    return {name: estimate.median, f"{name} low": estimate.low, f"{name} high": estimate.high}
