"""Findings of a tuning: the choice among its finalists, its gain and its cost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

from iobench.advise import sentences
from iobench.advise.sentences import DECIDED, KEEP, LIMITED, NOT_BOTTLENECK, UNDECIDED
from iobench.advise.settings.candidate import HEADROOM, Candidate, compare_to_baseline
from iobench.advise.settings.search_space import code_of
from iobench.advise.settings.settings_race import SettingsRace
from iobench.advise.tuning_result import TuningResult, unsuccessful
from iobench.base.errors import InvalidSettings
from iobench.base.finding import Finding
from iobench.base.units import counted, rate_text
from iobench.results import stats
from iobench.results.background_signs import background_warnings
from iobench.results.run_warning import LONGER, Values
from iobench.results.stats import Comparison


def result_of(
    race: SettingsRace,
    candidates: Sequence[Candidate],
    finalists: Sequence[Candidate],
    skipped: Sequence[Finding],
    records: str | None,
    trains: bool,
) -> TuningResult:
    """Return what the final rounds of a race support; the first of both kinds of candidates is the baseline.

    InvalidSettings if no candidate fits the limits (``nothing-fits``).
    """
    baseline, against = finalists[0], compare_to_baseline(finalists)
    headroom = against.pop(HEADROOM, None)
    better = [one for one in finalists[1:] if one.name in against and against[one.name].outcome == "faster"]
    outcome, use = _choose(race, baseline, better, finalists, headroom)
    skipped = [*skipped, *unsuccessful(candidates)]
    untried = sum(int(one.values["skipped"] or 0) for one in skipped if one.kind == "no-time")
    late = untried or not baseline.final_rates
    if outcome == KEEP and (late or sentences.is_undecided(against.values())):
        outcome = UNDECIDED
    whole = all(one.whole_epochs for one in finalists if one.final_rates)
    findings = [
        _headline(outcome, use, against, candidates, untried),
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
        warnings=background_warnings(race.background),
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
        return sentences.not_bottleneck(evidence, {})
    if outcome == DECIDED:
        return sentences.gain(use.name, against[use.name].ratio, "the baseline", {})
    if outcome == LIMITED:
        message = f"Use {use.name}: the fastest setting within the limits, which the baseline exceeds"
        return Finding("limited", message, values={"use": use.name})
    tried = sum(bool(one.rates) for one in candidates[1:])
    if outcome == UNDECIDED and not sentences.is_undecided(against.values()):
        few = f"none of {counted(tried, 'other setting')} is faster, and no time was left for {untried} more"
        message = f"Undecided: {few if tried and untried else 'no time was left to compare settings'}"
        return Finding("undecided", message, LONGER, {"tried": tried, "untried": untried})
    return sentences.keep("your settings", list(against.values()), tried)


def _resources(race: SettingsRace, baseline: Candidate, use: Candidate) -> Iterator[Finding]:
    if use is baseline or use.memory_bytes is None or baseline.memory_bytes is None:
        return
    costs = [sentences.memory(one.memory_bytes) for one in (use, baseline)]
    values: Values = {"memory_bytes": use.memory_bytes, "baseline_memory_bytes": baseline.memory_bytes}
    if race.loader.knows_workers:
        workers = [race.loader.workers(one.changes) for one in (use, baseline)]
        costs = [f"{counted(n, 'worker')} and {cost}" for n, cost in zip(workers, costs, strict=True)]
        values |= {"workers": workers[0], "baseline_workers": workers[1]}
    yield Finding("resources", f"It uses {costs[0]}; baseline: {costs[1]}", values=values)


def _first_batch(baseline: Candidate, use: Candidate) -> Iterator[Finding]:
    """Yield the time to the first batch: workers start in every epoch."""
    if use is not baseline and use.first_batch_s and baseline.first_batch_s:
        yield sentences.first_batch(*(statistics.median(one.first_batch_s) for one in (use, baseline)))


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
    yield sentences.headroom(headroom.ratio, more, step_is_faster=int(faster_step))


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
