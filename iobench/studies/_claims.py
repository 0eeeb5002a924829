"""What rounds say about a claim."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from iobench.results import stats
from iobench.results.stats import Comparison
from iobench.studies._base import FAILS, HOLDS, UNKNOWN, Answer, Found
from iobench.units import seconds_text


def against(seconds: Mapping[str, Sequence[float]], one: str, other: str) -> Comparison:
    """How many times as fast one contender is as another, with which it took turns."""
    rates, others = (dict(enumerate(1 / value for value in seconds[name])) for name in (one, other))
    return stats.compare_rounds(rates, others)


def claimed_faster(claim: str, found: Found, one: str, other: str, aside: str = "") -> Answer:
    """The answer to a claim that one contender is faster than another."""
    compared = against(found.seconds, one, other)
    answers = {"faster": HOLDS, "slower": FAILS, "equivalent": FAILS}
    return Answer(
        claim, answers.get(compared.outcome, UNKNOWN), _because(found, one, other, compared) + aside
    )


def claimed_equal(claim: str, found: Found, one: str, other: str, aside: str = "") -> Answer:
    """The answer to a claim that two contenders are equally fast."""
    compared = against(found.seconds, one, other)
    answers = {"equivalent": HOLDS, "faster": FAILS, "slower": FAILS}
    return Answer(
        claim, answers.get(compared.outcome, UNKNOWN), _because(found, one, other, compared) + aside
    )


def all_of(claim: str, parts: Sequence[Answer]) -> Answer:
    """The answer to a claim with several parts, each of which has to hold."""
    given = [part.answer for part in parts]
    answer = FAILS if FAILS in given else UNKNOWN if UNKNOWN in given else HOLDS
    return Answer(claim, answer, "; ".join(part.because for part in parts))


def opposite(answer: Answer, claim: str) -> Answer:
    """The answer to a claim that says the opposite."""
    return Answer(claim, {HOLDS: FAILS, FAILS: HOLDS}.get(answer.answer, UNKNOWN), answer.because)


def no_gpu(claim: str) -> Answer:
    """The answer to a claim about a device that is not here."""
    return Answer(claim, UNKNOWN, "no CUDA device")


def _because(found: Found, one: str, other: str, compared: Comparison) -> str:
    ratio = compared.ratio
    interval = f" (95 % interval {ratio.low:.2f} to {ratio.high:.2f})" if ratio.low is not None else ""
    times = [seconds_text(statistics.median(found.seconds[name])) for name in (one, other)]
    return f"{one} ({times[0]}) against {other} ({times[1]}): {ratio.median:.2f} ×{interval}"
