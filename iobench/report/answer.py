"""What the page says in words: what to use, how sure that is, why, and what each loader is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from iobench.errors import InvalidSettings
from iobench.formats import FormatError
from iobench.loading import loaders
from iobench.report.across import choice_of
from iobench.results import cases, stats, verdict
from iobench.results.metrics import NAMED
from iobench.results.record import Record
from iobench.results.stats import Estimate
from iobench.results.summary import CaseSummary, Context, rates
from iobench.units import seconds_text, three_digits

MOST_NAMED = 3
NEAR_LIMIT = 0.9  # of the limit: hardly more can be had
LONG_OPENING = 0.1  # of an epoch
IDLE = 0.1  # of the epochs of a training that waited for data: the format hardly matters
CHEAPER = 1.5  # times the processor time that is worth a word
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
    for case in first.cases:
        places = [_position(case, context) for context in contexts]
        if None not in places:
            also = "" if set(places) == {"fastest"} else ", or not told apart from the fastest,"
            return f"Use {_pair(case)}: fastest{also} {_everywhere(contexts)}."
    if len(contexts) <= MOST_NAMED:
        told = (f"{_pair(one.cases[0])}{_or_others(one)} for {one.title}" for one in contexts)
        return f"It depends: {'; '.join(told)}."
    winners = [_pair(context.cases[0]) for context in contexts]
    usual = max(winners, key=winners.count)
    times = f"{winners.count(usual)} of {len(contexts)} contexts"
    return f"It depends: {usual} has the highest median in {times}, others elsewhere."


def _or_others(context: Context) -> str:
    count = len(context.verdict.rivals)
    return f" (or {count} other{'s' * (count != 1)}, not told apart)" if count else ""


def _everywhere(contexts: Sequence[Context]) -> str:
    titles = [context.title for context in contexts]
    if len(titles) > MOST_NAMED or any("," in title for title in titles):
        return f"in all {len(titles)} contexts"
    return f"in {_listed(titles)}"


def answer(context: Context) -> str:
    """What to use in one context, no surer than its verdict."""
    best, found = context.cases[0], context.verdict
    speed = f"{_mib(best)} MiB/s"
    if found.outcome == "single":
        return f"{_pair(best)} reached {speed}; nothing was measured beside it."
    if found.outcome == "faster":
        return f"Use {_pair(best)}: {speed}, faster than everything else measured."
    rivals = [_pair(case) for case in context.cases if case.key in found.rivals]
    if found.outcome == "equivalent":
        return f"Use {_pair(best)} ({speed}), or {_listed(rivals)}: equally fast within {found.smallest:.0%}."
    return f"Use {_pair(best)} ({speed}); these rounds do not tell it apart from {_listed(rivals)}."


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
    if opening := _opening(best):
        yield "Opening", opening
    if others:
        slowest = others[-1]
        yield "How far", f"{slowest.label.short}, the slowest, takes {times_text(slowest.relative)} as long."


def loaders_told(context: Context) -> list[Told]:
    """Each loader of a context with its options, the one with the fastest case first."""
    groups: dict[str, list[CaseSummary]] = {}
    for case in context.cases:
        chosen = {name: case.facets.get(name) for name in ("loader", "options")}
        groups.setdefault(json.dumps(chosen, sort_keys=True, default=str), []).append(case)
    by_case = cases.by_case(context.records)
    return [
        Told(
            same[0].label.loader,
            _summary(str(same[0].facets["loader"])),
            _formats({case.key: case for case in same}, stats.verdict(_rates(by_case, same))),
        )
        for same in groups.values()
    ]


def times_text(times: Estimate) -> str:
    """How many times as long, with the interval: `2.30 × (2.10 – 2.60)`."""
    ends = (
        "" if times.low is None or times.high is None else f" ({_digits(times.low)} – {_digits(times.high)})"
    )
    return f"{_digits(times.median)} ×{ends}"


def _digits(times: float) -> str:
    return three_digits(times)


def _rates(
    by_case: Mapping[str, Sequence[Record]], same: Sequence[CaseSummary]
) -> dict[str, dict[tuple[str, int], float]]:
    return rates({case.key: by_case[case.key] for case in same})


def _formats(same: Mapping[str, CaseSummary], found: stats.Verdict) -> str:
    """What the format changes under one loader."""
    best = same[found.fastest]
    if found.runner_up is None:
        return f"Here with {best.facets['format']} alone: {_mib(best)} MiB/s."
    rivals = [str(same[key].facets["format"]) for key in found.rivals]
    told = [key for key in found.against if key not in found.rivals]
    alike = "equally fast" if found.outcome == "equivalent" else "not told apart"
    name = str(best.facets["format"])
    fastest = f"{_listed([name, *rivals])} are {alike}" if rivals else f"{name} is fastest"
    slower = [
        f"{same[key].facets['format']} takes {times_text(found.against[key].ratio)} as long" for key in told
    ]
    return f"Under it {'; '.join([f'{fastest} ({_mib(best)} MiB/s)', *slower])}."


def _summary(loader: str) -> str:
    """What a loader says it is; nothing for one of another package that is not here."""
    try:
        return loaders.type_of(loader).summary
    except (InvalidSettings, FormatError):
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
    return f"{case.label.format} with {case.label.loader}"


def _mib(case: CaseSummary) -> str:
    return NAMED["bytes_per_s"].text(case.bytes_per_s.median)


def _listed(names: Sequence[str]) -> str:
    unique = list(dict.fromkeys(names))
    shown, more = unique[:MOST_NAMED], len(unique) - MOST_NAMED
    *several, last = [*shown, f"{more} more"] if more > 0 else shown
    return f"{', '.join(several)} and {last}" if several else last
