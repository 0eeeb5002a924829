"""The answer of a run in words: what to use, what it brings, what decides, its limit, what is uncertain.

Each finding has a kind and values; its sentence is rendered here, for terminal, report, notebook and lists.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from iobench.base import grouped
from iobench.base.finding import Finding
from iobench.base.text import ENUMERATED, enumerated
from iobench.base.units import counted, percent_text, rate_text, seconds_text, three_digits
from iobench.results import cases, stats
from iobench.results.run_warning import Values
from iobench.results.stats import FAR, Estimate
from iobench.results.summary import CaseSummary, Context, Summary
from iobench.results.warnings import MACHINE_KINDS

MAX_HIDDEN_WAIT = 0.1  # share of a training spent waiting: no format or loader can gain more than that
WIDE = 3.0  # ends of an interval this many times apart say no more than the lower one
MINOR = 1.5  # times: a choice that changes the speed by less hardly matters beside one with more effect
MAX_LOADERS = 2  # named in a group of leaders
MANY_CONTEXTS = 3  # named in a sentence; of more, only their number
STEP_BOUND = "Neither format nor loader matters here: the training step takes at least {:.0%} of the time"
PLAIN_LOOP = "native"  # the loader that reads whole batches by the format's own library
ONE_BY_ONE = "dataloader"  # with fetch=sample, what people do


def answer(summary: Summary) -> list[Finding]:
    """Return the answer over all contexts in at most five findings: what to use comes first.

    The others are `gain`, `effect`, then `limit`, `headroom` or `no-headroom`, `opening-cost` and
    `uncertain`.
    """
    contexts = summary.contexts
    first = use(contexts)
    if first.kind in ("step-bound", "few-rounds"):
        return [first]
    alone = first.kind == "single-case"
    best = _representative(contexts)
    rest = [
        None if alone else _gain(best),
        None if alone else _effect(contexts),
        next(filter(None, map(headroom, contexts)), None)
        or (None if alone else _limit([case for _, case in best])),
        next(filter(None, map(opening, contexts)), None),
        _uncertain(contexts, [one.kind for one in summary.warnings if one.kind in MACHINE_KINDS]),
    ]
    return [first, *filter(None, rest)][:5]


def use(contexts: Sequence[Context]) -> Finding:
    """Return what to use in all contexts.

    Of one context it is the verdict on it. Of several the kinds are `single-case`, `step-bound`,
    `few-rounds`, `same-everywhere`, `same-loader` (over other formats) and `depends`.
    """
    first, *others = contexts
    if not others:
        return verdict(first)
    if all(map(is_step_bound, contexts)):
        share = min(step_share(one.cases) or 0.0 for one in contexts)
        return Finding("step-bound", STEP_BOUND.format(share), values={"step_share": share})
    compared = [one for one in contexts if len(one.cases) > 1]
    if not compared:
        best = [one.cases[0] for one in contexts]
        names = enumerated([case.label.short for case in best])
        return Finding("single-case", f"{names} only{_of_the_limit(best)}", values={"fastest": names})
    if any(one.verdict.outcome == "few-rounds" for one in compared):
        names = enumerated([one.cases[0].label.short for one in compared])
        return _few_rounds(f"Too few rounds for a verdict; highest medians: {names}", {"fastest": names})
    where = {1: f"with {compared[0].title}", 2: "in both contexts"}.get(
        len(compared), f"in all {len(compared)} contexts"
    )
    if everywhere := _leading_in_all(compared, lambda case: case.choice):
        values: Values = {"use": everywhere[0].label.short, "others": len(everywhere) - 1}
        leads = "leaders" if len(everywhere) > 1 else "a leader"
        return Finding("same-everywhere", f"Use {group_text(everywhere)}: {leads} {where}", values=values)
    if len(compared) <= MANY_CONTEXTS:
        named = "; ".join(f"{group_text(one.leaders)} ({one.title})" for one in compared)
    else:
        led = [case.label.short for context in compared for case in context.leaders]
        usual = max(led, key=led.count)
        named = f"{usual} leads in {led.count(usual)} of {len(compared)} contexts, others in the rest"
    if loaders := _leading_in_all(compared, lambda case: case.label.loader):
        loader = loaders[0].label.loader
        message = f"Use {loader} {where}; the format depends: {named}"
        return Finding("same-loader", message, values={"use": loader})
    return Finding("depends", f"It depends: {named}")


def verdict(context: Context) -> Finding:
    """Return the leaders of a context, and how much slower every other case is at least.

    The kinds are `single-case`, `step-bound`, `fastest` (one leader), `level` (several), `equivalent` (whose
    differences are below the minimum) and `few-rounds`.
    """
    best, *others = context.cases
    leaders, outcome = context.leaders, context.verdict.outcome
    values: Values = {"fastest": best.name, "leaders": "; ".join(case.name for case in leaders)}
    if not others:
        rate = f"{rate_text(best.samples_per_s.median)} samples/s"
        return Finding("single-case", f"{best.name} only: {rate}{_of_the_limit([best])}", values=values)
    if is_step_bound(context):
        share = step_share(context.cases) or 0.0
        return Finding("step-bound", STEP_BOUND.format(share), values=values | {"step_share": share})
    slower = [case for case in others if case.at_least is not None]
    if slower:
        values["at_least"] = least = min(case.at_least or 1.0 for case in slower)
        rest = "every other case" if len(slower) > 1 else slower[0].name
        tail = (
            f"{rest} takes at least {three_digits(least)} × as long" if least >= 1.01 else f"{rest} is slower"
        )
    else:
        tail = "no case is significantly slower" if len(leaders) > 2 else "no significant difference"
    if outcome == "few-rounds":
        names = group_text(leaders)
        return _few_rounds(
            f"Inconclusive: one round each of {names}" + (f"; {tail}" if slower else ""), values
        )
    if outcome == "fastest":
        return Finding("fastest", f"Use {best.name}: {tail}", values=values)
    values["level"] = level = max(case.relative.median for case in leaders) - 1
    names = (
        group_text(leaders) if slower or len(leaders) <= stats.MIN_ROUNDS else f"any of {len(leaders)} cases"
    )
    if outcome == "equivalent":
        return Finding("equivalent", f"Use {names} (equally fast): {tail}", values=values)
    return Finding("level", f"Use {names} (level within {percent_text(level)}): {tail}", values=values)


def group_text(leaders: Sequence[CaseSummary]) -> str:
    """Return cases in few words, each loader once: `stream over npy or memmap, or native over npy`."""
    if len(leaders) == 1:
        return leaders[0].name
    formats = grouped((case.label.loader, case.label.format) for case in leaders)
    several = sorted(formats, key=lambda loader: len(formats[loader]), reverse=True)
    texts = [f"{loader} over {_either(formats[loader])}" for loader in several[:MAX_LOADERS]]
    more = sum(len(formats[loader]) for loader in several[MAX_LOADERS:])
    return ", or ".join([*texts, *([counted(more, "other")] if more else [])])


def sentence(context: Context) -> str:
    """Return the verdict on a context in one sentence, after the context's title."""
    return (f"{context.title}: " if context.title else "") + f"{verdict(context).sentence}."


def brief(contexts: Sequence[Context]) -> str:
    """Return the verdicts in a few words, for a list of runs."""
    names = dict.fromkeys(group_text(context.leaders) for context in contexts)
    kinds = {verdict(context).kind for context in contexts}
    if kinds == {"step-bound"}:
        return "neither format nor loader matters"
    words = {"single-case": " only", "few-rounds": " (too few rounds)"}
    return enumerated(list(names), 2) + words.get(kinds.pop() if len(kinds) == 1 else "", "")


def as_json(summary: Summary) -> dict[str, Any]:
    """Return a summary for JSON, with the answer and the findings about each context."""

    def found(context: Context) -> list[Finding]:
        return [one for one in (verdict(context), headroom(context), opening(context)) if one is not None]

    contexts = [{**context.as_dict(), "findings": found(context)} for context in summary.contexts]
    return {"answer": answer(summary), "contexts": contexts, "warnings": summary.warnings}


def headroom(context: Context) -> Finding | None:
    """Return what an ideal loader would gain over the fastest case; None where that was not measured.

    The kinds are `no-headroom` and `headroom`.
    """
    best = context.cases[0]
    estimate = best.metrics.get("headroom")
    if estimate is None:
        return None
    ratio = ratio_text(estimate, f"as fast as with {best.label.short}")
    values: Values = {"case": best.label.short, **ratio_values(estimate)}
    highest = estimate.high if estimate.high is not None else estimate.median
    if highest < 1 + context.verdict.min_difference:
        message = (
            f"Loading is not the bottleneck: over batches already on the device the loop is {ratio}, "
            "and no loader can gain more"
        )
        return Finding("no-headroom", message, values=values)
    message = f"Headroom: over batches already on the device the loop is {ratio}"
    return Finding("headroom", message, values=values)


def opening(context: Context) -> Finding | None:
    """Return the cost of opening the fastest case, where a slower case is ahead until that is made up for.

    Opening is paid once per training, reading in every epoch: one figure for both would mislead.
    """
    best, *others = context.cases
    slower = (case for case in others if not case.leader)
    ahead = [(epochs, case) for case in slower if (epochs := _break_even_epochs(best, case)) >= 1]
    if not ahead:
        return None
    epochs, first = max(ahead, key=lambda one: one[0])
    best_open, first_open = (case.value("open_s") or 0.0 for case in (best, first))
    return Finding(
        "opening-cost",
        f"Opening {best.label.short} takes {seconds_text(best_open)} once per training, which these speeds "
        f"exclude: {first.label.short} opens in {seconds_text(first_open)} and is ahead for "
        f"{counted(math.floor(epochs), 'epoch')}",
        values={
            "case": best.label.short,
            "open_s": best_open,
            "other_case": first.label.short,
            "other_open_s": first_open,
            "epochs": epochs,
        },
    )


def is_step_bound(context: Context) -> bool:
    """Return whether the training step takes the time, and every case is a leader."""
    share = step_share(context.cases)
    hidden = share is not None and share >= 1 - MAX_HIDDEN_WAIT
    return hidden and len(context.leaders) == len(context.cases) > 1


def step_share(summaries: Sequence[CaseSummary]) -> float | None:
    """Return the least share of the time taken by the training step in these cases; None without one."""
    waits = [case.value("wait_share") for case in summaries if cases.trains(case.facets)]
    known = [wait for wait in waits if wait is not None]
    return 1 - max(known) if known and len(known) == len(summaries) else None


def ratio_text(ratio: Estimate, relation: str = "") -> str:
    """Return a ratio with its relation, such as `as fast`, and its interval."""
    ends = "95 % interval {} to {}".format(*map(three_digits, ratio.ends)) if ratio.ends else None
    return (
        f"{three_digits(ratio.median)} × {relation}".rstrip()
        + f" ({ends or 'too few rounds for an interval'})"
    )


def claim_text(ratio: Estimate, relation: str) -> str:
    """Return a significant gain: its median where the interval is narrow, otherwise its lower end."""
    if ratio.low is not None and ratio.high is not None and ratio.high <= WIDE * ratio.low:
        return ratio_text(ratio, relation)
    least = ratio.low if ratio.low is not None else FAR if ratio.median >= FAR else None
    if least is None:
        return f"{relation.replace('as fast as', 'faster than')}, in too few rounds to say how much"
    rounds = "the rounds differ widely" if ratio.low is not None else "too few rounds for an interval"
    return f"at least {three_digits(least)} × {relation} ({rounds})"


def ratio_values(ratio: Estimate) -> Values:
    """Return a ratio and the ends of its interval, where there is one."""
    return {"ratio": ratio.median, **dict(zip(("low", "high"), ratio.ends or (), strict=False))}


def range_text(values: Sequence[float], form: Callable[[float], str] = three_digits) -> str:
    """Return the lowest and the highest of these values, as one where their texts are the same."""
    low, high = form(min(values)), form(max(values))
    return low if low == high else f"{low} to {high}"


def _few_rounds(message: str, values: Values) -> Finding:
    return Finding("few-rounds", message, f"give --rounds {stats.ENOUGH_ROUNDS} or more", values)


def _either(names: Sequence[str]) -> str:
    """Join names by *or*: all of four, the first three of more."""
    most = ENUMERATED + (len(names) == ENUMERATED + 1)
    return enumerated(names, most).replace(" and ", " or ")


def _leading_in_all(contexts: Sequence[Context], key: Callable[[CaseSummary], str]) -> list[CaseSummary]:
    """Return the leaders, by key, that lead in all contexts.

    Those come first whose loader leads over the most formats, then those with the least mean relative time.
    """
    led = [{key(case) for case in context.leaders} for context in contexts]
    common = set.intersection(*led)
    alike = grouped((key(case), case) for context in contexts for case in context.leaders)
    several = [cases for name, cases in alike.items() if name in common]
    loaders = Counter(first.label.loader for first, *_ in several)

    def place(cases: Sequence[CaseSummary]) -> tuple[int, float]:
        times = [case.relative.median for case in cases]
        return -loaders[cases[0].label.loader], statistics.geometric_mean(times)

    return [first for first, *_ in sorted(several, key=place)]


def _representative(contexts: Sequence[Context]) -> list[tuple[Context, CaseSummary]]:
    """Return the case of the answer in each context: of the choice that leads most, also where another leads.

    The fastest where that choice was not measured, or was not cold.
    """
    led = [case.choice for context in contexts for case in context.leaders]
    same = _leading_in_all(contexts, lambda case: case.choice)
    usual = same[0].choice if same else max(led, key=led.count)
    own = [[one for one in context.cases if one.choice == usual and one.candidate] for context in contexts]
    return [(context, [*known, *context.cases][0]) for context, known in zip(contexts, own, strict=True)]


def _gain(best: Sequence[tuple[Context, CaseSummary]]) -> Finding | None:
    """Return the speed of the answer over DataLoader one sample at a time, and over the best plain loop.

    What leads in every context is level with it, whatever the medians.
    """
    texts, values = list[str](), dict[str, float | int | str]()
    for name, what in ((ONE_BY_ONE, "DataLoader one sample at a time"), (PLAIN_LOOP, "the best plain loop")):
        pairs = [
            (case, next((one for one in context.cases if _is_usual(one, name, case.label.format)), None))
            for context, case in best
            if case.facets["loader"] != name
        ]
        if usual := [(case.relative.median, one) for case, one in pairs if one is not None]:
            ratios = [one.relative.median / time for time, one in usual]
            values |= {f"{name}_low": min(ratios), f"{name}_high": max(ratios)}
            level = all(one.leader for _, one in usual)
            texts.append(f"level with {what}" if level else f"{range_text(ratios)} × {what}")
    name = best[0][1].label.short
    return Finding("gain", f"{name}: {', '.join(texts)}", values=values | {"case": name}) if texts else None


def _is_usual(case: CaseSummary, loader: str, format: str) -> bool:
    """Return whether a case is the usual one of a loader: of DataLoader one sample at a time, of `format`."""
    if not case.candidate or case.facets["loader"] != loader:
        return False
    options = case.facets.get("options") or {}
    return loader == PLAIN_LOOP or (options.get("fetch") == "sample" and case.label.format == format)


def _effect(contexts: Sequence[Context]) -> Finding | None:
    """Return whether the loader or the format matters, where the other one is chosen well.

    The format is judged under the leading loader with which formats differ least, a loader likewise. A loader
    with which the format matters more is named, or else one with which it matters less.
    """
    loaders, formats = _spreads(contexts, "loader", "format"), _spreads(contexts, "format", "loader")
    loader, format_ = _least(loaders), _least(formats)
    if loader is None or format_ is None:
        return None
    if max(loader.times, format_.times) < MINOR:
        message = f"Neither loader ({loader.text} slower) nor format ({format_.text}) matters much"
    elif 1 / MINOR < loader.times / format_.times < MINOR:
        message = f"Loader ({loader.text} slower) and format ({format_.text}) both matter"
    else:
        both = [("loader", loader), ("format", format_)]
        (first, strong), (second, weak) = sorted(both, key=lambda one: one[1].times, reverse=True)
        less = "hardly" if weak.times < MINOR else "less"
        message = f"The {first} decides ({strong.text} slower), the {second} {less} ({weak.text})"
    values: Values = {"loader_ratio": loader.times, "format_ratio": format_.times}
    worst, calmest = (choose(formats, key=lambda one: one.times) for choose in (max, min))
    if worst.times >= MINOR * format_.times:
        other, matters = worst, "matters" if format_.times < MINOR else "matters more"
    else:
        other, matters = calmest, "hardly matters" if calmest.times < MINOR else "matters less"
    if not 1 / MINOR < other.times / format_.times < MINOR:
        message += (
            f"; under {other.under} the format {matters} ({other.slowest} {three_digits(other.times)} ×)"
        )
        values |= {"other_loader": other.under, "other_format_ratio": other.times}
    return Finding("effect", message, values=values)


@dataclass(frozen=True)
class _Spread:
    """The slowest over the fastest of the formats under a loader, or of the loaders over a format."""

    under: str
    slowest: str
    times: float
    leads: int  # contexts in which what they are under leads

    @property
    def text(self) -> str:
        """The slowest and how many times slower it is."""
        return f"{self.under}: {self.slowest} {three_digits(self.times)} ×"


def _spreads(contexts: Sequence[Context], of: str, under: str) -> list[_Spread]:
    """Return the largest spread over the contexts under each loader or format that has several cases."""
    found: dict[str, list[tuple[float, str]]] = {}
    for context in contexts:
        groups = grouped((str(getattr(case.label, under)), case) for case in context.cases if case.candidate)
        for name, cases_there in groups.items():
            if len({getattr(case.label, of) for case in cases_there}) > 1:
                fastest, *_, slowest = sorted(cases_there, key=lambda case: case.relative.median)
                times = slowest.relative.median / fastest.relative.median
                found.setdefault(name, []).append((times, getattr(slowest.label, of)))
    leading = [{getattr(case.label, under) for case in context.leaders} for context in contexts]
    largest = {name: max(several) for name, several in found.items()}
    return [
        _Spread(name, slowest, times, sum(name in one for one in leading))
        for name, (times, slowest) in largest.items()
    ]


def _least(spreads: Sequence[_Spread]) -> _Spread | None:
    """Return the least spread under what leads in most contexts; None where nothing that leads has one."""
    most = max((one.leads for one in spreads), default=0)
    leading = [one for one in spreads if one.leads == most > 0]
    return min(leading, key=lambda one: one.times, default=None)


def _limit(best: Sequence[CaseSummary]) -> Finding | None:
    shares = grouped(
        (case.limit, case.limit_share)
        for case in best
        if case.limit is not None and case.limit_share is not None
    )
    if not shares:
        return None
    texts = [f"{range_text(found, percent_text)} of the {name} limit" for name, found in shares.items()]
    values: Values = {name: statistics.median(found) for name, found in shares.items()}
    return Finding("limit", f"It reaches {', '.join(texts)}", values=values)


def _of_the_limit(best: Sequence[CaseSummary]) -> str:
    finding = _limit(best)
    return f", {finding.message.removeprefix('It reaches ')}" if finding else ""


def _uncertain(contexts: Sequence[Context], warned: Sequence[str]) -> Finding | None:
    """Return where the order of the leaders is open, and what disturbed the machine."""
    undecided = sum(one.verdict.outcome == "level" for one in contexts)
    texts = list[str]()
    if undecided:
        part = "every context" if undecided == len(contexts) else f"{undecided} of {len(contexts)} contexts"
        where = f" in {part}" if len(contexts) > 1 else ""
        texts.append(f"which leader is fastest{where} (more --rounds may tell)")
    if warned:
        texts.append(f"the machine: {enumerated(warned)}")
    if not texts:
        return None
    values: Values = {"undecided": undecided, "warnings": ", ".join(warned)}
    return Finding("uncertain", f"Uncertain: {'; '.join(texts)}", values=values)


def _break_even_epochs(best: CaseSummary, other: CaseSummary) -> float:
    """Return the epochs after which the faster case has made up for its longer opening; 0 if not longer."""
    best_open, other_open = best.value("open_s"), other.value("open_s")
    best_epoch, other_epoch = best.value("epoch_s"), other.value("epoch_s")
    if best_open is None or other_open is None or best_epoch is None or other_epoch is None:
        return 0.0
    gained_s = other_epoch - best_epoch
    return max(0.0, (best_open - other_open) / gained_s) if gained_s > 0 else 0.0
