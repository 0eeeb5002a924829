"""What rounds say about a claim."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from iobench.base.units import seconds_text, three_digits
from iobench.results import stats
from iobench.results.stats import Comparison, Estimate
from iobench.studies._base import FAILS, HOLDS, UNKNOWN, Answer
from iobench.studies._turns import Measurements

EPOCH_S = 0.05  # below this, what it costs to begin an epoch (a millisecond or two) is no small part of it
STARTING = 0.5  # of an epoch, from which on it measures how workers are started


def against(seconds: Mapping[str, Sequence[float]], one: str, other: str) -> Comparison:
    """How many times as fast one contender is as another, with which it took turns."""
    rates, others = (dict(enumerate(1 / value for value in seconds[name])) for name in (one, other))
    return stats.compare_paired(rates, others)


def claimed_faster(claim: str, found: Measurements, one: str, other: str, aside: str = "") -> Answer:
    """The answer to a claim that one contender is faster than another."""
    compared = against(found.seconds, one, other)
    answers = {"faster": HOLDS, "slower": FAILS, "equivalent": FAILS}
    return Answer(
        claim,
        answers.get(compared.outcome, UNKNOWN),
        _because(found, one, other, compared.ratio) + aside,
        found.data,
    )


def claimed_equal(claim: str, found: Measurements, one: str, other: str, aside: str = "") -> Answer:
    """The answer to a claim that two contenders are equally fast."""
    compared = against(found.seconds, one, other)
    answers = {"equivalent": HOLDS, "faster": FAILS, "slower": FAILS}
    return Answer(
        claim,
        answers.get(compared.outcome, UNKNOWN),
        _because(found, one, other, compared.ratio) + aside,
        found.data,
    )


def if_large_enough(answer: Answer, found: Measurements, *names: str, epochs: int = 1) -> Answer:
    """The same, or that nobody can tell where an epoch of one of these is little more than its beginning."""
    short = {name: statistics.median(found.seconds[name]) / epochs for name in names}
    name = min(short, key=lambda one: short[one])
    if short[name] >= EPOCH_S:
        return answer
    took, least = seconds_text(short[name]), seconds_text(EPOCH_S)
    return too_small(answer, f"an epoch of {name} takes {took}, and below {least} it is mostly its beginning")


def if_started(answer: Answer, found: Measurements, *names: str) -> Answer:
    """The same, or that nobody can tell where workers spend more time on being started than on reading."""
    starts = {name: found.median("first_batch_s", name) for name in names if "first_batch_s" in found.noted}
    known = {name: start for name, start in starts.items() if start is not None}
    shares = {name: start / statistics.median(found.seconds[name]) for name, start in known.items()}
    name = max(shares, key=lambda one: shares[one], default=None)
    if name is None or shares[name] < STARTING:
        return answer
    return too_small(answer, f"{name} takes {shares[name]:.0%} of its epochs to start its workers")


def too_small(answer: Answer, why: str) -> Answer:
    """That nobody can tell, because the data are too small for the claim."""
    because = f"the data are too small to tell: {why}; {answer.because}"
    return Answer(answer.claim, UNKNOWN, because, answer.data)


def all_of(claim: str, parts: Sequence[Answer]) -> Answer:
    """The answer to a claim with several parts, each of which has to hold."""
    given = [part.answer for part in parts]
    answer = FAILS if FAILS in given else UNKNOWN if UNKNOWN in given else HOLDS
    data = dict.fromkeys(part.data for part in parts if part.data)
    return Answer(claim, answer, "; ".join(part.because for part in parts), "; ".join(data))


def opposite(answer: Answer, claim: str) -> Answer:
    """The answer to a claim that says the opposite."""
    turned = {HOLDS: FAILS, FAILS: HOLDS}.get(answer.answer, UNKNOWN)
    return Answer(claim, turned, answer.because, answer.data)


def no_gpu(claim: str) -> Answer:
    """The answer to a claim about a device that is not here."""
    return Answer(claim, UNKNOWN, "no GPU")


def _because(found: Measurements, one: str, other: str, ratio: Estimate) -> str:
    """Who is how many times as fast as whom, the faster one first."""
    if ratio.median < 1:
        return _because(found, other, one, _inverse(ratio))
    interval = (
        f" (95 % interval {three_digits(ratio.low)} to {three_digits(ratio.high)})"
        if ratio.low is not None and ratio.high is not None
        else ""
    )
    first, second = (
        f"{name} ({seconds_text(statistics.median(found.seconds[name]))})" for name in (one, other)
    )
    return f"{first} is {three_digits(ratio.median)} × as fast{interval} as {second}"


def _inverse(ratio: Estimate) -> Estimate:
    low, high = (None if end is None else 1 / end for end in (ratio.high, ratio.low))
    return Estimate(1 / ratio.median, low, high)
