"""Verdicts in words: which format and loader are fastest, and what the format changes under each loader."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from iobench.base.text import enumerated
from iobench.base.units import counted, seconds_text, three_digits
from iobench.results import stats
from iobench.results.stats import Estimate
from iobench.results.summary import CaseSummary, Context
from iobench.results.under_loader import HIDDEN, UnderLoader, most, step_share, told, under_loaders

WHOLE = 2  # contexts that get a line for each loader; of more, all loaders share one
BRIEF = 2  # cases that a few words name
MOST_LOADERS = 4  # that are told of in a context


def sentences(contexts: Sequence[Context]) -> list[str]:
    """The verdict on each context, and below it what the format changes and what opening does.

    One sentence for all of them where none has anything to compare.
    """
    if len(contexts) > 1 and all(context.verdict.outcome == "single" for context in contexts):
        return ["Each of these was measured with a single format and loader: there is nothing to compare."]
    brief = len(contexts) > WHOLE
    return [line for context in contexts for line in (sentence(context), *_below(context, brief))]


def sentence(context: Context) -> str:
    """Which case of a context is fastest, and how sure that is."""
    verdict, title = context.verdict, f"{context.title}: " if context.title else ""
    fastest = context.label(verdict.fastest)
    if verdict.ratio is None or verdict.runner_up is None:
        return f"{title}{fastest} is the only case: there is nothing to compare it with."
    if nothing_matters(context):
        share = step_share(context.cases) or 0.0
        return (
            f"{title}The training step takes {share:.0%} of the time or more with each of these: neither "
            f"format nor loader matters here (highest median: {fastest})."
        )
    runner_up = context.label(verdict.runner_up)
    figures = ratio_text(verdict.ratio, verdict.correction)
    if verdict.outcome == "faster":
        return f"{title}Fastest: {fastest}, {figures} as fast as {runner_up}."
    more = len(verdict.rivals) - 1
    named = f"{fastest} and {runner_up}" + (f" (and {more} more)" if more > 0 else "")
    if verdict.outcome == "equivalent":
        return f"{title}Equally fast within {verdict.smallest:.0%}: {named}, {figures}."
    if verdict.ratio.low is None:  # of which everything else is a rival, however slow
        advice = f"give --rounds {stats.ENOUGH} or more"
        return f"{title}Inconclusive: highest medians {fastest} and {runner_up}, {figures}; {advice}."
    return f"{title}Inconclusive between {named}: {figures}; more --rounds or a larger dataset may decide it."


def brief(contexts: Sequence[Context]) -> str:
    """The verdicts in a few words, for a list: which cases are ahead, and whether that is sure."""
    first, *others = contexts
    if others:
        ahead = [context.label(context.verdict.fastest) for context in contexts]
        return f"highest medians in {counted(len(contexts), 'context')}: {enumerated(ahead, BRIEF)}"
    names = [first.label(key) for key in (first.verdict.fastest, *first.verdict.rivals)]
    if first.verdict.outcome == "single":
        return f"{names[0]} alone"
    if nothing_matters(first):
        return "neither format nor loader matters"
    if first.verdict.outcome == "faster":
        return f"fastest: {names[0]}"
    if first.verdict.ratio is not None and first.verdict.ratio.low is None:
        return f"highest median, of too few rounds: {names[0]}"
    how = "equally fast" if first.verdict.outcome == "equivalent" else "not told apart"
    return f"{how}: {enumerated(names, BRIEF)}"


def headroom(context: Context) -> str | None:
    """What the best possible loader would bring the fastest case; None where nobody looked."""
    best = context.cases[0]
    found = best.metrics.get("headroom")
    if found is None:
        return None
    times = ratio_text(found)
    if (found.high if found.high is not None else found.median) < 1 + context.verdict.smallest:
        return (
            f"Loading is not your problem: over batches that are on the device already the loop is {times} "
            f"as fast as with {best.label.short}, and no loader can bring more."
        )
    return (
        f"The best possible loader would make the loop {times} as fast as {best.label.short} does: that of "
        "batches that are on the device already."
    )


def nothing_matters(context: Context) -> bool:
    """Whether a training step takes so much of the time that no case is told apart from the fastest."""
    share, found = step_share(context.cases), context.verdict
    return share is not None and share >= 1 - HIDDEN and len(found.rivals) == len(found.against) > 0


def opening(context: Context) -> str | None:
    """How long the fastest case takes to open, where a slower one is ahead until that has been made up for.

    Opening happens once a training, reading in every epoch: one figure for both would mislead.
    """
    best, *others = context.cases
    slower = (case for case in others if case.key not in context.verdict.rivals)
    ahead = [(epochs, case) for case in slower if (epochs := _made_up_after(best, case)) >= 1]
    if not ahead:
        return None
    epochs, first = max(ahead, key=lambda one: one[0])
    own, other = (seconds_text(case.value("open_s") or 0.0) for case in (best, first))
    return (
        f"Opening {best.label.short} takes {own}, once a training, which is not in these speeds: "
        f"{first.label.short} opens in {other} and is ahead for {counted(math.floor(epochs), 'epoch')}."
    )


def ratio_text(ratio: Estimate, correction: str | None = None) -> str:
    """A ratio with its interval, and what was done about many comparisons."""
    median = three_digits(ratio.median)
    if ratio.low is None or ratio.high is None:
        return f"{median} × (too few rounds for an interval)"
    low, high = three_digits(ratio.low), three_digits(ratio.high)
    corrected = f"; {correction}" if correction else ""
    return f"{median} × (95 % interval {low} to {high}{corrected})"


def _below(context: Context, brief: bool) -> Iterator[str]:
    loaders = under_loaders(context)
    if not nothing_matters(context) and _says_more(loaders):
        compared = [one for one in loaders if len(one.cases) > 1]
        if brief:
            yield f"  What the format changes: {enumerated([most(one) for one in compared], MOST_LOADERS)}."
        else:
            yield from (f"  under {one.loader}: {told(one)}" for one in compared[:MOST_LOADERS])
            if len(compared) > MOST_LOADERS:
                rest = counted(len(compared) - MOST_LOADERS, "more loader")
                yield f"  … and {rest}: 'iobench report' has them all"
    if said := headroom(context):
        yield f"  {said}"
    if said := opening(context):
        yield f"  {said}"


def _says_more(loaders: Sequence[UnderLoader]) -> bool:
    """Whether there is more to say about formats than which of two cases is faster."""
    several = [one for one in loaders if len(one.cases) > 1]
    return len(several) > 0 and (len(loaders) > 1 or len(several[0].cases) > 2 or several[0].hidden)


def _made_up_after(best: CaseSummary, other: CaseSummary) -> float:
    """Epochs after which the faster case has made up for its longer opening; 0 where it need not."""
    first, second = best.value("open_s"), other.value("open_s")
    quick, slow = best.value("epoch_s"), other.value("epoch_s")
    if first is None or second is None or quick is None or slow is None or slow <= quick:
        return 0.0
    return max(0.0, (first - second) / (slow - quick))
