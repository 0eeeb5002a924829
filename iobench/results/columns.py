"""Columns of a table of cases, as text, for terminals and notebooks."""

from __future__ import annotations

from collections.abc import Sequence

from iobench.base.units import percent_text, rate_text
from iobench.results.case_key import Facets
from iobench.results.cases import FACETS, trains, varying
from iobench.results.metrics import METRICS, Metric, epoch_share_text, mib_text
from iobench.results.summary import CaseSummary

Columns = list[tuple[str, list[str | None]]]  # titles, each with one cell per case

HEAD = "head of the epoch"


def identity_columns(cases: Sequence[CaseSummary]) -> Columns:
    """Return the columns that identify the cases: format, loader, and each facet that differs."""
    facets: list[Facets] = [case.facets for case in cases]
    columns: Columns = [("format", [case.label.format for case in cases])]
    columns += [("loader", [case.label.loader for case in cases])]
    return columns + [
        (FACETS[name].title if name in FACETS else name, [_facet(case, name) for case in cases])
        for name in varying(facets)
    ]


def metric_columns(cases: Sequence[CaseSummary], wide: bool = False) -> Columns:
    """Return the columns of the main metrics, or with `wide` of all, that any case has."""
    columns: Columns = []
    for metric in METRICS:
        if wide or metric.main or metric.name in _relevant_metrics(cases):
            columns += _metric_columns(metric, cases, wide)
        if metric.name == "bytes_per_s":
            columns.append(("relative time (95 %)", [case.relative.text("{:.2f}".format) for case in cases]))
        if metric.name == "limit_bytes_per_s":
            columns.append(("limit", [case.limit for case in cases]))
            columns.append(("% of limit", [_share(case.limit_share) for case in cases]))
        if metric.name == "rank_max_bytes_per_s" and not wide:
            columns.append(("MiB/s per rank", [_rank_rates(case) for case in cases]))
        if metric.name == "straggler_wait_share":
            columns.append(("slowest", [case.slowest.name if case.slowest else None for case in cases]))
    if any(case.unverified or case.verified for case in cases):
        columns.append(("verified", [_verified(case) for case in cases]))
    return [(title, cells) for title, cells in columns if any(cell is not None for cell in cells)]


def _relevant_metrics(cases: Sequence[CaseSummary]) -> tuple[str, ...]:
    """Return the names of the metrics, beyond the main ones, that matter for these cases."""
    steps = any(trains(case.facets) for case in cases)
    trained = ["wait_share", "headroom", "loss"] if steps else []
    ranked = ["straggler_wait_share"] if any(case.slowest for case in cases) else []
    return (*trained, *ranked)


def _metric_columns(metric: Metric, cases: Sequence[CaseSummary], wide: bool) -> Columns:
    values = [case.metrics.get(metric.name) for case in cases]
    texts = [None if value is None else metric.text(value.median) for value in values]
    if metric.name == "epoch_share":
        texts = [text and _part(text, case) for case, text in zip(cases, texts, strict=True)]
    columns: Columns = [(metric.title, texts)]
    if metric.interval and wide and any(values):
        columns.append(
            ("95 %", ["–" if value is None else value.interval_text(metric.text) for value in values])
        )
    return columns


def _part(text: str, case: CaseSummary) -> str:
    """Return the share of an epoch in a round, and where it begins or what all rounds cover together."""
    if case.head or case.covered is None or case.rounds == 1:
        return f"{text}, {HEAD}" if case.head else text
    return f"{text}, in all rounds {epoch_share_text(case.covered)}"


def _verified(case: CaseSummary) -> str:
    """Return whether the content was verified, or the samples of the part that was."""
    if case.unverified or case.verified is None:
        return "no" if case.unverified else "yes"
    return "{} of {}".format(*(rate_text(one) if one >= 1000 else str(one) for one in case.verified))


def _rank_rates(case: CaseSummary) -> str | None:
    """Return MiB/s of the median rank, and of the slowest and the fastest."""
    rates = [case.value(f"rank_{which}bytes_per_s") for which in ("", "min_", "max_")]
    known = [mib_text(rate) for rate in rates if rate is not None]
    return "{} ({} – {})".format(*known) if len(known) == len(rates) else None


def _share(share: float | None) -> str | None:
    return None if share is None else percent_text(share)


def _facet(case: CaseSummary, name: str) -> str | None:
    value = case.facets.get(name)
    if value is None:
        return None
    return FACETS[name].cell(value) if name in FACETS else str(value)
