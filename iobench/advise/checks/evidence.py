"""Evidence of a diagnosis, and the advice that follows from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from iobench.advise.checks.call_costs import NO_PROFILE, Profile
from iobench.advise.checks.loop_stats import LoopStats
from iobench.advise.checks.sample_calls import SampleCalls
from iobench.advise.settings.candidate import BETTER, Candidate
from iobench.base.finding import Finding
from iobench.base.units import three_digits
from iobench.bench.policies import FACTORS
from iobench.results.run_warning import LONGER
from iobench.results.stats import Comparison, Estimate
from iobench.results.verdict import ratio_text

SHARE = 0.3  # of the time, from which on advice is worth giving
WITHOUT_GAIN = ("equivalent", "slower")  # outcomes of final rounds
LEAST = 1.5  # times the baseline in a race, from which on a candidate seems faster after several rounds
VARYING = "varying-samples"  # kind of the finding that samples differ each time they are read


@dataclass(frozen=True)
class Advice(Finding):
    """One thing to change, and what was measured that supports it."""

    gain: float | None = None  # speed-up where the change was measured: 2.0 is twice as fast
    gain_text: str = ""  # the gain in words, with its interval

    @property
    def remedy(self) -> str:
        """Remedy and gain in one line."""
        return "; ".join(part for part in (self.hint, self.gain_text) if part)

    @property
    def sentence(self) -> str:
        """Observation, remedy and gain in one line."""
        return "; ".join(part for part in (self.message, self.remedy) if part)


@dataclass(frozen=True)
class Gain:
    """Speed-up of a candidate over the baseline in interleaved final rounds."""

    candidate: Candidate
    ratio: Estimate
    background_load: bool

    @property
    def times(self) -> float:
        """Median speed-up."""
        return self.ratio.median

    @property
    def text(self) -> str:
        """The speed-up with its interval, what it was measured over, and other load on the machine."""
        whole = self.candidate.whole_epochs
        first = f"the first {self.candidate.batches:,} batches; for whole epochs {LONGER}"
        interval = (
            f" ({self.ratio.low:.1f} to {self.ratio.high:.1f})" if self.ratio.low and self.ratio.high else ""
        )
        load = " under background load" if self.background_load else ""
        return f"{self.times:.1f} × as fast{interval}{load}, over {'whole epochs' if whole else first}"


def measured(gain: Gain | None) -> tuple[float | None, str]:
    """Return the last two fields of an Advice: the gain as a number and in words."""
    return (gain.times, gain.text) if gain else (None, "")


def bound(share: float) -> float:
    """Return the most that advice can bring which no setting tries: the speed without a share of the time."""
    return 1 / max(1 - share, 0.01)


def gc_shares(loop: LoopStats, profiles: Sequence[Profile]) -> list[float]:
    """Return the shares of the time that the garbage collector took where samples are fetched, by loop."""
    watched = [] if loop.loader.workers else [loop.gc_s / max(loop.elapsed_s, 1e-9)]
    return [*watched, *(one.gc_share for one in profiles[-1:])]


@dataclass
class Evidence:
    """Measurements that the checks look at."""

    loop: LoopStats
    candidates: list[Candidate]  # settings that were tried; the first is the baseline
    profiles: list[Profile]  # of the main process and the workers
    against: Mapping[str, Comparison]  # each candidate with final rounds, compared with the baseline
    background_load: bool = False  # other processes used the machine meanwhile
    varying: bool = False  # a sample differs each time it is read, such as by random crops
    sample: SampleCalls = field(default_factory=SampleCalls)

    def gain(self, *kinds: str, where: Callable[[Candidate], bool] = lambda one: True) -> Gain | None:
        """Return the largest gain of candidates of these kinds that are significantly faster."""
        tried = [one for one in self.candidates[1:] if one.kind in kinds and one.name in self.against]
        faster = [one for one in tried if self.against[one.name].outcome == "faster" and where(one)]
        best = max(faster, key=lambda one: self.against[one.name].ratio.median, default=None)
        return Gain(best, self.against[best.name].ratio, self.background_load) if best else None

    def refuted(self, *kinds: str) -> bool:
        """Return True if each of these kinds of candidates was measured, and none is or may be faster."""
        tried = [one for one in self.candidates[1:] if one.kind in kinds and one.works]
        return {one.kind for one in tried} == {*kinds} and not any(map(self._may_be_faster, tried))

    def _may_be_faster(self, one: Candidate) -> bool:
        """Return True if final rounds leave it open, or the race where there were none and it can show it."""
        if one.name in self.against:
            return self.against[one.name].outcome not in WITHOUT_GAIN
        return one.kind == "persistent" or one.race_rate > BETTER * self.candidates[0].race_rate

    def undecided(self, kind: str) -> bool:
        """Return True if a candidate of a kind may be faster but had too few rounds to decide."""
        return any(
            self.against[one.name].outcome == "inconclusive"
            if one.name in self.against
            else not one.rates or one.rate > self.candidates[0].rate
            for one in self.candidates[1:]
            if one.kind == kind and not one.failure
        )

    @property
    def fetching(self) -> Profile:
        """Profile of the process that asks the dataset for samples: the workers if there are any."""
        return self.profiles[-1] if self.profiles else NO_PROFILE

    @property
    def per_sample_s(self) -> float:
        """Seconds of waiting per sample after the first batch."""
        steady = self.loop.samples * (self.loop.batches - 1) / max(1, self.loop.batches)
        return self.loop.wait_s / steady if steady else 0.0

    def raced(self, *kinds: str, where: Callable[[Candidate], bool] = lambda one: True) -> bool:
        """Return True if a candidate of these kinds was measured."""
        return any(one.rates for one in self.candidates[1:] if one.kind in kinds and where(one))

    def promising(
        self, *kinds: str, where: Callable[[Candidate], bool] = lambda one: True
    ) -> Candidate | None:
        """Return the fastest candidate of these kinds that seems faster, in too few rounds to be sure."""
        base = self.candidates[0].race_rate if self.candidates else 0.0
        left = [
            one
            for one in self.candidates[1:]
            if one.kind in kinds and one.works and where(one)
            if one.race_rate > FACTORS.get(len(one.rates), LEAST) * base
            if one.name not in self.against or self.against[one.name].outcome == "inconclusive"
        ]
        return max(left, key=lambda one: one.race_rate, default=None)


def concluded(evidence: Evidence, advice: Advice, kinds: Sequence[str]) -> Advice | None:
    """Return advice without a gain with what its final rounds leave open; None if it was refuted.

    `kinds` are those of the candidates that show the gain; all of them must be measured to refute.
    """
    if advice.gain is not None or not kinds:
        return advice
    if evidence.refuted(*kinds):
        return None
    tried = [one.name for one in evidence.candidates[1:] if one.kind in kinds]
    compared = [evidence.against[name] for name in tried if name in evidence.against]
    fast = None if compared else evidence.promising(*kinds)
    if fast is not None:
        times = fast.race_rate / evidence.candidates[0].race_rate
        text = f"undecided: {three_digits(times)} × as fast in a short race; {LONGER}"
        return replace(advice, gain_text=text, values={**advice.values, "undecided": times})
    if all(one.outcome in WITHOUT_GAIN for one in compared):
        return advice
    best = max((one.ratio for one in compared), key=lambda one: one.median)
    text = f"undecided: {ratio_text(best, 'as fast')}; {LONGER}"
    return replace(advice, gain_text=text, values={**advice.values, "undecided": best.median})
