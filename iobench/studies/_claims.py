"""Claims of a publication, and the verdict on each, from the rounds of contenders."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from iobench.base.units import seconds_text
from iobench.results import stats
from iobench.results.run_warning import Value
from iobench.results.stats import Comparison
from iobench.results.verdict import ratio_text, ratio_values
from iobench.studies._rounds import Measurements

REPRODUCED, NOT_REPRODUCED, INCONCLUSIVE = "reproduced", "not reproduced", "inconclusive"
FASTER = {"faster": REPRODUCED, "slower": NOT_REPRODUCED, "equivalent": NOT_REPRODUCED}  # by outcome
EQUAL = {"equivalent": REPRODUCED, "faster": NOT_REPRODUCED, "slower": NOT_REPRODUCED}
EPOCH_S = 0.05  # in a shorter epoch the start, which takes a millisecond or two, is a large part
STARTING = 0.5  # share of the time; above it an epoch measures the start of workers


@dataclass(frozen=True)
class ClaimResult:
    """The verdict on a published claim."""

    claim: str  # the claim, one sentence; empty for a part of one
    verdict: str  # `REPRODUCED`, `NOT_REPRODUCED` or `INCONCLUSIVE`
    evidence: str  # the figures that the verdict rests on, in words
    data: str = ""  # amount of data that was timed; empty if none was
    values: list[dict[str, Value]] = field(default_factory=list)  # figures by name, for each comparison

    @property
    def sentence(self) -> str:
        """Verdict and claim, with the data that they rest on."""
        return f"{self.verdict}{f', measured on {self.data}' if self.data else ''}: {self.claim}"

    def with_sizes(self, quick: bool) -> ClaimResult:
        """Return it with a remark on the data if sizes were small."""
        return replace(self, data=f"{self.data} (--quick sizes)") if quick and self.data else self

    def opposite(self) -> ClaimResult:
        """Return the verdict on a claim that says the opposite."""
        turned = {REPRODUCED: NOT_REPRODUCED, NOT_REPRODUCED: REPRODUCED}.get(self.verdict, INCONCLUSIVE)
        return replace(self, verdict=turned)

    def too_small(self, reason: str, **values: Value) -> ClaimResult:
        """Return it as inconclusive: the data are too small for the claim."""
        evidence = f"the data are too small: {reason}; {self.evidence}"
        return replace(self, verdict=INCONCLUSIVE, evidence=evidence, values=[*self.values, values])


def judged(holds: bool | None, evidence: str, data: str = "", /, **values: Value) -> ClaimResult:
    """Return the result for what was tested once; see `verdict_of`."""
    return ClaimResult("", verdict_of(holds), evidence, data, [values] if values else [])


def verdict_of(holds: bool | None) -> str:
    """Return the verdict on a claim that holds or not; None for what could not be decided."""
    return INCONCLUSIVE if holds is None else REPRODUCED if holds else NOT_REPRODUCED


def all_of(parts: Sequence[ClaimResult]) -> ClaimResult:
    """Return the verdict on a claim of several parts, each of which must be reproduced."""
    given = [part.verdict for part in parts]
    worst = (one for one in (NOT_REPRODUCED, INCONCLUSIVE) if one in given)
    data = dict.fromkeys(part.data for part in parts if part.data)
    evidence = "; ".join(part.evidence for part in parts)
    values = [one for part in parts for one in part.values]
    return ClaimResult("", next(worst, REPRODUCED), evidence, "; ".join(data), values)


class Claims:
    """Verdicts on claims about the contenders of a study."""

    def __init__(self, measured: Measurements) -> None:
        self.measured, self.figures = measured, measured.figures

    def of(self, metric: str) -> Claims:
        """Return verdicts on a metric, which must be in seconds, in place of the total time."""
        return Claims(self.measured.of(metric))

    def faster(
        self, one: str, other: str, aside: str = "", long: Sequence[str] = (), started: Sequence[str] = ()
    ) -> ClaimResult:
        """Return the verdict on a claim that one contender is faster than another.

        It is inconclusive if epochs of those that must be `long` are mostly their start, or if workers of
        those that must have `started` take longer to start than to read.
        """
        return self._started(self.long(self._compared(one, other, aside, FASTER), long), started)

    def equal(self, one: str, other: str, aside: str = "", long: Sequence[str] = ()) -> ClaimResult:
        """Return the verdict on a claim that two contenders are equally fast; `long` is as in `faster`."""
        return self.long(self._compared(one, other, aside, EQUAL), long)

    def at_least(self, factor: float, one: str, other: str) -> ClaimResult:
        """Return the verdict on a claim that one contender is at least so many times as fast as another."""
        result, ratio = self._compared(one, other, "", FASTER), self.compare(one, other).ratio
        low, high = ratio.ends or (0.0, math.inf)
        return replace(result, verdict=verdict_of(None if low < factor < high else low >= factor))

    def compare(self, one: str, other: str) -> Comparison:
        """Compare the speed of two contenders, round by round."""
        seconds = self.measured.seconds
        rates, others = (dict(enumerate(1 / value for value in seconds[name])) for name in (one, other))
        return stats.compare_paired(rates, others)

    def unless(self, obstacle: str, judge: Callable[[Claims], ClaimResult]) -> ClaimResult:
        """Return the verdict; inconclusive if a figure of this name says why something was not measured."""
        why = self.figures.get(obstacle)
        return judge(self) if why is None else judged(None, why)

    def on_gpu(self, judge: Callable[[Claims], ClaimResult]) -> ClaimResult:
        """Return the verdict; inconclusive on a machine without a GPU."""
        return judge(self) if self.figures["gpu"] else judged(None, "no GPU")

    def _compared(self, one: str, other: str, aside: str, verdicts: Mapping[str, str]) -> ClaimResult:
        compared, measured = self.compare(one, other), self.measured
        verdict, ratio = verdicts.get(compared.outcome, INCONCLUSIVE), compared.ratio
        if ratio.median < 1:  # the faster one first
            one, other, ratio = other, one, ratio.inverse
        first, second = (
            f"{name} ({seconds_text(statistics.median(measured.seconds[name]))})" for name in (one, other)
        )
        times = ratio_text(ratio, "as fast")
        values: dict[str, Value] = {"faster": one, "slower": other, **ratio_values(ratio)}
        return ClaimResult("", verdict, f"{first} is {times} as {second}{aside}", measured.data, [values])

    def long(self, result: ClaimResult, names: Sequence[str]) -> ClaimResult:
        """Return the result; inconclusive if epochs of a contender are mostly their start."""
        epochs = self.figures.get("epochs", 1)  # in a round
        epoch_s = {name: statistics.median(self.measured.seconds[name]) / epochs for name in names}
        name = min(epoch_s, key=lambda one: epoch_s[one], default=None)
        if name is None or epoch_s[name] >= EPOCH_S:
            return result
        took, least = seconds_text(epoch_s[name]), seconds_text(EPOCH_S)
        reason = f"an epoch of {name} takes {took}; below {least} it is mostly its start"
        return result.too_small(reason, contender=name, epoch_s=epoch_s[name])

    def _started(self, result: ClaimResult, names: Sequence[str]) -> ClaimResult:
        starts = {name: self.measured.median("first_batch_s", name) for name in names}
        shares = {
            name: start / statistics.median(self.measured.seconds[name])
            for name, start in starts.items()
            if start is not None
        }
        name = max(shares, key=lambda one: shares[one], default=None)
        if name is None or shares[name] < STARTING:
            return result
        reason = f"{name} takes {shares[name]:.0%} of its epochs to start its workers"
        return result.too_small(reason, contender=name, start_share=shares[name])
