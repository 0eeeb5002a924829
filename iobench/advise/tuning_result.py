"""Result of a tuning: the settings to use, their gain and cost, or that the present ones are good."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from iobench.advise import sentences
from iobench.advise.answer import Answer
from iobench.advise.settings.candidate import HEADROOM, Candidate
from iobench.base.finding import Finding
from iobench.base.units import bytes_text, rate_text, seconds_text
from iobench.results import stats
from iobench.results.columns import Columns
from iobench.results.run_warning import LONGER
from iobench.results.stats import Comparison

OUTCOMES = {
    "faster": "faster",
    "slower": "slower",
    "equivalent": "as fast",
    "inconclusive": "no significant difference",
}


@dataclass(frozen=True, kw_only=True)
class TuningResult(Answer):
    """The settings to use, and the measurements behind them.

    The outcome is ``decided``: `use` is significantly faster than the baseline, by at least 5 %. ``keep``:
    nothing is. ``undecided``: too few rounds to tell. ``not-bottleneck``: no loader could bring 5 %.
    ``limited``: the baseline exceeds a limit, and `use` is the fastest candidate within it.
    """

    use: Candidate
    candidates: list[Candidate]  # everything that was tried; the first is the baseline
    against: dict[str, Comparison]  # each finalist compared with the baseline
    whole_epochs: bool  # the final rounds were whole epochs
    headroom: Comparison | None = None  # of the loop over batches already on the device

    def tables(self) -> Iterator[Columns]:
        """Yield the settings."""
        against = {**self.against, **({HEADROOM: self.headroom} if self.headroom else {})}
        if any(map(was_tried, self.candidates)):
            yield candidates_table(self.candidates, against, self.use.name if self.code else "")

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each setting."""
        return [
            {
                "setting": one.name,
                "samples_per_s": one.rate,
                "relative to baseline": against.ratio.median if against else None,
                "memory_bytes": one.memory_bytes,
                "use": one.name == self.use.name,
            }
            for one in self.candidates
            for against in [self.against.get(one.name)]
        ]


def unsuccessful(candidates: Sequence[Candidate]) -> Iterator[Finding]:
    """Yield the candidates that failed, and those that no time was left for."""
    yield from sentences.failures((one.name, one.failure) for one in candidates if one.failure)
    yield from sentences.no_time([one.name for one in candidates[1:] if not was_tried(one)], LONGER)


def was_tried(candidate: Candidate) -> bool:
    """Return True if there was time for a candidate."""
    return bool(candidate.rate or candidate.failure or candidate.over_limit)


def candidates_table(
    candidates: Sequence[Candidate], against: Mapping[str, Comparison], chosen: str = ""
) -> Columns:
    """Return the settings with their speed in the race, and final rounds compared with the baseline."""
    shown = [one for one in candidates if was_tried(one)]  # a finding names the others
    raced = [one.race_rate for one in shown]
    base = raced[0] if shown[:1] == list(candidates[:1]) else 0.0
    compared = {
        **({candidates[0].name: "1"} if against else {}),
        **{name: one.ratio.text("{:.2f}".format) for name, one in against.items()},
    }
    outcomes: list[str | None] = [_outcome(one, candidates[0], against.get(one.name)) for one in shown]
    columns: Columns = [
        ("setting", [f"{one.name} ←" if one.name == chosen else one.name for one in shown]),
        ("samples/s", [rate_text(one.race_rate or one.rate) if one.rate else "" for one in shown]),
        ("× baseline (race)", [f"{rate / base:.2f}" if base and rate else "" for rate in raced]),
        ("× baseline (final rounds)", [compared.get(one.name, "") for one in shown]),
        (
            "first batch",
            [
                seconds_text(statistics.median(one.first_batch_s)) if one.first_batch_s else ""
                for one in shown
            ],
        ),
        ("memory", [bytes_text(one.memory_bytes) if one.memory_bytes else "" for one in shown]),
        ("outcome", outcomes),
    ]
    return [(title, cells) for title, cells in columns if any(cells)]


def _outcome(candidate: Candidate, baseline: Candidate, compared: Comparison | None) -> str:
    """Return what became of a candidate, in words."""
    if (problem := candidate.failure or candidate.over_limit) is not None:
        return problem.message
    if candidate is baseline or candidate.kind == "headroom":
        return ""
    if compared is not None and sentences.is_undecided([compared]):
        return "too few rounds"
    if compared is not None:
        return OUTCOMES[compared.outcome]
    if candidate.race_rate <= (1 + stats.MIN_DIFFERENCE) * baseline.race_rate:
        return "not faster in the race"
    return "another was faster in the race" if baseline.final_rates else "no time for final rounds"
