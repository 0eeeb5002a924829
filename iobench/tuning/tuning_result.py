"""Result of a tuning: the settings to use, their gain and cost, or that the present ones are good."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from iobench.base.errors import InvalidSettings
from iobench.base.finding import Finding
from iobench.base.units import bytes_text, counted, rate_text, seconds_text
from iobench.results import stats
from iobench.results.background_signs import background_warnings
from iobench.results.run_warning import RunWarning
from iobench.results.stats import Comparison
from iobench.results.verdict import ratio_text
from iobench.tuning.candidate import HEADROOM, Candidate, compare_to_baseline
from iobench.tuning.search_space import code_of
from iobench.tuning.settings_race import SettingsRace

KEEP, DECIDED, NOT_BOTTLENECK, LIMITED = "keep", "decided", "not-bottleneck", "limited"
LONGER = "give a longer --max-time"


@dataclass(frozen=True)
class TuningResult:
    """The settings to use, and the measurements behind them.

    Attributes
    ----------
    outcome : str
        ``decided``: `use` is significantly faster than the baseline, by at least 5 %. ``keep``: nothing is.
        ``not-bottleneck``: no loader could bring 5 %. ``limited``: the baseline exceeds a limit, and `use`
        is the fastest candidate within it.
    use : Candidate
        The settings to use.
    candidates : list of Candidate
        Everything that was tried; the first is the baseline.
    against : dict of str to Comparison
        Each finalist compared with the baseline.
    findings : list of Finding
        The answer and the evidence, most important first.
    whole_epochs : bool
        The final rounds were whole epochs.
    headroom : Comparison or None
        Loop over batches already on the device, compared with the baseline.
    code : str
        Python code for the settings.
    skipped : list of Finding
        Settings that were not tried or failed, and why.
    warnings : list of RunWarning
        Reasons not to believe the figures.
    records : str or None
        Path of the record file.
    """

    outcome: str
    use: Candidate
    candidates: list[Candidate]
    against: dict[str, Comparison]
    findings: list[Finding]
    whole_epochs: bool
    headroom: Comparison | None = None
    code: str = ""
    skipped: list[Finding] = field(default_factory=list)
    warnings: list[RunWarning] = field(default_factory=list)
    records: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return all fields, for JSON."""
        return {
            **vars(self),
            "use": self.use.as_dict(),
            "candidates": [one.as_dict() for one in self.candidates],
            "against": {name: asdict(one) for name, one in self.against.items()},
            "findings": [asdict(one) for one in self.findings],
            "headroom": asdict(self.headroom) if self.headroom else None,
            "skipped": [asdict(one) for one in self.skipped],
            "warnings": [one.as_dict() for one in self.warnings],
        }


def result_of(
    race: SettingsRace,
    candidates: Sequence[Candidate],
    finalists: Sequence[Candidate],
    skipped: Sequence[Finding],
    records: str | None,
    trains: bool,
) -> TuningResult:
    """Return what the final rounds support.

    Parameters
    ----------
    race : SettingsRace
        The race, after its final rounds.
    candidates : sequence of Candidate
        Everything that took part; the first is the baseline.
    finalists : sequence of Candidate
        Those of the final rounds; the first is the baseline.
    skipped : sequence of Finding
        Why other settings were not tried.
    records : str or None
        Path of the record file.
    trains : bool
        There was a training step.

    Raises
    ------
    InvalidSettings
        No candidate fits the limits (``nothing-fits``).
    """
    baseline, against = finalists[0], compare_to_baseline(finalists)
    headroom = against.pop(HEADROOM, None)
    better = [one for one in finalists[1:] if one.name in against and against[one.name].outcome == "faster"]
    outcome, use = _choose(race, baseline, better, finalists, headroom)
    whole = all(one.whole_epochs for one in finalists if one.final_rates)
    findings = [
        _headline(outcome, use, against.get(use.name), candidates),
        *_resources(race, baseline, use),
        *_first_batch(baseline, use),
        *(_training(baseline, headroom) if trains else ()),
        _basis(baseline, whole, interleaved=len(finalists) > 1),
    ]
    return TuningResult(
        outcome,
        use,
        [*candidates, *(one for one in finalists if one.make is not None)],
        against,
        findings,
        whole,
        headroom,
        code_of(race.loader, use.changes) if use.changes else "",
        [*skipped, *_unsuccessful(candidates)],
        background_warnings(race.background),
        records,
    )


def _choose(
    race: SettingsRace,
    baseline: Candidate,
    better: Sequence[Candidate],
    finalists: Sequence[Candidate],
    headroom: Comparison | None,
) -> tuple[str, Candidate]:
    if baseline.over_limit:
        return LIMITED, _fastest_within_limits(baseline, finalists[1:])
    if better:
        best = max(one.rate for one in better)
        close = [one for one in better if one.rate >= (1 - stats.MIN_DIFFERENCE) * best]
        return DECIDED, min(close, key=lambda one: (race.loader.workers(one.changes), len(one.changes)))
    highest = headroom.ratio.high if headroom is not None else None
    fed = highest is not None and highest < 1 + stats.MIN_DIFFERENCE
    return (NOT_BOTTLENECK if fed else KEEP), baseline


def _fastest_within_limits(baseline: Candidate, others: Sequence[Candidate]) -> Candidate:
    fitting = [one for one in others if one.final_rates and not one.failure and one.make is None]
    if not fitting:
        reasons = [f"{one.name} {one.failure.message}" for one in others if one.failure]
        raise nothing_fits([f"{baseline.name} {baseline.over_limit}", *reasons])
    return max(fitting, key=lambda one: one.rate)


def nothing_fits(reasons: Sequence[str]) -> InvalidSettings:
    """Return the error for limits that no settings fit."""
    return InvalidSettings(
        f"no settings fit the limits: {'; '.join(reasons)}",
        kind="nothing-fits",
        hint="raise --max-memory or --max-workers",
    )


def _headline(
    outcome: str, use: Candidate, comparison: Comparison | None, candidates: Sequence[Candidate]
) -> Finding:
    if outcome == NOT_BOTTLENECK:
        return Finding(
            outcome,
            "Loading is not the bottleneck: with batches already on the device the loop gains less than 5 %. "
            "Keep your settings",
        )
    others = sum(bool(one.rates) for one in candidates[1:])
    if outcome == KEEP and not others:
        return Finding(outcome, "Keep your settings: no others could be tried", values={"tried": 0})
    if outcome == KEEP:
        slower = f"none of the {others} others is" if others > 1 else "the only other one is not"
        message = f"Keep your settings: {slower} significantly (5 %) faster"
        return Finding(outcome, message, values={"tried": others})
    if outcome == LIMITED or comparison is None:
        message = f"Use {use.name}: the fastest setting within the limits, which the baseline exceeds"
        return Finding(LIMITED, message, values={"use": use.name})
    gain = comparison.ratio.median
    message = f"Use {use.name}: {ratio_text(comparison.ratio, 'as fast as the baseline')}"
    return Finding(outcome, message, values={"use": use.name, "gain": gain})


def _resources(race: SettingsRace, baseline: Candidate, use: Candidate) -> Iterator[Finding]:
    if use is baseline or use.memory_bytes is None or baseline.memory_bytes is None:
        return
    costs = [f"{bytes_text(one.memory_bytes or 0)} of memory" for one in (use, baseline)]
    values: dict[str, float | int | str] = {
        "memory_bytes": use.memory_bytes,
        "baseline_memory_bytes": baseline.memory_bytes,
    }
    if race.loader.knows_workers:
        workers = [race.loader.workers(one.changes) for one in (use, baseline)]
        costs = [f"{counted(n, 'worker')} and {cost}" for n, cost in zip(workers, costs, strict=True)]
        values |= {"workers": workers[0], "baseline_workers": workers[1]}
    yield Finding("resources", f"It uses {costs[0]}; baseline: {costs[1]}", values=values)


def _first_batch(baseline: Candidate, use: Candidate) -> Iterator[Finding]:
    """Yield the time to the first batch: workers start in every epoch."""
    if use is not baseline and use.first_batch_s and baseline.first_batch_s:
        seconds = [statistics.median(one.first_batch_s) for one in (use, baseline)]
        yield Finding(
            "first-batch",
            f"First batch of an epoch after {seconds_text(seconds[0])}; baseline: {seconds_text(seconds[1])}",
            values={"first_batch_s": seconds[0], "baseline_first_batch_s": seconds[1]},
        )


def _training(baseline: Candidate, headroom: Comparison | None) -> Iterator[Finding]:
    """Yield the share of time that the step waits, and the gain if it never waited."""
    waits = statistics.median(baseline.wait_shares) if baseline.wait_shares else None
    if waits is not None:
        message = f"Baseline: the step waits {waits:.1%} of the time"
        yield Finding("wait-share", message, values={"wait_share": waits})
    if headroom is None:
        return
    # more gain than the waiting explains: the step itself is faster while no loader competes with it
    faster_step = waits is not None and (1 - waits) * headroom.ratio.median > 1 + stats.MIN_DIFFERENCE
    message = (
        f"With batches already on the device the loop is {ratio_text(headroom.ratio, 'as fast')}: "
        "no loader can bring more"
    )
    if faster_step:
        message += "; part of it is a faster step, since no loader uses the CPU"
    yield Finding(
        "headroom",
        message,
        values={"ratio": headroom.ratio.median, "step_is_faster": int(faster_step)},
    )


def _basis(baseline: Candidate, whole: bool, interleaved: bool) -> Finding:
    rounds = len(baseline.final_rates)
    measured = "whole epochs" if whole else f"the first batches of an epoch (baseline: {baseline.batches:,})"
    return Finding(
        "whole-epochs" if whole else "partial-epochs",
        f"Measured in {counted(rounds, 'interleaved round' if interleaved else 'round')} over {measured}; "
        f"baseline: {rate_text(baseline.rate)} samples/s",
        hint=None if whole else f"whole epochs need more time: {LONGER}",
        values={"rounds": rounds, "batches": baseline.batches, "samples_per_s": baseline.rate},
    )


def _unsuccessful(candidates: Sequence[Candidate]) -> Iterator[Finding]:
    for one in candidates:
        if one.failure:
            values = {**one.failure.values, "setting": one.name}
            yield Finding(one.failure.kind, f"{one.name}: {one.failure.message}", one.failure.hint, values)
    late = "; ".join(one.name for one in candidates if not one.rates and not one.failure)
    if late:
        yield Finding("no-time", f"no time was left for {late}", hint=LONGER, values={"settings": late})
