"""Charts of a summary, of curves and of trends: the caption and the rows of each."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from iobench.base.units import heading_of
from iobench.results import cases, stats
from iobench.results.cases import FACETS
from iobench.results.columns import choices
from iobench.results.display import Chart, Row
from iobench.results.metrics import BY_NAME
from iobench.results.record import key_of
from iobench.results.scaling_curve import Curve
from iobench.results.stats import Estimate
from iobench.results.summary import CaseSummary, Context
from iobench.results.trend import Trend

_UNSAFE = re.compile(r"[^A-Za-z0-9_]+")  # names of options come from records, and become file names
MAX_LINES = 8  # with distinguishable colors
ENDS = (" low", " high")  # of an interval, behind the name of its column
TITLES = {"world_size": "ranks"}  # of facets with another title than their name
MAX_CONTEXTS = 6  # of a run, with a chart
TITLE = "Relative time of each case"
TIMES = "1 is the fastest case, 2 takes twice as long."
LEADER, DATALOADER, OTHER = "leader", "DataLoader", "other"  # what a case's color says


def of_contexts(contexts: Sequence[Context]) -> Iterator[Chart]:
    """Yield the relative time of each case of the first contexts."""
    for number, one in enumerate(contexts[:MAX_CONTEXTS], 1):
        yield replace(speeds(one, number), title=one.title or TITLE)


def overview(contexts: Sequence[Context]) -> Chart:
    """Return the relative time of each case: of several contexts the mean, lowest and highest."""
    if len(contexts) == 1:
        return speeds(contexts[0], 1)
    rows = list[Row]()
    for row in choices(contexts):
        times = [case.relative.median for case in row.values()]
        time = Estimate(statistics.geometric_mean(times), min(times), max(times))
        leads = all(case.leader for case in row.values())
        first = next(iter(row.values()))
        rows.append({"key": first.choice, "case": first.label.short, **with_ends("relative time", time)})
        rows[-1] |= {"contexts": len(row), "standing": standing(first, leads)}
    caption = f"{TIMES} Geometric means over the contexts; lines: lowest to highest. A leader leads in all."
    return Chart("speeds", "overview", TITLE, caption, rows)


def speeds(context: Context, number: int) -> Chart:
    """Return the relative time and the speed of each case of a context."""
    rows = [
        {
            **_identity(case),
            **with_ends("relative time", case.relative),
            **with_ends("bytes_per_s", case.bytes_per_s),
            **with_ends("samples_per_s", case.samples_per_s),
            "limit": case.limit,
            "limit_bytes_per_s": case.value("limit_bytes_per_s"),
            "% of limit": case.limit_share,
            "rounds": case.rounds,
            "standing": standing(case, case.leader),
        }
        for case in context.cases
    ]
    shown = {case.key for case in context.shown}
    caption = f"{TIMES} Lines: 95 % intervals, together. Leader: the fastest is one of these (95 %)."
    return Chart("speeds", f"{number}-speed", TITLE, _folded(context, caption), rows, shown)


def of_context(context: Context, number: int) -> Iterator[Chart]:
    """Yield the figures of a context's stages, sizes and rounds, as far as its records allow."""
    if times := _stages(context):
        caption = (
            "Time of the thread that consumes batches, without opening. Wait: for read-ahead threads or "
            "workers. Libraries that decode while reading (HDF5) count as read."
        )
        shown = {case.key for case in context.shown}
        caption = _folded(context, caption)
        yield Chart("stages", f"{number}-stages", "Time by stage", caption, times, shown)
    if len(sizes := _sizes(context)) > 1:
        caption = "Each format by its fastest case. The line joins the Pareto-optimal formats."
        yield Chart("sizes", f"{number}-size", "Stored size and speed", caption, sizes)
    rounds = _rounds(context)
    if len({row["round"] for row in rounds}) > 1:
        caption = "Each round over its case's median. It shows drift and slow first rounds."
        yield Chart("rounds", f"{number}-rounds", "Rounds in order", caption, rounds)


def spanning(summaries: Sequence[CaseSummary], curves: Sequence[Curve] = ()) -> Iterator[Chart]:
    """Yield the speed over every number in which cases differ with all else equal.

    `curves` are those over ranks, whose sentences join the caption.
    """
    for axis, point in axes(summaries):
        if lines := series(summaries, axis, point):
            keys = dict.fromkeys(row["key"] for row in lines)
            caption = "Cases measured at several values, with all else equal."
            if len(keys) > MAX_LINES:
                caption += f" The chart shows the {MAX_LINES} fastest, the table all {len(keys)}."
            if axis == "world_size":
                caption += "".join(f" {curve.sentence}" for curve in curves if len(curve.points) > 1)
            title, name = f"Speed by {heading(axis)}", f"by-{_UNSAFE.sub('-', axis)}"
            yield Chart("against", name, title, caption, lines, [*keys][:MAX_LINES], axis)


def over_runs(trends: Sequence[Trend]) -> Iterator[Chart]:
    """Yield the speed of cases from run to run, with the steps in it."""
    if not trends:
        return
    steps = [trend.sentence for trend in trends if trend.step is not None]
    text = "; ".join(steps) if steps else "No significant step"
    rows = [
        {
            "key": trend.key,
            "case": trend.case,
            "when": point.time,
            "run": point.run,
            **with_ends("bytes_per_s", point.bytes_per_s),
            "limit_bytes_per_s": point.limit_bytes_per_s,
            "background load": "yes" if point.busy else "no",
        }
        for trend in trends
        for point in trend.points
    ]
    drawn = {trend.key for trend in trends[:MAX_LINES]}
    caption = f"Medians with 95 % intervals. {text}."
    yield Chart("over_runs", "over-runs", "Speed over runs", caption, rows, drawn)


# of a case: its value of an axis, and its facets without that axis
Point = Callable[[CaseSummary], tuple[Any, dict[str, Any]]]


def axes(summaries: Sequence[CaseSummary]) -> Iterator[tuple[str, Point]]:
    """Yield the facets, the options of loaders, and the dataset's size: in the numbers cases may differ."""
    facets = dict.fromkeys([*FACETS, *(name for case in summaries for name in case.facets)])
    for name in facets:
        if name not in ("memory", "samples", "seed"):
            yield name, partial(_by_facet, name)
    for name in dict.fromkeys(name for case in summaries for name in case.facets.get("options") or {}):
        yield name, partial(_by_option, name)
    yield "dataset_bytes", _by_size


def _by_facet(name: str, case: CaseSummary) -> tuple[Any, dict[str, Any]]:
    return case.facets.get(name), _without(case.facets, name)


def _by_option(name: str, case: CaseSummary) -> tuple[Any, dict[str, Any]]:
    options = case.facets.get("options") or {}
    return options.get(name), {**case.facets, "options": _without(options, name)}


def _by_size(case: CaseSummary) -> tuple[Any, dict[str, Any]]:
    sample, samples = case.bytes_per_s.median / case.samples_per_s.median, case.facets["samples"]
    size = None if samples is None else float(round(sample * samples))
    return size, _without(case.facets, "dataset", "content", "samples", "fields")


def _without(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def series(summaries: Sequence[CaseSummary], axis: str, point: Point) -> list[Row]:
    """Return, as lines, cases measured at several values of one number with all else equal.

    The line with the highest speed comes first.
    """
    lines: dict[str, dict[float, CaseSummary]] = {}
    rests: dict[str, dict[str, Any]] = {}
    for case in summaries:
        value, rest = point(case)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            key = key_of(rest)
            rests[key] = rest
            lines.setdefault(key, {})[value] = case
    several = {key: points for key, points in lines.items() if len(points) > 1}
    highest = {key: max(case.bytes_per_s.median for case in several[key].values()) for key in several}
    labels = cases.labels({key: rests[key] for key in several})
    return [
        {"key": key, "series": str(labels[key]), axis: value, **with_ends("bytes_per_s", case.bytes_per_s)}
        for key in sorted(several, key=highest.__getitem__, reverse=True)
        for value, case in sorted(several[key].items())
    ]


def standing(case: CaseSummary, leads: bool) -> str:
    """Return what the color of a case says: a leader, DataLoader or another one."""
    return LEADER if leads else DATALOADER if case.facets["loader"] == "dataloader" else OTHER


def _identity(case: CaseSummary) -> Row:
    return {"key": case.key, "case": case.label.short}


def _stages(context: Context) -> list[Row]:
    """Return each stage of each profiled case as a share of its epochs, without opening."""
    rows = list[Row]()
    for case in context.cases:
        times = {stage: seconds for stage, seconds in (case.stages or {}).items() if stage != "open"}
        for place, (stage, seconds) in enumerate(times.items()):
            if seconds:
                rows.append({**_identity(case), "stage": stage.replace("_", " ")})
                rows[-1] |= {"share": seconds / sum(times.values()), "seconds": seconds, "place": place}
    return rows


def _rounds(context: Context) -> list[Row]:
    by_key = {case.key: case for case in context.cases}
    return [
        {
            **_identity(by_key[record.key]),
            "round": record.round,
            "bytes_per_s": record.bytes_per_s,
            "of the median": record.samples_per_s / by_key[record.key].samples_per_s.median,
            "epoch_s": record.epoch_s,
            "epochs": record.timing.epochs,
            "when": record.time,
        }
        for record in context.records
    ]


def _sizes(context: Context) -> list[Row]:
    """Return each format's stored size, the speed of its fastest case, and if it is Pareto-optimal."""
    stored = {record.case["format"]: record.dataset.stored_bytes for record in context.records}
    best: dict[str, CaseSummary] = {}
    for case in context.cases:
        best.setdefault(case.facets["format"], case)
    rows: list[Row] = [
        {
            "format": name,
            "stored_bytes": stored[name],
            "bytes_per_s": case.bytes_per_s.median,
            "case": case.label.short,
        }
        for name, case in best.items()
        if stored[name]
    ]
    merits = [(-row["stored_bytes"], row["bytes_per_s"]) for row in rows]
    return [
        {**row, "frontier": "no" if any(stats.dominates(other, own) for other in merits) else "yes"}
        for row, own in zip(rows, merits, strict=True)
    ]


def _folded(context: Context, caption: str) -> str:
    """Return the caption, with a note where the chart shows only some of the cases."""
    if len(context.shown) == len(context.cases):
        return caption
    which = "the fastest of each format and each loader"
    return f"{caption} Of {len(context.cases)} cases the chart shows {which}, the table all."


def with_ends(name: str, estimate: Estimate) -> Row:
    """Return an estimate and the ends of its interval as columns."""
    return {name: estimate.median, f"{name} low": estimate.low, f"{name} high": estimate.high}


def heading(column: str) -> str:
    """Return a column's heading: the metric's title where it holds a metric."""
    base, end = base_of(column)
    if base in BY_NAME:
        return f"{BY_NAME[base].title}{end}"
    if base in TITLES:
        return TITLES[base]
    return f"{heading_of(base)}{end}"


def base_of(column: str) -> tuple[str, str]:
    """Split a column's name into its base and the end of the interval, if it has one."""
    end = next((end for end in ENDS if column.endswith(end)), "")
    return column.removesuffix(end), end
