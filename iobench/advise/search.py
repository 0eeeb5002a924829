"""Search: a race of all candidates, then final rounds of the finalists."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from iobench import formats
from iobench.advise import measured_data
from iobench.advise.candidates import candidate_set
from iobench.advise.finalist_roles import FINAL, rank_of, roles_of
from iobench.advise.measured_data import MeasuredData
from iobench.advise.recommendation import FASTEST
from iobench.advise.requirements import Requirements
from iobench.advise.sample_writer import OutOfTime
from iobench.advise.unmeasured import ended_early, no_final_rounds, nothing_measured, skipped_finalists
from iobench.base.errors import IobenchError, RecordError
from iobench.base.finding import Finding
from iobench.base.units import counted, seconds_text
from iobench.bench.case import Case, content_of
from iobench.bench.observer import Observer
from iobench.bench.options import RunOptions
from iobench.bench.outcome import Run
from iobench.bench.proof import Proof
from iobench.bench.run import run
from iobench.bench.run_strategies import AUTO, UNLIMITED
from iobench.bench.search_strategies import FinalRounds, SuccessiveHalving
from iobench.bench.strategy import COMPARED
from iobench.dataset.manifest import Manifest
from iobench.host.device import pick_device
from iobench.results.stats import ENOUGH_ROUNDS

PROVING, RACING = 0.2, 0.1  # at most, of the time left after writing: content checks, and the race
FINAL_BEFORE_STEP = 0.5  # as `FINAL`, with a training step
STEPPED = 0.8  # at most, of the time left for rounds with the step
HALF_ROUNDS = 7
MIN_HALF_S = 3.0  # for rounds over half as many samples
OVERTIME = 0.05  # of the time, for rounds without which there is no answer


@dataclass
class SearchResult:
    """Runs of a search."""

    data: MeasuredData
    race: Run
    final: Run  # final rounds of the finalists; the race again where there are none
    roles: dict[str, list[str]]  # why a case is a finalist, by its key
    skipped: list[Finding]  # candidates that were not measured, and why
    with_step: Run | None = None  # final rounds with the training step
    half_size: Run | None = None  # rounds of the fastest case over half as many samples
    notes: list[Finding] = field(default_factory=list)  # what could not be done
    confirmed: bool = True  # there were final rounds

    def final_case(self, case: Case) -> Case:
        """Return a case of the race as it is, or would be, in the final rounds."""
        return replace(case, isolated=self.final.cases[0].isolated)

    @property
    def finalists(self) -> list[Case]:
        """Cases of the final rounds."""
        return [case for case in self.final.cases if case.key in self.roles]


def search(data: MeasuredData, requirements: Requirements, observer: Observer, began: float) -> SearchResult:
    """Race all candidates, then measure the finalists again; `began` is the start of the time limit.

    InvalidSettings if nothing fits (``nothing-fits``), LoaderFailed if no case could be measured
    (``no-case-measured``).
    """
    device = str(pick_device(requirements.device))
    words = _stored(data, requirements.formats)
    requirements = replace(requirements, full_bytes=data.full_bytes, formats=words)
    cache = "cold" if data.cold else "warm"
    candidates = candidate_set(data.manifest, requirements, device, cache, data.added)
    observer.status(f"requirements: {requirements.describe(data.cache)}")
    end = began + requirements.max_time_s
    left_s = end - time.monotonic()
    options = RunOptions(cache=(cache,), seed=requirements.seed, limits=False, prices=requirements.prices)
    opening = COMPARED + bool(data.added)  # the default, a likely rival, and one that needs no conversion
    halving = SuccessiveHalving(RACING * left_s, proofs_s=PROVING * left_s, end_s=left_s, opening=opening)
    race = run(data.manifest, options, observer=observer, cases=candidates.cases, strategy=halving)
    roles = roles_of(race, data, requirements, end - time.monotonic())
    if not roles:
        raise race.ended or nothing_measured(race, requirements)
    skipped = [*data.skipped, *candidates.skipped]
    so_far = SearchResult(data, race, race, roles, skipped, confirmed=False)
    if race.ended or time.monotonic() > end:
        so_far.notes += ended_early(race.ended, "race") if race.ended else no_final_rounds()
        return so_far
    return _confirmed(so_far, requirements, options, end, observer)


def _confirmed(
    so_far: SearchResult, requirements: Requirements, options: RunOptions, end: float, observer: Observer
) -> SearchResult:
    """Measure the finalists of a race again; its own figures count where that ends too early."""
    data, race, roles = so_far.data, so_far.race, so_far.roles
    chosen, roles = same_isolation([case for case in race.cases if case.key in roles], roles)
    share = FINAL_BEFORE_STEP if requirements.step_ms else FINAL
    times = share * (end - time.monotonic()), end + OVERTIME * requirements.max_time_s
    try:
        limited = replace(options, limits=True)
        final = final_rounds(data.manifest, chosen, limited, AUTO, times, observer, race.proofs)
        ended = final.ended
    except RecordError as error:  # a full disk
        final, ended = replace(race, records=[]), error
    if ended and not final.valid_records:
        so_far.notes += ended_early(ended, "final rounds")
        return so_far
    if not final.valid_records:
        raise nothing_measured(final, requirements)
    result = SearchResult(data, race, final, roles, so_far.skipped)
    result.notes += [*skipped_finalists(final, "final rounds"), *ended_early(ended, "final rounds")]
    if not ended:
        _more_rounds(result, requirements, options, end, observer)
    return result


def _stored(data: MeasuredData, words: Sequence[str]) -> tuple[str, ...]:
    """Return those of the formats asked for that there was time to write, if a sample was written."""
    if data.source is None or "all" in words:
        return tuple(words)
    stored = {*data.manifest.artifacts, *data.added}
    return tuple(word for word in words if formats.parse(word).variant in stored)


def _more_rounds(
    result: SearchResult, requirements: Requirements, options: RunOptions, end: float, observer: Observer
) -> None:
    """Measure the finalists with the training step, then the fastest over half as many samples."""
    stepping = steppable(result, result.final.cases, requirements, end - time.monotonic())
    stepped = run_with_step(result.data.manifest, stepping, requirements, end, options, observer)
    if stepped is not None:
        result.with_step = stepped if stepped.valid_records else None
        if not result.final.skipped:  # else they were reported already
            result.notes += skipped_finalists(stepped, "rounds with the step")
        result.notes += ended_early(stepped.ended, "rounds with the step")
        if stepped.ended:
            return
    fastest = next(case for case in result.final.cases if FASTEST in result.roles[case.key])
    if len({one.round for one in result.final.valid_records}) < ENOUGH_ROUNDS:
        return  # there was hardly time for the answer
    try:
        half = half_size(result.data, fastest, options, end, observer)
    except OutOfTime:
        return
    except IobenchError as error:  # the answer does not depend on it
        message = f"Not measured: whether the speed depends on the amount of data ({error})"
        result.notes.append(Finding("half-size-failed", message, values={"error": error.kind}))
        return
    result.half_size = half if half and not half.ended else None
    result.notes += ended_early(half.ended, "rounds over half the samples") if half else ()


def same_isolation(
    cases: Sequence[Case], roles: dict[str, list[str]]
) -> tuple[list[Case], dict[str, list[str]]]:
    """Return the finalists, most important first, all in processes of their own if one needs it."""
    isolated = any(case.isolated for case in cases)
    cases = sorted(cases, key=lambda case: rank_of(roles[case.key]))
    alike = [replace(case, isolated=isolated) for case in cases]
    return alike, {new.key: roles[old.key] for old, new in zip(cases, alike, strict=True)}


def final_rounds(
    manifest: Manifest,
    cases: Sequence[Case],
    options: RunOptions,
    rounds: int | str,
    times: tuple[float, float],
    observer: Observer,
    proofs: Mapping[str, Proof] = MappingProxyType({}),
) -> Run:
    """Measure again: a winner picked from noisy rounds must not keep its lucky figure.

    `times` are the seconds for the rounds, and the end of the time limit; `proofs` those of the race, by key.
    """
    max_time_s, end = times
    options = replace(options, rounds=str(rounds), max_time=max(1.0, round(max_time_s)))
    count = UNLIMITED if rounds == AUTO else int(rounds)
    strategy = FinalRounds(max_time_s, count, end_s=end - time.monotonic(), proofs=proofs)
    return run(manifest, options, observer=observer, cases=cases, strategy=strategy)


def steppable(
    result: SearchResult, cases: Sequence[Case], requirements: Requirements, left_s: float
) -> list[Case]:
    """Return the finalists that there is time to check and measure once with the step, at least two.

    The fastest comes first, then the default; the others are noted.
    """
    if not requirements.step_ms:
        return []
    samples, taken, needed_s = result.data.manifest.schema.samples, list[Case](), 0.0
    for case in sorted(cases, key=lambda case: rank_of(result.roles[case.key])):
        needed_s += 2 * math.ceil(samples / case.batch_size) * requirements.step_s(case.batch_size)
        if needed_s <= left_s:
            taken.append(case)
    taken = taken if len(taken) >= min(COMPARED, len(cases)) else []
    if len(taken) < len(cases):
        which = f"all but {counted(len(taken), 'case')}" if taken else "all cases"
        note = Finding(
            "no-time-for-step",
            f"No time for rounds with the step of {which}: these need about {seconds_text(needed_s)}",
            values={
                "needed_s": requirements.max_time_s + needed_s,
                "measured": len(taken),
                "cases": len(cases),
            },
        )
        result.notes.append(note)
    return [case for case in cases if case in taken]


def run_with_step(
    manifest: Manifest,
    cases: Sequence[Case],
    requirements: Requirements,
    end: float,
    options: RunOptions,
    observer: Observer,
) -> Run | None:
    """Run final rounds with the training step; None without cases."""
    if not cases:
        return None
    stepping = [
        replace(case, model=requirements.model)
        if requirements.model != "none"
        else replace(case, step_s=requirements.step_s(case.batch_size))
        for case in cases
    ]
    times = (STEPPED * (end - time.monotonic()), end)
    return final_rounds(manifest, stepping, options, AUTO, times, observer)


def half_size(
    data: MeasuredData, fastest: Case, options: RunOptions, end: float, observer: Observer
) -> Run | None:
    """Measure the fastest case over half as many samples, which shows if its rate depends on their number.

    None where there is no time or no source, and for the user's own files.
    """
    if end - time.monotonic() < MIN_HALF_S or data.manifest.artifacts[fastest.variant].added:
        return None
    manifest = measured_data.half_sample(data, [fastest.variant], end - MIN_HALF_S)
    if manifest is None:
        return None
    smaller = replace(fastest, dataset=manifest.name, content=content_of(manifest))
    return final_rounds(manifest, [smaller], options, HALF_ROUNDS, (end - time.monotonic(), end), observer)
