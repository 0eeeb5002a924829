"""Summaries of records: one per case, a verdict per context, and warnings."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from iobench.base.finding import Finding
from iobench.results import cases, stats
from iobench.results.cases import LABEL_FACETS, Groups, Label
from iobench.results.metrics import METRICS, SlowestRank, slowest_rank
from iobench.results.parts import DECODING
from iobench.results.record import Record, key_of
from iobench.results.run_warning import RunWarning
from iobench.results.stats import Estimate, Verdict, median_rates, verdict_on
from iobench.results.warnings import case_warnings, read_on_open

NEAR_LIMIT = 0.7  # of the limit, from which on it is what takes the time
_LIMITED_BY = {"page cache": "copies", "gather": "copies", "memory": "copies", DECODING: "decode"}
_SPENT_IN = {"read": "reads", "decode": "decode", "collate": "copies", "host_to_device": "copies"}
_SPENT_IN |= {"wait": "read-ahead", "compute": "training step"}


@dataclass(frozen=True)
class CaseSummary:
    """Metrics of a case over its rounds.

    `relative` is the relative time: that of the case over that of the fastest case of its context, with its
    95 % interval. The fastest is a `leader` with 95 % confidence; each other case is slower than it by the
    factor `at_least`. A cold case of which opening read the data is no `candidate` of the verdict. `limit`
    names the lowest limit on its path; `stages` are the median seconds of each stage.
    """

    key: str
    label: Label
    facets: dict[str, Any]
    rounds: int
    metrics: dict[str, Estimate]
    relative: Estimate
    limit: str | None = None
    stages: dict[str, float] | None = None
    reader_threads_s: float | None = None  # seconds that threads other than the consumer spent reading
    unverified: list[Finding] = field(default_factory=list)  # why its content could not be verified
    verified: tuple[int, int] | None = None  # samples that were verified, of how many; None for all
    slowest: SlowestRank | None = None  # of several ranks
    head: bool = False  # its rounds are parts that begin where an epoch does
    covered: float | None = None  # share of an epoch in all rounds together, where they are parts of one
    candidate: bool = True  # False: not cold, because opening read its data before the clock started
    leader: bool = False
    at_least: float | None = None

    @cached_property
    def choice(self) -> str:
        """Key of format, loader and its options, the same in every context."""
        return key_of({name: self.facets.get(name) for name in LABEL_FACETS})

    @property
    def name(self) -> str:
        """Format and loader, marked where the content was not verified."""
        return self.label.short + (" (not verified)" if self.unverified else "")

    def relative_text(self, text: Callable[[Estimate], str]) -> str:
        """Return the relative time in words; *not cold* for a case that is no candidate."""
        return text(self.relative) if self.candidate else "not cold"

    def value(self, metric: str) -> float | None:
        """Return a metric's median; None where some round lacks it."""
        estimate = self.metrics.get(metric)
        return None if estimate is None else estimate.median

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
        """The rate as a fraction of the lowest limit on its path; None where none was measured."""
        limit = self.value("limit_bytes_per_s")
        return None if limit is None else self.bytes_per_s.median / limit

    @property
    def reason(self) -> str:
        """The cause of its time in a word: a limit that it nearly reaches, or a profile's largest stage.

        Empty where neither tells.
        """
        if self.limit is not None and (self.limit_share or 0.0) >= NEAR_LIMIT:
            return _LIMITED_BY.get(self.limit, self.limit)
        if (self.facets.get("options") or {}).get("fetch") == "sample":
            return "per-sample Python"
        times = {name: seconds for name, seconds in (self.stages or {}).items() if name != "open"}
        return _SPENT_IN.get(max(times, key=times.__getitem__), "") if times else ""

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**asdict(self), "label": str(self.label), "limit_share": self.limit_share}


MAX_SHOWN = 24  # cases of a context in one list; of more, only the best are shown


@dataclass(frozen=True)
class Context:
    """Cases that differ only in format, loader and loader options, fastest first, and their verdict.

    `title` names the facets that distinguish the context from the others; empty if it is the only one.
    """

    title: str
    cases: list[CaseSummary]
    verdict: Verdict
    records: list[Record] = field(repr=False)

    @property
    def leaders(self) -> list[CaseSummary]:
        """The cases among which the fastest is, the highest median first."""
        return [case for case in self.cases if case.leader]

    @property
    def shown(self) -> list[CaseSummary]:
        """The cases to show first: all, or of many the fastest of each format and each loader."""
        if len(self.cases) <= MAX_SHOWN:
            return self.cases
        first: dict[tuple[str, str], str] = {}
        for case in self.cases:
            for facet in ("format", "loader"):
                first.setdefault((facet, str(case.facets[facet])), case.key)
        return [case for case in self.cases if case.key in first.values()]

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON, without the records."""
        return {"title": self.title, "cases": self.cases, "verdict": self.verdict}


@dataclass(frozen=True)
class Summary:
    """All cases by context, the context with the most cases first, and the warnings."""

    contexts: list[Context]
    warnings: list[RunWarning]

    @property
    def cases(self) -> list[CaseSummary]:
        """The cases of all contexts."""
        return [case for context in self.contexts for case in context.cases]


def summarise(records: Sequence[Record], min_difference: float = stats.MIN_DIFFERENCE) -> Summary:
    """Summarise records: the metrics of each case, a verdict per context, and warnings.

    Differences below `min_difference` (a fraction) do not count.
    """
    records = cases.with_common_limits(records)
    groups = cases.by_case(records)
    labels, split = cases.labels_of(groups), cases.by_context(groups)
    facets = [next(iter(by_case.values()))[0].facets for by_case in split]
    contexts = [
        _context(
            [record for record in records if record.key in by_case],
            by_case,
            cases.context_title(own, facets),
            labels,
            min_difference,
        )
        for by_case, own in zip(split, facets, strict=True)
    ]
    return Summary(sorted(contexts, key=lambda one: -len(one.cases)), case_warnings(groups, labels))


def rates(by_case: Mapping[str, Sequence[Record]]) -> dict[str, dict[tuple[str, int], float]]:
    """Return samples/s of each case by run and round: interleaved cases are paired by these."""
    return {key: {(r.run, r.round): r.samples_per_s for r in rounds} for key, rounds in by_case.items()}


def _context(
    records: list[Record], by_case: Groups, title: str, labels: Mapping[str, Label], min_difference: float
) -> Context:
    every = rates(by_case)
    cold = {key: rate for key, rate in every.items() if not read_on_open(by_case[key])} or every
    verdict = verdict_on(cold, min_difference)
    speeds = median_rates(every)
    relative = {verdict.fastest: Estimate(1.0), **verdict.relative}
    rest = (key for key in speeds if key not in relative)
    relative |= {key: Estimate(speeds[verdict.fastest] / speeds[key]) for key in rest}
    ordered = [
        replace(
            case_summary(key, by_case[key], labels[key], time),
            candidate=key in cold,
            leader=key in verdict.leaders,
            at_least=verdict.at_least.get(key),
        )
        for key, time in relative.items()
    ]
    return Context(title, ordered, verdict, records)


def case_summary(key: str, rounds: Sequence[Record], label: Label, relative: Estimate) -> CaseSummary:
    """Return the summary of one case, from its rounds and its relative time."""
    metrics = {metric.name: metric.summarise(rounds) for metric in METRICS}
    limit = max((r.limit for r in rounds if r.limit), key=lambda one: one.bytes_per_s, default=None)
    profiled = [r.timing for r in rounds if r.timing.stages]
    stages = {
        name: statistics.median((timing.stages or {}).get(name, 0.0) for timing in profiled)
        for name in (profiled[0].stages if profiled else None) or ()
    }
    threads_s = [timing.reader_threads_s or 0.0 for timing in profiled]
    return CaseSummary(
        key=key,
        label=label,
        facets=rounds[0].facets,
        rounds=len(rounds),
        metrics={name: value for name, value in metrics.items() if value is not None},
        relative=relative,
        limit=limit.name if limit else None,
        stages=stages or None,
        unverified=next((r.unverified for r in rounds if r.unverified), []),
        verified=next((r.verified for r in rounds if r.verified), None),
        slowest=slowest_rank(rounds),
        head=any(r.timing.partial is not None and r.timing.partial.head for r in rounds),
        covered=covered_share(rounds),
        reader_threads_s=statistics.median(threads_s) if threads_s else None,
    )


def covered_share(rounds: Sequence[Record]) -> float | None:
    """Return the share of an epoch's samples that came in at least one round.

    Of parts in stored order it is exact. Parts of other orders are drawn from the whole dataset,
    independently of each other: what several of them have in common is an expectation. None where a round
    is no part, or begins at the head of an order that the loader chooses.
    """
    # the first batch of each part, and the one after its last; runs with one seed read the same rows
    parts: dict[tuple[int, int], tuple[int, int]] = {}
    for record in rounds:
        partial = record.timing.partial
        if partial is None or partial.starts is None or partial.epoch_batches is None:
            return None
        length = partial.epoch_batches
        count = partial.batches // len(partial.starts)
        for number, start in enumerate(partial.starts):
            known = parts.get((record.round, number), (start, start))
            parts[record.round, number] = start, max(known[1], start + count)
    if rounds[0].case["order"] != "sequential":
        return 1 - math.prod(1 - (high - low) / length for low, high in parts.values())
    covered = end = 0
    for low, high in sorted(parts.values()):
        covered += max(0, high - max(low, end))
        end = max(end, high)
    return covered / length
