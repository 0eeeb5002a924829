"""Cases → the columns of a table, as text, which terminals and notebooks show alike."""

from __future__ import annotations

from collections.abc import Sequence

from iobench.base.units import MIB, percent_text, three_digits
from iobench.results.cases import FACETS, Facets, trains, varying
from iobench.results.metrics import METRICS, Metric
from iobench.results.stats import Estimate
from iobench.results.summary import CaseSummary

Columns = list[tuple[str, list[str | None]]]  # titles, each with a cell for every case


def heads(cases: Sequence[CaseSummary]) -> Columns:
    """What the cases are: format, loader, and each facet that differs among them."""
    facets: list[Facets] = [case.facets for case in cases]
    found: Columns = [("format", [case.label.format for case in cases])]
    found += [("loader", [case.label.loader for case in cases])]
    return found + [(_title(name), [_facet(case, name) for case in cases]) for name in varying(facets)]


def figures(cases: Sequence[CaseSummary], wide: bool = False) -> Columns:
    """The metrics that are shown, or with `wide` all, where any case has them."""
    found: Columns = []
    for metric in METRICS:
        if wide or metric.main or metric.name in _where_it_matters(cases):
            found += _metric_columns(metric, cases, wide)
        if metric.name == "bytes_per_s":
            found.append(("times as long (95 %)", [_relative(case.relative) for case in cases]))
        if metric.name == "limit_bytes_per_s":
            found.append(("limit", [case.limit for case in cases]))
            found.append(("reached", [_share(case.limit_share) for case in cases]))
        if metric.name == "rank_max_bytes_per_s" and not wide:
            found.append(("a rank's MiB/s", [_each_rank(case) for case in cases]))
        if metric.name == "rank_wait_share":
            found.append(("slowest", [case.slowest.named if case.slowest else None for case in cases]))
    if any(case.not_proved for case in cases):
        found.append(("proved", ["no" if case.not_proved else "yes" for case in cases]))
    return [(title, cells) for title, cells in found if any(cell is not None for cell in cells)]


def _where_it_matters(cases: Sequence[CaseSummary]) -> tuple[str, ...]:
    """Metrics that belong into every table of cases like these."""
    steps = any(trains(case.facets) for case in cases)
    trained = ["wait_share", "headroom", "loss"] if steps else []
    shuffled = ["shuffledness"] if any(case.value("shuffledness") for case in cases) else []
    ranked = ["rank_wait_share"] if any(case.slowest for case in cases) else []
    return (*trained, *shuffled, *ranked)


def _metric_columns(metric: Metric, cases: Sequence[CaseSummary], wide: bool) -> Columns:
    values = [case.metrics.get(metric.name) for case in cases]
    columns: Columns = [
        (metric.title, [None if value is None else metric.text(value.median) for value in values])
    ]
    if metric.interval is not None and wide:
        columns.append(("95 %", [_interval(value, metric) for value in values]))
    return columns


def _interval(estimate: Estimate | None, metric: Metric) -> str:
    if estimate is None or estimate.low is None or estimate.high is None or metric.interval is None:
        return "–"
    return f"{metric.interval(estimate.low)} – {metric.interval(estimate.high)}"


def _relative(relative: Estimate) -> str:
    if relative.low is None or relative.high is None:
        return f"{relative.median:.2f}"
    return f"{relative.median:.2f} ({relative.low:.2f} – {relative.high:.2f})"


def _each_rank(case: CaseSummary) -> str | None:
    """MiB/s of the median rank, and of the slowest and the fastest."""
    found = [case.value(f"rank_{one}bytes_per_s") for one in ("", "min_", "max_")]
    known = [three_digits(value / MIB) for value in found if value is not None]
    return "{} ({} – {})".format(*known) if len(known) == len(found) else None


def _share(share: float | None) -> str | None:
    return None if share is None else percent_text(share)


def _title(name: str) -> str:
    return FACETS[name].title if name in FACETS else name


def _facet(case: CaseSummary, name: str) -> str | None:
    value = case.facets.get(name)
    if value is None:
        return None
    return FACETS[name].cell(value) if name in FACETS else str(value)
