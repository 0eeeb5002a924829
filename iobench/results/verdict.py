"""Verdicts: the fastest format and loader, the effect of the format, headroom and the cost of opening.

Each finding has a kind and values; its sentence is rendered here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from iobench.base.finding import Finding
from iobench.base.text import enumerated
from iobench.base.units import counted, seconds_text, three_digits
from iobench.results import stats
from iobench.results.per_loader import MAX_HIDDEN_WAIT, LoaderCases, describe_largest, per_loader, step_share
from iobench.results.run_warning import Values
from iobench.results.stats import Estimate
from iobench.results.summary import CaseSummary, Context, Summary

MAX_DETAILED = 2  # contexts with a line for each loader; of more, all loaders of a context share one
MAX_BRIEF = 2  # cases named in a list of runs
MAX_LOADERS = 4  # shown for a context


def sentences(contexts: Sequence[Context]) -> list[str]:
    """Return the verdict on each context, and indented below it the effect of the format and of opening.

    One sentence for all contexts where none has several cases.
    """
    if len(contexts) > 1 and all(context.verdict.outcome == "single" for context in contexts):
        return ["Each context has a single format and loader: nothing to compare."]
    detailed = len(contexts) <= MAX_DETAILED
    return [line for context in contexts for line in (sentence(context), *_details(context, detailed))]


def findings(context: Context) -> list[Finding]:
    """Return all findings about a context: the verdict first."""
    compared = [one.finding for one in per_loader(context) if len(one.cases) > 1]
    others = (headroom(context), opening(context))
    return [verdict(context), *compared, *(one for one in others if one is not None)]


def as_json(summary: Summary) -> dict[str, Any]:
    """Return a summary for JSON, with the findings of each context."""
    contexts = [{**context.as_dict(), "findings": findings(context)} for context in summary.contexts]
    return {"contexts": contexts, "warnings": summary.warnings}


def verdict(context: Context) -> Finding:
    """Return which case of a context is fastest, and how certain that is.

    The kinds are `single-case`, `step-bound`, `fastest`, `equivalent`, `few-rounds` and `inconclusive`.
    """
    result, fastest = context.verdict, context.label(context.verdict.fastest)
    if result.ratio is None or result.runner_up is None:
        message = f"{fastest} is the only case: nothing to compare"
        return Finding("single-case", message, values={"fastest": fastest})
    runner_up, comparisons = context.label(result.runner_up), len(result.against)
    ratio = ratio_text(result.ratio, comparisons=comparisons)
    values: Values = {
        "fastest": fastest,
        "runner_up": runner_up,
        **ratio_values(result.ratio),
        "rivals": len(result.rivals),
        "min_difference": result.min_difference,
    }
    if is_step_bound(context):
        share = step_share(context.cases) or 0.0
        message = (
            f"The training step takes at least {share:.0%} of the time in every case: neither format nor "
            f"loader matters here (highest median: {fastest})"
        )
        return Finding("step-bound", message, values=values | {"step_share": share})
    if result.outcome == "faster":
        message = f"Fastest: {fastest}, {ratio_text(result.ratio, f'as fast as {runner_up}', comparisons)}"
        return Finding("fastest", message, values=values)
    more = len(result.rivals) - 1
    names = f"{fastest} and {runner_up}" + (f" (and {more} more)" if more > 0 else "")
    if result.outcome == "equivalent":
        message = f"Equally fast within {result.min_difference:.0%}: {names}, {ratio}"
        return Finding("equivalent", message, values=values)
    if has_few_rounds(context):
        message = f"Inconclusive: highest medians {fastest} and {runner_up}, {ratio}"
        return Finding("few-rounds", message, f"give --rounds {stats.ENOUGH_ROUNDS} or more", values)
    hint, loader = "give more --rounds or prepare a larger dataset", _loader_in_front(context)
    if loader is not None:
        message = f"Fastest loader: {loader}; inconclusive between {names}: {ratio}"
        return Finding("inconclusive", message, hint, values | {"loader": loader})
    return Finding("inconclusive", f"Inconclusive between {names}: {ratio}", hint, values)


def _loader_in_front(context: Context) -> str | None:
    """Return the loader of the fastest case and of all its rivals, if other loaders are behind; else None."""
    front = {context.verdict.fastest, *context.verdict.rivals}
    leading = {case.label.loader for case in context.cases if case.key in front}
    others = {case.label.loader for case in context.cases} - leading
    return leading.pop() if len(leading) == 1 and others else None


def sentence(context: Context) -> str:
    """Return the verdict on a context in one sentence, after the context's title."""
    return (f"{context.title}: " if context.title else "") + f"{verdict(context).sentence}."


def brief(contexts: Sequence[Context]) -> str:
    """Return the verdicts in a few words, for a list of runs."""
    first, *others = contexts
    if others:
        fastest = [context.label(context.verdict.fastest) for context in contexts]
        return f"highest medians in {counted(len(contexts), 'context')}: {enumerated(fastest, MAX_BRIEF)}"
    names = [first.label(key) for key in (first.verdict.fastest, *first.verdict.rivals)]
    texts = {
        "single-case": f"{names[0]} only",
        "step-bound": "neither format nor loader matters",
        "fastest": f"fastest: {names[0]}",
        "few-rounds": f"too few rounds, highest median: {names[0]}",
        "equivalent": f"equally fast: {enumerated(names, MAX_BRIEF)}",
        "inconclusive": f"no significant difference: {enumerated(names, MAX_BRIEF)}",
    }
    return texts[verdict(first).kind]


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


def is_step_bound(context: Context) -> bool:
    """Return whether the training step takes the time, and no case differs significantly from the fastest."""
    share, result = step_share(context.cases), context.verdict
    hidden = share is not None and share >= 1 - MAX_HIDDEN_WAIT
    return hidden and len(result.rivals) == len(result.against) > 0


def has_few_rounds(context: Context) -> bool:
    """Return whether there are too few rounds for an interval, so that every other case is a rival."""
    return context.verdict.ratio is not None and context.verdict.ratio.low is None


def opening(context: Context) -> Finding | None:
    """Return the cost of opening the fastest case, where a slower case is ahead until that is made up for.

    Opening is paid once per training, reading in every epoch: one figure for both would mislead.
    """
    best, *others = context.cases
    slower = (case for case in others if case.key not in context.verdict.rivals)
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


def ratio_text(ratio: Estimate, relation: str = "", comparisons: int = 1) -> str:
    """Return a ratio with its relation, such as `as fast`, and its interval, corrected for comparisons."""
    corrected = f", corrected for {comparisons} comparisons" if comparisons > 1 else ""
    interval, few = f" (95 % interval {{}} to {{}}{corrected})", " (too few rounds for an interval)"
    return ratio.text(three_digits, f" × {relation}".rstrip(), interval, few)


def ratio_values(ratio: Estimate) -> Values:
    """Return a ratio and the ends of its interval, where there is one."""
    return {"ratio": ratio.median, **dict(zip(("low", "high"), ratio.ends or (), strict=False))}


def _details(context: Context, detailed: bool) -> Iterator[str]:
    loaders = per_loader(context)
    if not is_step_bound(context) and _adds_information(loaders):
        compared = [one for one in loaders if len(one.cases) > 1]
        if detailed:
            yield from (f"  {one.finding.message}" for one in compared[:MAX_LOADERS])
            if len(compared) > MAX_LOADERS:
                rest = counted(len(compared) - MAX_LOADERS, "more loader")
                yield f"  … and {rest}: see 'iobench report'"
        else:
            effects = [describe_largest(one) for one in compared[:MAX_LOADERS]]
            more = len(compared) - MAX_LOADERS
            yield f"  {'; '.join(effects + ([f'{more} more'] if more > 0 else []))}"
    yield from (f"  {one.sentence}." for one in (headroom(context), opening(context)) if one is not None)


def _adds_information(loaders: Sequence[LoaderCases]) -> bool:
    """Return whether the effect of the format is more than the verdict on two cases."""
    several = [one for one in loaders if len(one.cases) > 1]
    return len(several) > 0 and (len(loaders) > 1 or len(several[0].cases) > 2 or several[0].step_bound)


def _break_even_epochs(best: CaseSummary, other: CaseSummary) -> float:
    """Return the epochs after which the faster case has made up for its longer opening; 0 if not longer."""
    best_open, other_open = best.value("open_s"), other.value("open_s")
    best_epoch, other_epoch = best.value("epoch_s"), other.value("epoch_s")
    if best_open is None or other_open is None or best_epoch is None or other_epoch is None:
        return 0.0
    if other_epoch <= best_epoch:
        return 0.0
    return max(0.0, (best_open - other_open) / (other_epoch - best_epoch))
