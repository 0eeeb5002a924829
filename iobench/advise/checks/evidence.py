"""Evidence of a diagnosis, and the advice that follows from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from iobench.advise.checks.call_costs import NO_PROFILE, Profile
from iobench.advise.checks.loop_stats import LoopStats
from iobench.advise.checks.sample_calls import SampleCalls
from iobench.advise.settings.candidate import BETTER, Candidate, compare_to_baseline
from iobench.base.finding import Finding
from iobench.base.machine import BackgroundLoad
from iobench.base.units import three_digits
from iobench.bench.policies import FACTORS
from iobench.host import memory
from iobench.results.run_warning import LONGER, RunWarning, background_warnings
from iobench.results.stats import Comparison, Estimate
from iobench.results.verdict import ratio_text

SHARE = 0.3  # of the time, from which on advice is worth giving
WITHOUT_GAIN = ("equivalent", "slower")  # outcomes of final rounds
LEAST = 1.5  # times the baseline in a race, from which on a candidate seems faster after several rounds
FREE_SHARE = 0.5  # of free memory, that cached samples may take
VARYING = "varying-samples"  # kind of the finding that samples differ each time they are read

Where = Callable[[Candidate], bool]


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


@dataclass
class Evidence:
    """Measurements of a loader: a loop, profiles, calls for samples, and the rounds of candidates."""

    loop: LoopStats
    candidates: Sequence[Candidate] = ()  # settings and changes that were tried; the first is the baseline
    profiles: Sequence[Profile] = ()  # of the main process and the workers
    sample: SampleCalls = field(default_factory=SampleCalls)
    skipped: list[Finding] = field(default_factory=list)  # what was not tried, and why
    background: list[BackgroundLoad] = field(default_factory=list)  # of other processes, after the loop
    slowdown: float | None = None  # ratio of the first turns' rates to the last ones', if turns got slower

    @cached_property
    def against(self) -> Mapping[str, Comparison]:
        """Each candidate with final rounds, compared with the baseline."""
        comparable = self.candidates and self.slowdown is None
        return compare_to_baseline(self.candidates) if comparable else {}

    @cached_property
    def background_warnings(self) -> list[RunWarning]:
        """Warnings that other processes used the machine meanwhile."""
        return background_warnings([self.loop.background, *self.background])

    @property
    def varying(self) -> bool:
        """True if a sample differs each time it is read, such as by random crops."""
        return any(one.kind == VARYING for one in self.skipped)

    @property
    def gc_shares(self) -> list[float]:
        """Shares of the time that the garbage collector took where samples are fetched, by loop."""
        loop = self.loop
        watched = [] if loop.loader.workers else [loop.gc_s / max(loop.elapsed_s, 1e-9)]
        return [*watched, *(one.gc_share for one in self.profiles[-1:])]

    @property
    def fits_in_memory(self) -> bool:
        """True if all samples of an epoch, as delivered, fit in half of the free memory."""
        size = self.loop.dataset_bytes
        return self.loop.epoch_batches is not None and 0 < size < FREE_SHARE * memory.free_memory()

    def tried(self, *kinds: str, where: Where = lambda one: True) -> list[Candidate]:
        """Return the candidates of these kinds that were not found to fail."""
        return [one for one in self.candidates[1:] if one.kind in kinds and not one.failure and where(one)]

    def outcome(self, one: Candidate) -> str | None:
        """Return how the final rounds of a candidate compare with the baseline's; None without any."""
        return self.against[one.name].outcome if one.name in self.against else None

    def gain(self, *kinds: str, where: Where = lambda one: True) -> Gain | None:
        """Return the largest gain of candidates of these kinds that are significantly faster."""
        faster = [one for one in self.tried(*kinds, where=where) if self.outcome(one) == "faster"]
        best = max(faster, key=lambda one: self.against[one.name].ratio.median, default=None)
        return Gain(best, self.against[best.name].ratio, bool(self.background_warnings)) if best else None

    def better(self, *kinds: str, where: Where = lambda one: True) -> Candidate | None:
        """Return the candidate with the largest gain, or else the one that seems fastest, if any."""
        gain = self.gain(*kinds, where=where)
        return gain.candidate if gain else self.promising(*kinds, where=where)

    def promising(self, *kinds: str, where: Where = lambda one: True) -> Candidate | None:
        """Return the fastest candidate of these kinds that seems faster, in too few rounds to be sure."""
        base = self.candidates[0].race_rate if self.candidates else 0.0
        left = [
            one
            for one in self.tried(*kinds, where=where)
            if one.works and one.race_rate > FACTORS.get(len(one.rates), LEAST) * base
            if self.outcome(one) in (None, "inconclusive")
        ]
        return max(left, key=lambda one: one.race_rate, default=None)

    def raced(self, *kinds: str, where: Where = lambda one: True) -> bool:
        """Return True if a candidate of these kinds was measured."""
        return any(one.rates for one in self.candidates[1:] if one.kind in kinds and where(one))

    def refuted(self, *kinds: str) -> bool:
        """Return True if each of these kinds of candidates was measured, and none is or may be faster.

        Where there were no final rounds, the race leaves it open for those that seem faster, and for
        persistent workers, whose gain it cannot show.
        """
        measured = [one for one in self.tried(*kinds) if one.works]
        base = self.candidates[0].race_rate if self.candidates else 0.0
        slower = (
            one.kind != "persistent" and one.race_rate <= BETTER * base
            if self.outcome(one) is None
            else self.outcome(one) in WITHOUT_GAIN
            for one in measured
        )
        return {one.kind for one in measured} == {*kinds} and all(slower)

    def undecided(self, kind: str) -> bool:
        """Return True if a candidate of a kind may be faster but had too few rounds to decide."""
        return any(
            not one.rates or one.rate > self.candidates[0].rate
            if self.outcome(one) is None
            else self.outcome(one) == "inconclusive"
            for one in self.tried(kind)
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

    def concluded(self, advice: Advice, kinds: Sequence[str]) -> Advice | None:
        """Return advice without a gain with what its final rounds leave open; None if it was refuted.

        `kinds` are those of the candidates that show the gain; all of them must be measured to refute.
        """
        if advice.gain is not None or not kinds:
            return advice
        if self.refuted(*kinds):
            return None
        tried = [one.name for one in self.candidates[1:] if one.kind in kinds]
        compared = [self.against[name] for name in tried if name in self.against]
        fast = None if compared else self.promising(*kinds)
        if fast is not None:
            times = fast.race_rate / self.candidates[0].race_rate
            found = f"{three_digits(times)} × as fast in a short race"
        elif all(one.outcome in WITHOUT_GAIN for one in compared):
            return advice
        else:
            best = max((one.ratio for one in compared), key=lambda one: one.median)
            times, found = best.median, ratio_text(best, "as fast")
        if times > float(advice.values.get("bound", times)):  # kept samples avoid more than the remedy does
            return advice
        text, values = f"undecided: {found}; {LONGER}", {**advice.values, "undecided": times}
        return replace(advice, gain_text=text, values=values)
