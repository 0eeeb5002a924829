"""What the page says in words: what to use, how sure that is, why, and what each loader is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from iobench.base.errors import (
    InvalidSettings,
    IobenchError,
)
from iobench.base.text import ENUMERATED, enumerated
from iobench.base.units import counted, seconds_text
from iobench.loading import loaders
from iobench.report.across import choice_of
from iobench.results import cases, stats, verdict
from iobench.results.metrics import NAMED
from iobench.results.summary import CaseSummary, Context
from iobench.results.under_loader import step_share, times_text, told, under_loaders

NEAR_LIMIT = 0.9  # of the limit: hardly more can be had
LONG_OPENING = 0.1  # of an epoch
IDLE = 0.1  # of the epochs of a training that waited for data: the format hardly matters
CHEAPER = 1.5  # times the processor time that is worth a word
NOTHING_MATTERS = "Neither format nor loader matters here"
IN_WORDS = {
    "read": "reading",
    "decode": "decoding",
    "collate": "collating",
    "wait": "waiting for threads or workers that read ahead",
    "host_to_device": "the copy to the device",
    "compute": "the training step",
    "other": "the loader's own work",
}


@dataclass(frozen=True)
class Told:
    """What a loader is, and what the format changes under it."""

    loader: str
    is_a: str
    here: str


def overall(contexts: Sequence[Context]) -> str:
    """What to use, in one sentence for all contexts."""
    first, *others = contexts
    if not others:
        return answer(first)
    if all(map(verdict.nothing_matters, contexts)):
        return f"{NOTHING_MATTERS}: the training step takes nearly all of the time {_everywhere(contexts)}."
    if any(map(_has_few_rounds, contexts)):
        return f"Too few rounds to tell: {_usual(contexts)}. Give --rounds {stats.ENOUGH} or more."
    ahead = [case for case in first.cases if all(_position(case, context) for context in contexts)]
    if ahead:
        return _ahead_of_all(ahead, contexts)
    if len(contexts) <= ENUMERATED:
        pairs = (f"{_pair(one.cases[0])}{_or_others(one)} for {one.title}" for one in contexts)
        return f"It depends: {'; '.join(pairs)}."
    return f"It depends: {_usual(contexts)}."


def _has_few_rounds(context: Context) -> bool:
    """Whether there is no interval, so that everything else is a rival, however slow."""
    return context.verdict.ratio is not None and context.verdict.ratio.low is None


def _usual(contexts: Sequence[Context]) -> str:
    """Which pair has the highest median most often, and how often."""
    winners = [_pair(context.cases[0]) for context in contexts]
    usual = max(winners, key=winners.count)
    if winners.count(usual) == len(contexts):
        return f"{usual} has the highest median {_everywhere(contexts)}"
    times = f"{winners.count(usual)} of {len(contexts)} contexts"
    return f"{usual} has the highest median in {times}, others elsewhere"


def _ahead_of_all(ahead: Sequence[CaseSummary], contexts: Sequence[Context]) -> str:
    """Of those that are fastest in each context, or may be, the first, and how many more there are."""
    best, *others = ahead
    more = f", or any of {counted(len(others), 'other')}" if others else ""
    surely = all(_position(best, context) == "fastest" for context in contexts)
    also = "" if surely else ", or not told apart from the fastest,"
    return f"Use {_pair(best)}{more}: fastest{also} {_everywhere(contexts)}."


def _or_others(context: Context) -> str:
    count = len(context.verdict.rivals)
    return f" (or {counted(count, 'other')}, not told apart)" if count else ""


def _everywhere(contexts: Sequence[Context]) -> str:
    titles = [context.title for context in contexts]
    if len(titles) > ENUMERATED or any("," in title for title in titles):
        return f"in all {len(titles)} contexts"
    return f"with {enumerated(titles)}"


def answer(context: Context) -> str:
    """What to use in one context, no surer than its verdict."""
    best, found = context.cases[0], context.verdict
    speed = f"{_mib(best)} MiB/s"
    if found.outcome == "single":
        return f"{_pair(best)} reached {speed}; nothing was measured beside it."
    if verdict.nothing_matters(context):
        share = step_share(context.cases) or 0.0
        return f"{NOTHING_MATTERS}: the training step takes {share:.0%} of the time or more with each."
    if found.outcome == "faster":
        return f"Use {_pair(best)}: {speed}, faster than everything else measured."
    if _has_few_rounds(context):
        return (
            f"Too few rounds to tell: {_pair(best)} has the highest median, {speed}. "
            f"Give --rounds {stats.ENOUGH} or more."
        )
    rivals = [_pair(case) for case in context.cases if case.key in found.rivals]
    if found.outcome == "equivalent":
        return (
            f"Use {_pair(best)} ({speed}), or {enumerated(rivals)}: equally fast within {found.smallest:.0%}."
        )
    return f"Use {_pair(best)} ({speed}); these rounds do not tell it apart from {enumerated(rivals)}."


def reasons(context: Context) -> Iterator[tuple[str, str]]:
    """How sure the answer is, and why the winner wins: what each is about, and the sentence."""
    best, *others = context.cases
    yield "How sure", verdict.sentence(context).removeprefix(f"{context.title}: ")
    if best.limit_share is not None:
        yield "Why", _limit(best, others)
    if best.stages:
        yield "Its time", _stages(best)
    if others and (cpu := _processor(best, others[0])):
        yield "Its cost", cpu
    if (waited := best.value("wait_share")) is not None and cases.trains(best.facets):
        yield "Training", _training(waited)
    if opening := verdict.opening(context) or _opening(best):
        yield "Opening", opening
    if others:
        slowest = others[-1]
        yield "How far", f"{slowest.label.short}, the slowest, takes {times_text(slowest.relative)} as long."


def loaders_told(context: Context) -> list[Told]:
    """Each loader of a context with its options, the one with the fastest case first."""
    return [
        Told(one.loader, _summary(one.word), f"Here {_mib(one.cases[0])} MiB/s at most: {told(one)}.")
        for one in under_loaders(context)
    ]


def _summary(loader: str) -> str:
    """What a loader says it is; nothing for one of another package that is not here."""
    if ":" in loader:
        return "a loader of your own, made by that function"
    try:
        return loaders.class_of(loader).summary
    except (InvalidSettings, IobenchError):
        return ""


def _position(case: CaseSummary, context: Context) -> str | None:
    """Where a choice stands in a context: `fastest` where that is sure, `rival` where it may be, or None."""
    same = next((other for other in context.cases if choice_of(other) == choice_of(case)), None)
    if same is None:
        return None
    if same.key == context.verdict.fastest:
        return "rival" if context.verdict.rivals else "fastest"
    return "rival" if same.key in context.verdict.rivals else None


def _limit(best: CaseSummary, others: Sequence[CaseSummary]) -> str:
    limit, share = best.value("limit_bytes_per_s"), best.limit_share
    assert limit is not None  # as there is a share
    assert share is not None
    allows = NAMED["limit_bytes_per_s"].text(limit)
    way = f"The lowest limit on its way is {best.limit}, {allows} MiB/s here"
    if share > 1:
        return f"{way}: it was even faster, so that limit was measured too low."
    left = (
        "hardly more can be had" if share >= NEAR_LIMIT else f"at most {1 / share:.1f} × as much can be had"
    )
    other = others[0] if others and others[0].limit_share is not None else None
    beside = f"; {other.label.short} reaches {other.limit_share:.0%} of its own" if other else ""
    return f"{way}: it reaches {share:.0%} of that, so {left}{beside}."


def _stages(best: CaseSummary) -> str:
    spent = {stage: seconds for stage, seconds in (best.stages or {}).items() if stage != "open"}
    stage, seconds = max(spent.items(), key=lambda item: item[1])
    part = seconds / sum(spent.values())
    return f"{part:.0%} of an epoch goes to {IN_WORDS.get(stage, stage)}, more than to anything else."


def _processor(best: CaseSummary, other: CaseSummary) -> str | None:
    mine, theirs = best.value("cpu_s_per_gib"), other.value("cpu_s_per_gib")
    if not mine or not theirs or 1 / CHEAPER < mine / theirs < CHEAPER:
        return None
    text = NAMED["cpu_s_per_gib"].text
    return f"It takes {text(mine)} processor seconds per GiB, {other.label.short} {text(theirs)}."


def _training(waited: float) -> str:
    if waited < IDLE:
        return (
            f"The training step waits for data {waited:.0%} of the time only: a faster format changes little."
        )
    return f"The training step waits for data {waited:.0%} of the time."


def _opening(best: CaseSummary) -> str | None:
    opening, epoch = best.value("open_s"), best.value("epoch_s")
    if not opening or not epoch or opening < LONG_OPENING * epoch:
        return None
    return (
        f"It takes {seconds_text(opening)} to open, once a training; an epoch takes {seconds_text(epoch)}. "
        "The speeds are those of epochs, without it."
    )


def _pair(case: CaseSummary) -> str:
    doubt = " (not proved)" if case.not_proved else ""
    return f"{case.label.format} with {case.label.loader}{doubt}"


def _mib(case: CaseSummary) -> str:
    return NAMED["bytes_per_s"].text(case.bytes_per_s.median)
