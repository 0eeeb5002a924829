"""Sentences of the page: the answer, its confidence and reasons, and a description of each loader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from iobench.base.errors import InvalidSettings, IobenchError
from iobench.base.finding import Finding
from iobench.base.text import ENUMERATED, enumerated
from iobench.base.units import counted, seconds_text
from iobench.loading import loaders
from iobench.results import cases, stats, verdict
from iobench.results.metrics import BY_NAME, mib_text
from iobench.results.per_loader import describe, per_loader, times_text
from iobench.results.summary import CaseSummary, Context

NEAR_LIMIT = 0.9  # of the limit: little more is possible
LONG_OPENING = 0.1  # of an epoch
LOW_WAIT = 0.1  # share of a training spent waiting for data: the format hardly matters
COST_RATIO = 1.5  # of CPU times, from which on the difference is mentioned
STEP_BOUND = "Neither format nor loader matters here"
STAGE_NAMES = {
    "read": "reading",
    "decode": "decoding",
    "collate": "collating",
    "wait": "waiting for read-ahead threads or workers",
    "host_to_device": "the copy to the device",
    "compute": "the training step",
    "gc": "Python's garbage collector",
    "other": "the loader itself",
}


@dataclass(frozen=True)
class LoaderDescription:
    """A loader's summary, and the effect of the format under it."""

    loader: str
    summary: str
    effect: str


def overall(contexts: Sequence[Context]) -> Finding:
    """Return what to use in all contexts.

    Of several contexts the kinds are `step-bound`, `few-rounds`, `same-everywhere` and `depends`; of one it
    is the verdict on it.
    """
    first, *others = contexts
    if not others:
        return verdict.verdict(first)
    if all(map(verdict.is_step_bound, contexts)):
        message = f"{STEP_BOUND}: the training step takes nearly all of the time {_everywhere(contexts)}"
        return Finding("step-bound", message)
    if any(map(verdict.has_few_rounds, contexts)):
        return _few_rounds(f"Too few rounds for a verdict: {_most_frequent(contexts)}")
    ahead = [case for case in first.cases if all(_position(case, context) for context in contexts)]
    if ahead:
        return _fastest_everywhere(ahead, contexts)
    if len(contexts) <= ENUMERATED:
        pairs = (f"{_pair(one.cases[0])}{_or_rivals(one)} for {one.title}" for one in contexts)
        return Finding("depends", f"It depends: {'; '.join(pairs)}")
    return Finding("depends", f"It depends: {_most_frequent(contexts)}")


def _few_rounds(message: str) -> Finding:
    hint = f"give --rounds {stats.ENOUGH_ROUNDS} or more"
    return Finding("few-rounds", message, hint, {"enough": stats.ENOUGH_ROUNDS})


def _most_frequent(contexts: Sequence[Context]) -> str:
    """Return the pair that has the highest median most often, and how often."""
    winners = [_pair(context.cases[0]) for context in contexts]
    usual = max(winners, key=winners.count)
    if winners.count(usual) == len(contexts):
        return f"{usual} has the highest median {_everywhere(contexts)}"
    times = f"{winners.count(usual)} of {len(contexts)} contexts"
    return f"{usual} has the highest median in {times}, others in the rest"


def _fastest_everywhere(ahead: Sequence[CaseSummary], contexts: Sequence[Context]) -> Finding:
    """Return the first of the cases that are fastest, or may be, in every context."""
    best, *others = ahead
    more = f", or any of {counted(len(others), 'other')}" if others else ""
    significant = all(_position(best, context) == "fastest" for context in contexts)
    qualified = "fastest" if significant else "fastest, or without a significant difference,"
    return Finding(
        "same-everywhere",
        f"Use {_pair(best)}{more}: {qualified} {_everywhere(contexts)}",
        values={"use": _pair(best), "others": len(others), "significant": int(significant)},
    )


def _or_rivals(context: Context) -> str:
    count = len(context.verdict.rivals)
    return f" (or {counted(count, 'other')}, no significant difference)" if count else ""


def _everywhere(contexts: Sequence[Context]) -> str:
    titles = [context.title for context in contexts]
    if len(titles) > ENUMERATED or any("," in title for title in titles):
        return f"in all {len(titles)} contexts"
    return f"with {enumerated(titles)}"


def reasons(context: Context) -> Iterator[tuple[str, str]]:
    """Yield the reasons for the verdict, each with its subject."""
    best, *others = context.cases
    if best.limit_share is not None:
        yield "Limit", _limit(best, others)
    if best.stages:
        yield "Time", _stages(best)
    if others and (cost := _cpu_cost(best, others[0])):
        yield "CPU", cost
    if (waited := best.value("wait_share")) is not None and cases.trains(best.facets):
        yield "Training", _training(waited)
    finding = verdict.opening(context)
    if opening := f"{finding.sentence}." if finding else _opening(best):
        yield "Opening", opening
    if others:
        slowest = others[-1]
        yield "Range", f"{slowest.label.short} is the slowest: relative time {times_text(slowest.relative)}."


def loader_descriptions(context: Context) -> list[LoaderDescription]:
    """Return each loader of a context with its options, the one with the fastest case first."""
    return [
        LoaderDescription(
            one.loader,
            _summary(one.loader_name),
            f"Here up to {mib_text(one.cases[0].bytes_per_s.median)} MiB/s: {describe(one)}.",
        )
        for one in per_loader(context)
    ]


def _summary(loader: str) -> str:
    """Return a loader's summary; empty for a loader of a package that is not installed."""
    if ":" in loader:
        return "a user-defined loader, made by that function"
    try:
        return loaders.class_of(loader).summary
    except (InvalidSettings, IobenchError):
        return ""


def _position(case: CaseSummary, context: Context) -> str | None:
    """Return a choice's position in a context: `fastest` if significant, `rival` if possible, or None."""
    same = next((other for other in context.cases if other.choice == case.choice), None)
    if same is None:
        return None
    if same.key == context.verdict.fastest:
        return "rival" if context.verdict.rivals else "fastest"
    return "rival" if same.key in context.verdict.rivals else None


def _limit(best: CaseSummary, others: Sequence[CaseSummary]) -> str:
    limit, share = best.value("limit_bytes_per_s"), best.limit_share
    assert limit is not None  # as there is a share
    assert share is not None
    rate = BY_NAME["limit_bytes_per_s"].text(limit)
    start = f"Lowest limit: {best.limit}, {rate} MiB/s"
    if share > 1:
        return f"{start}. The case was faster, so that limit was measured too low."
    rest = (
        "little more is possible"
        if share >= NEAR_LIMIT
        else f"at most {1 / share:.1f} × the speed is possible"
    )
    other = others[0] if others and others[0].limit_share is not None else None
    comparison = f"; {other.label.short} reaches {other.limit_share:.0%} of its own" if other else ""
    return f"{start}. The case reaches {share:.0%} of it: {rest}{comparison}."


def _stages(best: CaseSummary) -> str:
    times = {stage: seconds for stage, seconds in (best.stages or {}).items() if stage != "open"}
    stage, seconds = max(times.items(), key=lambda item: item[1])
    share = seconds / sum(times.values())
    return f"The largest part of an epoch is {STAGE_NAMES.get(stage, stage)}: {share:.0%}."


def _cpu_cost(best: CaseSummary, other: CaseSummary) -> str | None:
    own, others = best.value("cpu_s_per_gib"), other.value("cpu_s_per_gib")
    if not own or not others or 1 / COST_RATIO < own / others < COST_RATIO:
        return None
    text = BY_NAME["cpu_s_per_gib"].text
    return f"{text(own)} CPU seconds per GiB; {other.label.short}: {text(others)}."


def _training(wait_share: float) -> str:
    if wait_share < LOW_WAIT:
        return (
            f"The training step waits for data only {wait_share:.0%} of the time: a faster format gains "
            "little."
        )
    return f"The training step waits for data {wait_share:.0%} of the time."


def _opening(best: CaseSummary) -> str | None:
    opening, epoch = best.value("open_s"), best.value("epoch_s")
    if not opening or not epoch or opening < LONG_OPENING * epoch:
        return None
    return (
        f"Opening takes {seconds_text(opening)} once per training, an epoch {seconds_text(epoch)}. Speeds "
        "exclude opening."
    )


def _pair(case: CaseSummary) -> str:
    mark = " (not verified)" if case.unverified else ""
    return f"{case.label.format} with {case.label.loader}{mark}"
