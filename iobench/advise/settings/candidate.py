"""Candidate settings of a loader and their measurements."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from iobench.advise import answer
from iobench.base.finding import Finding
from iobench.base.thresholds import BACKGROUND_CPU
from iobench.base.units import bytes_text, rate_text, seconds_text
from iobench.results import stats
from iobench.results.display import Columns
from iobench.results.record import Record
from iobench.results.run_warning import LONGER
from iobench.results.stats import Comparison

if TYPE_CHECKING:  # it loads torch
    from iobench.advise.settings.turn import Turn

BASELINE = "baseline"  # the loader with the settings it came with
HEADROOM = "batches already on the device"
UNSENDABLE = "cannot-pickle-batches"  # kind of the finding that workers could not send batches
FIGURES = (  # in JSON
    *("name", "changes", "kind", "eliminated"),
    *("rates", "final_rates", "rate", "whole_epochs", "batches", "first_batch_s", "epoch_s", "wait_shares"),
    *("turn_s", "endless", "memory_bytes", "failure", "over_limit"),
)

OUTCOMES = {
    "faster": "faster",
    "slower": "slower",
    "equivalent": "as fast",
    "inconclusive": "no significant difference",
}
BETTER = 1.03  # speed-up in a race from which on a candidate gets final rounds
HIDDEN_START = 0.3  # of an epoch, for its first batch


@dataclass
class Candidate:
    """Candidate settings and their turns; all figures follow from these."""

    name: str  # the settings in words; `BASELINE` for the loader's own
    changes: dict[str, Any] = field(default_factory=dict)  # other settings than the baseline's
    kind: str = ""  # group of the changed setting, such as ``workers`` or ``prefetch``
    failure: Finding | None = None  # why the candidate cannot be chosen
    over_limit: Finding | None = None  # the limit that the baseline exceeds; it is measured all the same
    eliminated: int | None = None  # round of the race after which it was eliminated
    make: Callable[[], Iterable[Any]] | None = field(default=None, repr=False, compare=False)  # where it is
    # not the user's own loader with other settings
    race: list[Record] = field(default_factory=list, repr=False, compare=False)
    final: list[Record] = field(default_factory=list, repr=False, compare=False)
    turns: list[Turn] = field(default_factory=list, repr=False, compare=False)  # all, in order of time

    @property
    def rates(self) -> dict[int, float]:
        """Samples/s by round of the race."""
        return {one.round: one.samples_per_s for one in self.race}

    @property
    def final_rates(self) -> dict[int, float]:
        """Samples/s by final round."""
        return {one.round: one.samples_per_s for one in self.final}

    @property
    def rate(self) -> float:
        """Median samples/s of the final rounds, else of the race; 0 without any."""
        rates = self.final_rates or self.rates
        return statistics.median(rates.values()) if rates else 0.0

    @property
    def race_rate(self) -> float:
        """Median samples/s of the race, which alone compares with others' of the race; 0 without any."""
        return statistics.median(self.rates.values()) if self.rates else 0.0

    @property
    def whole_epochs(self) -> bool:
        """True if every final round was a whole epoch."""
        return all(one.timing.partial is None for one in self.final)

    @property
    def first_batch_s(self) -> list[float]:
        """Seconds of each round to its first batch."""
        return [one.timing.first_batch_s for one in (*self.race, *self.final)]

    @property
    def epoch_s(self) -> list[float]:
        """Seconds of a whole epoch in each round."""
        return [one.epoch_s for one in (*self.race, *self.final)]

    @property
    def wait_shares(self) -> list[float]:
        """Share of each final round that the step spent waiting."""
        return [one.timing.wait_s / one.timing.epochs_s for one in self.final]

    @property
    def batches(self) -> int:
        """Batches of the last turn."""
        return self.turns[-1].batches if self.turns else 0

    @property
    def turn_s(self) -> float:
        """Wall time of the last turn, in seconds."""
        return self.turns[-1].wall_s if self.turns else 0.0

    @property
    def endless(self) -> bool:
        """True if a turn was cut off and the loader has no length."""
        return any(not one.complete and one.epoch_batches is None for one in self.turns)

    @property
    def memory_bytes(self) -> int | None:
        """Peak memory of all its processes; None if the kernel reports none."""
        return max((one.measured.memory.peak_bytes or 0 for one in self.turns), default=0) or None

    @property
    def tried(self) -> bool:
        """True if there was time for it."""
        return bool(self.rate or self.failure or self.over_limit)

    @property
    def works(self) -> bool:
        """True if it was measured and may be chosen."""
        return bool(self.rates) and self.failure is None

    def hides_gain(self, baseline: Candidate) -> bool:
        """Return True if a race cannot show its gain, so that it needs final rounds.

        Persistent workers start in their first turn, as any workers do, and again after each cut turn.
        """
        slow_start = baseline.first_batch_s and baseline.first_batch_s[0] > HIDDEN_START * baseline.epoch_s[0]
        return self.kind == "persistent" and bool(slow_start) and self.works

    def as_dict(self) -> dict[str, Any]:
        """Return the settings and the figures, for JSON."""
        return {name: getattr(self, name) for name in FIGURES}


def names_of(candidates: Iterable[Candidate]) -> str:
    """Return the names of candidates in one line."""
    return "; ".join(one.name for one in candidates)


def compare_to_baseline(candidates: Sequence[Candidate]) -> dict[str, Comparison]:
    """Compare each candidate with the first, the baseline, round by round over their final rounds.

    One round decides nothing: a collection of a large heap may fall into it.
    """
    baseline, others = candidates[0].final_rates, [one for one in candidates[1:] if not one.failure]
    final = [one for one in others if one.final_rates and baseline]
    return {one.name: _compared(one.final_rates, baseline, len(final)) for one in final}


def _compared(rates: Mapping[int, float], baseline: Mapping[int, float], comparisons: int) -> Comparison:
    if min(len(rates), len(baseline)) < stats.FEWEST_ROUNDS:
        return stats.compare_paired(rates, baseline, comparisons=comparisons)
    return stats.compared(rates, baseline, comparisons)


def unsuccessful(candidates: Sequence[Candidate]) -> Iterator[Finding]:
    """Yield the candidates that failed, and those that no time was left for."""
    yield from answer.failures((one.name, one.failure) for one in candidates if one.failure)
    yield from answer.no_time([one.name for one in candidates[1:] if not one.tried], LONGER)


def candidates_table(
    candidates: Sequence[Candidate], against: Mapping[str, Comparison], chosen: str = ""
) -> Columns:
    """Return the settings with their speed in the race, and final rounds compared with the baseline."""
    baseline = candidates[0]
    shown = [one for one in candidates if one.tried]  # a finding names the others
    base = baseline.race_rate if baseline.tried else 0.0
    ratios = {baseline.name: "1"} if against else {}
    ratios |= {name: one.ratio.text("{:.2f}".format) for name, one in against.items()}
    texts: dict[str, Callable[[Candidate], str]] = {
        "setting": lambda one: f"{one.name} ←" if one.name == chosen else one.name,
        "samples/s": lambda one: rate_text(one.race_rate or one.rate) if one.rate else "",
        "× baseline (race)": lambda one: f"{one.race_rate / base:.2f}" if base and one.race_rate else "",
        "× baseline (final rounds)": lambda one: ratios.get(one.name, ""),
        "first batch": lambda one: (
            seconds_text(statistics.median(one.first_batch_s)) if one.first_batch_s else ""
        ),
        "memory": lambda one: bytes_text(one.memory_bytes) if one.memory_bytes else "",
        "outcome": lambda one: _outcome(one, baseline, against.get(one.name)),
    }
    columns: Columns = [(title, [text(one) for one in shown]) for title, text in texts.items()]
    return [(title, cells) for title, cells in columns if any(cells)]


def _outcome(candidate: Candidate, baseline: Candidate, compared: Comparison | None) -> str:
    if (problem := candidate.failure or candidate.over_limit) is not None:
        return problem.message
    if candidate is baseline or candidate.kind == "headroom":
        return ""
    if compared is not None:
        return "too few rounds" if answer.is_undecided([compared]) else OUTCOMES[compared.outcome]
    if candidate.race_rate <= (1 + stats.MIN_DIFFERENCE) * baseline.race_rate:
        return "not faster in the race"
    return "another was faster in the race" if baseline.final_rates else "no time for final rounds"


def slowdown(turns: Sequence[tuple[Candidate, Record]]) -> float | None:
    """Return the ratio of the first turns' rates to the last ones' if rates fall from turn to turn.

    Each rate is taken relative to its candidate's median. None where there is no such trend, or where other
    processes began meanwhile.
    """
    usual = {candidate.name: candidate.rate for candidate, _ in turns}
    shares = [turn.samples_per_s / usual[one.name] for one, turn in turns if usual[one.name]]
    if len(shares) < 2 * stats.ENOUGH_ROUNDS:
        return None
    slope, chance = stats.trend(shares)
    third = max(1, len(shares) // 3)
    loads = [(turn.background.processors or 0.0) if turn.background else 0.0 for _, turn in turns]
    if statistics.median(loads[-third:]) - statistics.median(loads[:third]) > BACKGROUND_CPU:
        return None
    ratio = statistics.median(shares[:third]) / statistics.median(shares[-third:])
    return ratio if slope < -0.2 and chance < 0.001 and ratio > 1.5 else None
