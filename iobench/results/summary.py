"""Records → one summary per case, a verdict over the cases of each context, and warnings."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from iobench.results import cases, limits, mixed, stats
from iobench.results.cases import Label
from iobench.results.metrics import METRICS
from iobench.results.ranks import Slowest, slowest
from iobench.results.record import Record
from iobench.results.stats import Estimate, Verdict
from iobench.results.unproved import unproved
from iobench.results.warnings import RunWarning, warnings_of


@dataclass(frozen=True)
class CaseSummary:
    """Every metric of a case over its rounds.

    `relative` is how many times as long the case takes as the fastest of its context, with its 95 %
    interval; `limit` names the lowest limit on its way; `stages` are median seconds of each.
    """

    key: str
    label: Label
    facets: dict[str, Any]
    rounds: int
    metrics: dict[str, Estimate]
    relative: Estimate
    limit: str | None = None
    stages: dict[str, float] | None = None
    beside_s: float | None = None  # that threads read beside the consumer
    not_proved: str | None = None  # why nobody can say that all of the dataset came
    slowest: Slowest | None = None  # of several ranks

    @property
    def named(self) -> str:
        """What it is called where only formats and loaders differ, and that it is not proved if it is not."""
        return self.label.short + (" (not proved)" if self.not_proved else "")

    def value(self, metric: str) -> float | None:
        """A metric's figure; None where no record has it."""
        found = self.metrics.get(metric)
        return None if found is None else found.median

    @property
    def samples_per_s(self) -> Estimate:
        """Samples per second with the interval."""
        return self.metrics["samples_per_s"]

    @property
    def bytes_per_s(self) -> Estimate:
        """Logical bytes per second with the interval."""
        return self.metrics["bytes_per_s"]

    @property
    def limit_share(self) -> float | None:
        """The rate as a fraction of the lowest limit on its way; None where none was measured."""
        limit = self.value("limit_bytes_per_s")
        return None if limit is None else self.bytes_per_s.median / limit

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "label": str(self.label), "limit_share": self.limit_share}


MOST_SHOWN = 24  # cases of a context that are shown in one list: more are folded


@dataclass(frozen=True)
class Context:
    """Cases that differ in format, loader and its options alone, fastest first, and which of them wins.

    `title` is what sets the context apart from the others; empty if it is the only one.
    """

    title: str
    cases: list[CaseSummary]
    verdict: Verdict
    records: list[Record] = field(repr=False)

    @property
    def shown(self) -> list[CaseSummary]:
        """The cases to look at first: all, or, of many, the fastest of each format and each loader."""
        if len(self.cases) <= MOST_SHOWN:
            return self.cases
        first: dict[tuple[str, str], str] = {}
        for case in self.cases:
            for facet in ("format", "loader"):
                first.setdefault((facet, str(case.facets[facet])), case.key)
        return [case for case in self.cases if case.key in first.values()]

    def as_dict(self) -> dict[str, Any]:
        """For JSON: everything but the records."""
        shown = [case.as_dict() for case in self.cases]
        return {"title": self.title, "cases": shown, "verdict": asdict(self.verdict)}

    def label(self, key: str) -> str:
        """What a case is called among those of its context, and whether it is not proved."""
        return next(case.named for case in self.cases if case.key == key)


@dataclass(frozen=True)
class Summary:
    """All cases, context by context, the one with the most cases first, and what to be warned of."""

    contexts: list[Context]
    warnings: list[RunWarning]

    @property
    def cases(self) -> list[CaseSummary]:
        """The cases of all contexts."""
        return [case for context in self.contexts for case in context.cases]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        warned = [{**asdict(warning), "sentence": warning.sentence} for warning in self.warnings]
        return {"contexts": [context.as_dict() for context in self.contexts], "warnings": warned}


def summarise(records: Sequence[Record], smallest: float = stats.WORTH_NAMING) -> Summary:
    """Each case's metrics, which case of each context is fastest, and what speaks against all that.

    Differences below `smallest` (a fraction) are not called any.
    """
    older, records = mixed.mixed_limits(records), limits.shared(records)
    groups = cases.by_context(records)
    facets = [cases.facets_of(group[0]) for group in groups]
    labels = cases.labels_of(records)
    contexts = [
        _context(group, cases.context_title(own, facets), labels, smallest)
        for group, own in zip(groups, facets, strict=True)
    ]
    return Summary(
        sorted(contexts, key=lambda one: -len(one.cases)), [*warnings_of(records), *older, *unproved(records)]
    )


def rates(by_case: Mapping[str, Sequence[Record]]) -> dict[str, dict[tuple[str, int], float]]:
    """Samples/s of each case by run and round, which is what cases that took turns are paired by."""
    return {key: {(r.run, r.round): r.samples_per_s for r in rounds} for key, rounds in by_case.items()}


def _context(records: list[Record], title: str, labels: Mapping[str, Label], smallest: float) -> Context:
    by_case = cases.by_case(records)
    verdict = stats.verdict(rates(by_case), smallest)
    summaries = [_case(key, rounds, labels[key], verdict) for key, rounds in by_case.items()]
    ordered = sorted(summaries, key=lambda case: case.samples_per_s.median, reverse=True)
    return Context(title, ordered, verdict, records)


def _case(key: str, rounds: Sequence[Record], label: Label, verdict: Verdict) -> CaseSummary:
    found = {metric.name: metric.summarise(rounds) for metric in METRICS}
    limit = max((r.limit for r in rounds if r.limit), key=lambda one: one.bytes_per_s, default=None)
    profiled = [r.timing for r in rounds if r.timing.stages]
    names = list(profiled[0].stages or {}) if profiled else []
    against = verdict.against.get(key)
    return CaseSummary(
        key=key,
        label=label,
        facets=cases.facets_of(rounds[0]),
        rounds=len(rounds),
        metrics={name: value for name, value in found.items() if value is not None},
        relative=against.ratio if against else Estimate(1.0, None, None),
        limit=limit.name if limit else None,
        stages={
            name: statistics.median((timing.stages or {}).get(name, 0.0) for timing in profiled)
            for name in names
        }
        or None,
        not_proved=next((r.not_proved for r in rounds if r.not_proved), None),
        slowest=slowest(rounds),
        beside_s=statistics.median(timing.beside_s or 0.0 for timing in profiled) if profiled else None,
    )
