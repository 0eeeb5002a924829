"""Verdicts in words."""

from __future__ import annotations

from collections.abc import Sequence

from iobench.results import stats
from iobench.results.stats import Estimate
from iobench.results.summary import Context


def sentences(contexts: Sequence[Context]) -> list[str]:
    """The verdict on each context; one for all of them where none has anything to compare."""
    if len(contexts) > 1 and all(context.verdict.outcome == "single" for context in contexts):
        return ["Each of these was measured with a single format and loader: there is nothing to compare."]
    return [sentence(context) for context in contexts]


def sentence(context: Context) -> str:
    """Which case of a context is fastest, and how sure that is."""
    verdict, title = context.verdict, f"{context.title}: " if context.title else ""
    fastest = context.label(verdict.fastest)
    if verdict.ratio is None or verdict.runner_up is None:
        return f"{title}{fastest} is the only case: there is nothing to compare it with."
    runner_up = context.label(verdict.runner_up)
    figures = ratio_text(verdict.ratio, verdict.correction)
    if verdict.outcome == "faster":
        return f"{title}Fastest: {fastest}, {figures} as fast as {runner_up}."
    more = len(verdict.rivals) - 1
    named = f"{fastest} and {runner_up}" + (f" (and {more} more)" if more > 0 else "")
    if verdict.outcome == "equivalent":
        return f"{title}Equally fast within {verdict.smallest:.0%}: {named}, {figures}."
    advice = "more --rounds or a larger dataset may decide it"
    if verdict.ratio.low is None:
        advice = f"give --rounds {stats.ENOUGH} or more"
    return f"{title}Inconclusive between {named}: {figures}; {advice}."


def ratio_text(ratio: Estimate, correction: str | None = None) -> str:
    """A ratio with its interval, and what was done about many comparisons."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.median:.2f} × (too few rounds for an interval)"
    corrected = f"; {correction}" if correction else ""
    return f"{ratio.median:.2f} × (95 % interval {ratio.low:.2f} to {ratio.high:.2f}{corrected})"
