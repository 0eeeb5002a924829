"""A context → rows of plain values, one list for each chart and its table; cases by key, labels beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from iobench.loading.stages import STAGES
from iobench.results.cases import facets_of, key_of
from iobench.results.stats import Estimate
from iobench.results.summary import CaseSummary, Context
from iobench.results.trend import Trend

Row = dict[str, Any]

FASTEST, RIVAL, SLOWER = "fastest", "not told apart from it", "slower"


def standing(context: Context, key: str) -> str:
    """Whether a case is the fastest of its context, or can be told from it."""
    if key == context.verdict.fastest:
        return FASTEST
    return RIVAL if key in context.verdict.rivals else SLOWER


def named(case: CaseSummary) -> Row:
    """What begins every row about a case: its key, and what it is called among those of its context."""
    return {"key": case.key, "case": case.label.short}


def looked_at(context: Context, rows: Sequence[Row], small: bool = False) -> list[Row]:
    """The rows of the cases that a chart shows: of many, the fastest of each format and each loader.

    A `small` one shows of many the fastest of each format.
    """
    shown = context.shown
    if small and len(shown) < len(context.cases):
        shown = list(fastest_by_format(context.cases).values())
    keys = {case.key for case in shown}
    return [row for row in rows if row["key"] in keys]


def cases(context: Context) -> list[Row]:
    """Each case's speed with its interval, its limit, and how it compares with the fastest."""
    return [
        {
            **named(case),
            **_with_ends("bytes_per_s", case.bytes_per_s),
            **_with_ends("samples_per_s", case.samples_per_s),
            **_with_ends("times as long", case.relative),
            "limit": case.limit,
            "limit_bytes_per_s": case.value("limit_bytes_per_s"),
            "reached": case.limit_share,
            "rounds": case.rounds,
            "standing": standing(context, case.key),
        }
        for case in context.cases
    ]


def rounds(context: Context) -> list[Row]:
    """Every round, and how it compares with its case's median."""
    by_key = {case.key: case for case in context.cases}
    rows = []
    for record, case in ((record, by_key[key_of(facets_of(record))]) for record in context.records):
        rows.append(
            {
                **named(case),
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
    """Each stage of each profiled case as a part of its epochs; opening, once a training, is none."""
    rows = []
    for case in context.cases:
        spent = {stage: (case.stages or {}).get(stage, 0.0) for stage in STAGES if stage != "open"}
        whole = sum(spent.values())
        for place, (stage, seconds) in enumerate(spent.items()):
            if seconds:
                rows.append(
                    {
                        **named(case),
                        "stage": stage.replace("_", " "),
                        "share": seconds / whole,
                        "seconds": seconds,
                        "place": place,
                    }
                )
    return rows


WAITS = {
    "wait_p50_s": "half of the waits",
    "wait_p99_s": "99 % of the waits",
    "first_batch_s": "first batch",
    "open_s": "opening",
}


def waits(context: Context) -> list[Row]:
    """What a training waits for: opening, the first batch, and what waits for later ones do not exceed."""
    return [
        {**named(case), "what": what, "seconds": seconds}
        for case in context.cases
        for metric, what in WAITS.items()
        if (seconds := case.value(metric))
    ]


def of(context: Context, *metrics: str) -> list[Row]:
    """These metrics of each case that has any of them."""
    return [
        {**named(case), **{metric: case.value(metric) for metric in metrics}}
        for case in context.cases
        if any(case.value(metric) is not None for metric in metrics)
    ]


RANKS = ("rank_bytes_per_s", "rank_min_bytes_per_s", "rank_max_bytes_per_s", "rank_skew", "rank_wait_share")


def ranks(context: Context) -> list[Row]:
    """What single ranks of each case did that has several, and which is surely the slowest."""
    found = {case.key: case.slowest for case in context.cases if case.slowest}
    return [
        {**row, "slowest": one.named}
        for row in of(context, *RANKS)
        if (one := found.get(row["key"])) is not None
    ]


def sizes(context: Context) -> list[Row]:
    """Each format's stored size and the speed of its fastest case, and whether none beats it in both.

    (Which is to be on Pareto's frontier.)
    """
    stored = {record.case["format"]: record.dataset.stored_bytes for record in context.records}
    found: list[Row] = [
        {
            "format": name,
            "stored_bytes": stored[name],
            "bytes_per_s": case.bytes_per_s.median,
            "case": case.label.short,
        }
        for name, case in fastest_by_format(context.cases).items()
        if stored[name]
    ]
    return [
        {**row, "frontier": "no" if any(_beats(other, row) for other in found) else "yes"} for row in found
    ]


def _beats(one: Row, other: Row) -> bool:
    """Whether a format is as small and as fast as another, and better in one of the two."""
    ours, theirs = ((-row["stored_bytes"], row["bytes_per_s"]) for row in (one, other))
    return ours != theirs and all(own >= their for own, their in zip(ours, theirs, strict=True))


def fastest_by_format(cases: Sequence[CaseSummary]) -> dict[str, CaseSummary]:
    """By format, the first of its cases: the fastest, as those of a context are."""
    best: dict[str, CaseSummary] = {}
    for case in cases:
        best.setdefault(case.facets["format"], case)
    return best


def over_runs(trends: Sequence[Trend]) -> list[Row]:
    """Each case's speed in each run that measured it, in the order of the runs."""
    return [
        {
            "key": trend.key,
            "case": trend.case,
            "when": point.time,
            "run": point.run,
            **_with_ends("bytes_per_s", point.bytes_per_s),
            "limit_bytes_per_s": point.limit_bytes_per_s,
            "other work": "yes" if point.busy else "no",
        }
        for trend in trends
        for point in trend.points
    ]


def _with_ends(name: str, estimate: Estimate) -> Row:
    return {name: estimate.median, f"{name} low": estimate.low, f"{name} high": estimate.high}
