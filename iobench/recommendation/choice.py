"""Which of the finalists to use: decided here, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from iobench.recommendation.finalists import WORTH_IT
from iobench.recommendation.result import Finalist
from iobench.recommendation.search import DEFAULT, Found, cost_of
from iobench.results import stats


@dataclass(frozen=True)
class Choice:
    """The case to use, and how sure that is: `outcome` is as in `Recommendation`.

    `tied` are the others that count as being as fast. Where it was taken because it is surely faster than
    the default, `instead_of` is what it was taken in the place of, which is not.
    """

    outcome: str
    use: Finalist
    tied: list[Finalist] = field(default_factory=list)
    instead_of: Finalist | None = None


def choose(found: Found, candidates: Sequence[Finalist]) -> Choice:
    """What to use of the candidates, the first of which is the fastest."""
    default = next((one for one in candidates if DEFAULT in one.roles), None)
    alike = len({case.batch_size for case in found.finalists}) == 1  # or a larger batch trains faster yet
    if alike and default is not None and _fed(default):
        return Choice("fed", default)
    feeding = [one for one in candidates if _fed(one)]
    if alike and feeding:
        return Choice("decided", _cheapest(found, feeding))
    fastest, *others = candidates
    tied = [other for other in others if other.tied]
    return _among(found, [fastest, *tied]) if tied else Choice("decided", fastest)


def _among(found: Found, alike: Sequence[Finalist]) -> Choice:
    """What to use of several that are not told apart from the first, the fastest by median.

    A sure gain over the default is worth more than a higher median that may be no gain at all.
    """
    first, sure = _best(found, alike), [one for one in alike if one.surely_better]
    use = first if first in sure or not sure else _best(found, sure)
    passed_over = None if use is first else (first if alike[0] in sure else alike[0])
    return Choice("tied", use, [one for one in alike if one is not use], passed_over)


def _best(found: Found, alike: Sequence[Finalist]) -> Finalist:
    """The cheapest of those near the first; the first, while there are too few rounds to say so."""
    few = min(one.decisive_rounds for one in alike) < stats.ENOUGH
    return alike[0] if few else _cheapest(found, [one for one in alike if _as_fast(alike[0], one)])


def _fed(one: Finalist) -> bool:
    """Whether the device is kept busy by it, as was measured."""
    return one.waits is not None and one.waits < WORTH_IT


def _as_fast(fastest: Finalist, other: Finalist) -> bool:
    """Whether it is as fast by what is known best: rounds that scatter much tell hardly anyone apart."""
    return other.decisive_per_s.median * (1 + WORTH_IT) >= fastest.decisive_per_s.median


def _cheapest(found: Found, among: Sequence[Finalist]) -> Finalist:
    cases = {case.key: case for case in found.finalists}
    return min(among, key=lambda one: cost_of(cases[one.key], found.data.manifest))
