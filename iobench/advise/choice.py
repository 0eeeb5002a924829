"""Choice among the finalists; nothing else decides which one to use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from iobench.advise.finalists import WORTH_IT
from iobench.advise.recommendation import Finalist
from iobench.advise.search import DEFAULT, SearchResult, cost_of
from iobench.advise.sentences import DECIDED, KEEP, NOT_BOTTLENECK, TIED, UNDECIDED, is_undecided
from iobench.results import stats


@dataclass(frozen=True)
class Choice:
    """The finalist to use.

    Attributes
    ----------
    outcome : str
        As in `Recommendation`.
    use : Finalist
        The finalist to use.
    tied : list of Finalist
        Others that count as equally fast.
    instead_of : Finalist or None
        A finalist with a higher median that is not significantly faster than the default, while `use` is.
    """

    outcome: str
    use: Finalist
    tied: list[Finalist] = field(default_factory=list)
    instead_of: Finalist | None = None


def choose(result: SearchResult, finalists: Sequence[Finalist]) -> Choice:
    """Return the choice among the finalists, the first of which is the fastest.

    Without a finalist that is significantly faster than the default, it is the default.
    """
    default = next((one for one in finalists if DEFAULT in one.roles), None)
    # with several batch sizes, a larger one may train faster even if this one never waits
    one_size = len({case.batch_size for case in result.finalists}) == 1
    if one_size and default is not None and _keeps_busy(default):
        return Choice(NOT_BOTTLENECK, default)
    busy = [one for one in finalists if _keeps_busy(one) and (one.significantly_better or default is None)]
    if one_size and busy:
        return Choice(DECIDED, _cheapest(result, busy))
    fastest, *others = finalists
    tied = [other for other in others if other.tied]
    choice = _among(result, [fastest, *tied]) if tied else Choice(DECIDED, fastest)
    if default is None or choice.use.significantly_better:
        return choice
    compared = [one.against_default for one in finalists if one.against_default is not None]
    return Choice(UNDECIDED if is_undecided(compared) else KEEP, default)


def _among(result: SearchResult, tied: Sequence[Finalist]) -> Choice:
    """Choose among ties, the first of which has the highest median.

    Prefer a finalist that is significantly faster than the default over one with a higher but uncertain
    median.
    """
    first, significant = _best(result, tied), [one for one in tied if one.significantly_better]
    use = first if first in significant or not significant else _best(result, significant)
    passed_over = None if use is first else (first if tied[0] in significant else tied[0])
    return Choice(TIED, use, [one for one in tied if one is not use], passed_over)


def _best(result: SearchResult, tied: Sequence[Finalist]) -> Finalist:
    """Return the cheapest of those near the first; the first while there are too few rounds to tell."""
    few = min(one.decisive_rounds for one in tied) < stats.ENOUGH_ROUNDS
    return tied[0] if few else _cheapest(result, [one for one in tied if _near(tied[0], one)])


def _keeps_busy(one: Finalist) -> bool:
    """Return True if the device was measured to wait for less than 5 % of the time."""
    return one.wait_share is not None and one.wait_share < WORTH_IT


def _near(fastest: Finalist, other: Finalist) -> bool:
    """Return True if the median is within 5 %: intervals of noisy rounds exclude hardly anything."""
    return other.decisive_per_s.median * (1 + WORTH_IT) >= fastest.decisive_per_s.median


def _cheapest(result: SearchResult, among: Sequence[Finalist]) -> Finalist:
    cases = {case.key: case for case in result.finalists}
    return min(among, key=lambda one: cost_of(cases[one.key], result.data.manifest))
