"""Result of a tuning: the settings to use, their gain and cost, or that the present ones are good."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from iobench.advise import answer
from iobench.advise.answer import DECIDED, KEEP, LIMITED, NOT_BOTTLENECK, UNDECIDED, Answer
from iobench.advise.checks.evidence import Advice, Gain
from iobench.advise.settings.candidate import HEADROOM, Candidate, compare_to_baseline
from iobench.advise.settings.search_space import code_of
from iobench.advise.settings.settings_race import SettingsRace
from iobench.base.errors import InvalidSettings
from iobench.base.finding import Finding
from iobench.base.units import bytes_text, counted, rate_text, seconds_text
from iobench.results import stats
from iobench.results.background_signs import background_warnings
from iobench.results.display import Columns
from iobench.results.run_warning import LONGER, Values
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
    yield from answer.failures((one.name, one.failure) for one in candidates if one.failure)
    yield from answer.no_time([one.name for one in candidates[1:] if not was_tried(one)], LONGER)


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
    if compared is not None and answer.is_undecided([compared]):
        return "too few rounds"
    if compared is not None:
        return OUTCOMES[compared.outcome]
    if candidate.race_rate <= (1 + stats.MIN_DIFFERENCE) * baseline.race_rate:
        return "not faster in the race"
    return "another was faster in the race" if baseline.final_rates else "no time for final rounds"


def result_of(
    race: SettingsRace,
    candidates: Sequence[Candidate],
    finalists: Sequence[Candidate],
    skipped: Sequence[Finding],
    records: str | None,
    trains: bool,
    work: tuple[Advice, Candidate | None] | None = None,
) -> TuningResult:
    """Return what the final rounds of a race support; the first of both kinds of candidates is the baseline.

    `work` is what takes the time of samples, whatever the settings, and the candidate that tries its remedy.

    InvalidSettings if no candidate fits the limits (``nothing-fits``).
    """
    baseline, against = finalists[0], compare_to_baseline(finalists)
    headroom = against.pop(HEADROOM, None)
    settings = {one.name: against[one.name] for one in finalists if one.name in against and not one.make}
    better = [one for one in finalists if one.name in settings and settings[one.name].outcome == "faster"]
    outcome, use = _choose(race, baseline, better, finalists, headroom)
    skipped = [*skipped, *unsuccessful(candidates)]
    untried = sum(int(one.values["skipped"] or 0) for one in skipped if one.kind == "no-time")
    late = untried or not baseline.final_rates
    if outcome == KEEP and (late or answer.is_undecided(settings.values())):
        outcome = UNDECIDED
    whole = all(one.whole_epochs for one in finalists if one.final_rates)
    warnings = background_warnings(race.background)
    findings = [
        _headline(outcome, use, settings, candidates, untried),
        *(_beyond(*work, against, bool(warnings)) if work and outcome != NOT_BOTTLENECK else ()),
        *_resources(race, baseline, use),
        *_first_batch(baseline, use),
        *(_training(baseline, headroom) if trains else ()),
        *([_basis(baseline, whole, interleaved=len(finalists) > 1)] if baseline.final_rates else []),
    ]
    return TuningResult(
        outcome=outcome,
        use=use,
        candidates=[*candidates, *(one for one in finalists if one.make is not None)],
        against=against,
        findings=findings,
        whole_epochs=whole,
        headroom=headroom,
        code=code_of(race.loader, use.changes) if use.changes else "",
        skipped=skipped,
        warnings=warnings,
        records=[records] if records else [],
    )


def next_step(result: TuningResult, target: str, max_time_s: float) -> str:
    """Return what to write or to type after a tuning of a target."""
    if result.outcome == UNDECIDED:
        return f"iobench tune {target} --max-time {math.ceil(2 * max_time_s)}"
    if result.code.startswith("DataLoader("):
        return f"return this DataLoader in {target}, where loader is the one that it makes now"
    if result.code:
        return f"call {target} with {result.code}"
    if result.outcome == NOT_BOTTLENECK:
        return "make the training step faster: loading keeps up with it"
    return f"iobench diagnose {target}, which says what takes the time of each sample"


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
    fitting = [one for one in others if one.rate and not one.failure and one.make is None]
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
    outcome: str,
    use: Candidate,
    against: Mapping[str, Comparison],
    candidates: Sequence[Candidate],
    untried: int,
) -> Finding:
    if outcome == NOT_BOTTLENECK:
        evidence = "with batches already on the device the loop gains less than 5 %. Keep your settings"
        return answer.not_bottleneck(evidence, {})
    if outcome == DECIDED:
        return answer.gain(use.name, against[use.name].ratio, "the baseline", {})
    if outcome == LIMITED:
        message = f"Use {use.name}: the fastest setting within the limits, which the baseline exceeds"
        return Finding("limited", message, values={"use": use.name})
    tried = sum(bool(one.rates) for one in candidates[1:])
    if outcome == UNDECIDED and not answer.is_undecided(against.values()):
        few = f"none of {counted(tried, 'other setting')} is faster, and no time was left for {untried} more"
        message = f"Undecided: {few if tried and untried else 'no time was left to compare settings'}"
        return Finding("undecided", message, LONGER, {"tried": tried, "untried": untried})
    return answer.keep("your settings", list(against.values()), tried)


def _beyond(
    cause: Advice, trial: Candidate | None, against: Mapping[str, Comparison], busy: bool
) -> Iterator[Finding]:
    """Work for each sample that no setting changes, with its remedy, unless its final rounds refute that."""
    values: Values = {"cause": cause.kind, **cause.values}
    compared = against.get(trial.name) if trial is not None else None
    if trial is None or compared is None or compared.outcome == "inconclusive":
        yield Finding("beyond-settings", f"Beyond settings: {cause.message}", cause.hint, values)
    elif compared.outcome == "faster":
        gain = Gain(trial, compared.ratio, busy)
        message = f"Beyond settings, {gain.text}: {cause.message}"
        yield Finding("beyond-settings", message, cause.hint, {**values, "gain": gain.times})


def _resources(race: SettingsRace, baseline: Candidate, use: Candidate) -> Iterator[Finding]:
    if use is baseline or use.memory_bytes is None or baseline.memory_bytes is None:
        return
    costs = [answer.memory(one.memory_bytes) for one in (use, baseline)]
    values: Values = {"memory_bytes": use.memory_bytes, "baseline_memory_bytes": baseline.memory_bytes}
    if race.loader.knows_workers:
        workers = [race.loader.workers(one.changes) for one in (use, baseline)]
        costs = [f"{counted(n, 'worker')} and {cost}" for n, cost in zip(workers, costs, strict=True)]
        values |= {"workers": workers[0], "baseline_workers": workers[1]}
    yield Finding("resources", f"It uses {costs[0]}; baseline: {costs[1]}", values=values)


def _first_batch(baseline: Candidate, use: Candidate) -> Iterator[Finding]:
    """Yield the time to the first batch: workers start in every epoch."""
    if use is not baseline and use.first_batch_s and baseline.first_batch_s:
        own_s, other_s = (statistics.median(one.first_batch_s) for one in (use, baseline))
        message = f"First batch of an epoch after {seconds_text(own_s)}; baseline: {seconds_text(other_s)}"
        values: Values = {"first_batch_s": own_s, "baseline_first_batch_s": other_s}
        yield Finding("first-batch", message, values=values)


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
    more = "; part of it is a faster step, since no loader uses the CPU" if faster_step else ""
    yield answer.headroom(headroom.ratio, more, step_is_faster=int(faster_step))


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
