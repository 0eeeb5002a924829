"""Verdicts on claims, from the rounds of contenders."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from iobench.base.units import seconds_text, three_digits
from iobench.results import stats
from iobench.results.run_warning import Value
from iobench.results.stats import Comparison, Estimate
from iobench.results.verdict import ratio_values
from iobench.studies._base import INCONCLUSIVE, NOT_REPRODUCED, REPRODUCED, ClaimResult
from iobench.studies._rounds import Measurements

EPOCH_S = 0.05  # in a shorter epoch the start, which takes a millisecond or two, is a large part
STARTING = 0.5  # share of the time; above it an epoch measures the start of workers


def against(seconds: Mapping[str, Sequence[float]], one: str, other: str) -> Comparison:
    """Compare the speed of two contenders, round by round."""
    rates, others = (dict(enumerate(1 / value for value in seconds[name])) for name in (one, other))
    return stats.compare_paired(rates, others)


def claimed_faster(claim: str, measured: Measurements, one: str, other: str, aside: str = "") -> ClaimResult:
    """Return the verdict on a claim that one contender is faster than another."""
    verdicts = {"faster": REPRODUCED, "slower": NOT_REPRODUCED, "equivalent": NOT_REPRODUCED}
    return _compared(claim, measured, (one, other), verdicts, aside)


def claimed_equal(claim: str, measured: Measurements, one: str, other: str, aside: str = "") -> ClaimResult:
    """Return the verdict on a claim that two contenders are equally fast."""
    verdicts = {"equivalent": REPRODUCED, "faster": NOT_REPRODUCED, "slower": NOT_REPRODUCED}
    return _compared(claim, measured, (one, other), verdicts, aside)


def _compared(
    claim: str, measured: Measurements, pair: tuple[str, str], verdicts: Mapping[str, str], aside: str
) -> ClaimResult:
    compared = against(measured.seconds, *pair)
    verdict = verdicts.get(compared.outcome, INCONCLUSIVE)
    (one, other), ratio = pair, compared.ratio
    if ratio.median < 1:  # the faster one first
        one, other, ratio = other, one, ratio.inverse
    evidence = _evidence(measured, one, other, ratio) + aside
    values: dict[str, Value] = {"faster": one, "slower": other, **ratio_values(ratio)}
    return ClaimResult(claim, verdict, evidence, measured.data, [values])


def if_large_enough(result: ClaimResult, measured: Measurements, *names: str, epochs: int = 1) -> ClaimResult:
    """Return the result; inconclusive if an epoch of a contender is too short."""
    short = {name: statistics.median(measured.seconds[name]) / epochs for name in names}
    name = min(short, key=lambda one: short[one])
    if short[name] >= EPOCH_S:
        return result
    took, least = seconds_text(short[name]), seconds_text(EPOCH_S)
    reason = f"an epoch of {name} takes {took}; below {least} it is mostly its start"
    return too_small(result, reason, {"contender": name, "epoch_s": short[name]})


def if_started(result: ClaimResult, measured: Measurements, *names: str) -> ClaimResult:
    """Return the result; inconclusive if a contender's workers take longer to start than to read."""
    starts = {
        name: measured.median("first_batch_s", name) for name in names if "first_batch_s" in measured.metrics
    }
    known = {name: start for name, start in starts.items() if start is not None}
    shares = {name: start / statistics.median(measured.seconds[name]) for name, start in known.items()}
    name = max(shares, key=lambda one: shares[one], default=None)
    if name is None or shares[name] < STARTING:
        return result
    reason = f"{name} takes {shares[name]:.0%} of its epochs to start its workers"
    return too_small(result, reason, {"contender": name, "start_share": shares[name]})


def too_small(result: ClaimResult, reason: str, values: dict[str, Value]) -> ClaimResult:
    """Return an inconclusive result: the data are too small for the claim."""
    evidence = f"the data are too small: {reason}; {result.evidence}"
    return ClaimResult(result.claim, INCONCLUSIVE, evidence, result.data, [*result.values, values])


def all_of(claim: str, parts: Sequence[ClaimResult]) -> ClaimResult:
    """Return the verdict on a claim of several parts, each of which must be reproduced."""
    given = [part.verdict for part in parts]
    worst = (one for one in (NOT_REPRODUCED, INCONCLUSIVE) if one in given)
    data = dict.fromkeys(part.data for part in parts if part.data)
    evidence = "; ".join(part.evidence for part in parts)
    values = [one for part in parts for one in part.values]
    return ClaimResult(claim, next(worst, REPRODUCED), evidence, "; ".join(data), values)


def opposite(result: ClaimResult, claim: str) -> ClaimResult:
    """Return the verdict on a claim that says the opposite."""
    turned = {REPRODUCED: NOT_REPRODUCED, NOT_REPRODUCED: REPRODUCED}.get(result.verdict, INCONCLUSIVE)
    return ClaimResult(claim, turned, result.evidence, result.data, result.values)


def no_gpu(claim: str) -> ClaimResult:
    """Return the result for a claim about a GPU on a machine without one."""
    return ClaimResult(claim, INCONCLUSIVE, "no GPU")


def _evidence(measured: Measurements, faster: str, slower: str, ratio: Estimate) -> str:
    first, second = (
        f"{name} ({seconds_text(statistics.median(measured.seconds[name]))})" for name in (faster, slower)
    )
    return f"{first} is {ratio.text(three_digits, ' × as fast', ' (95 % interval {} to {})')} as {second}"
