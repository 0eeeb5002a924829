"""The race, and the fresh rounds of those that it leaves."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from iobench.base.errors import (
    IobenchError,
)
from iobench.base.units import counted, seconds_text
from iobench.bench.case import Case
from iobench.bench.observer import Observer
from iobench.bench.options import RunOptions
from iobench.bench.outcome import Run
from iobench.bench.round_plan import AUTO
from iobench.bench.run import run
from iobench.bench.successive_halving import COMPARED, UNLIMITED, FinalRounds, SuccessiveHalving
from iobench.dataset.manifest import Manifest
from iobench.host.device import pick_device
from iobench.recommendation import measured_data
from iobench.recommendation.candidates import candidate_set, default_case, loader_word, packages_of
from iobench.recommendation.measured_data import Data
from iobench.recommendation.requirements import Requirements
from iobench.recommendation.unmeasured import left_out, nothing, too_late
from iobench.results.cases import key_of

PROVING, RACING = 0.35, 0.3  # at most, of the time that is left after writing
AGAIN, AGAIN_STEPPED = 0.6, 0.5  # at most, of what is left then, without and with rounds with the step
STEPPED = 0.8  # at most, of what is left for rounds with the step
HALF_ROUNDS = 7
RUNNERS_UP, NEAR = 3, 0.8  # at most, and how fast all but the first are: few rounds say little of order
LEAST_S = 3.0  # that rounds over half as many samples need
OTHER_LOADERS = 3  # at most: whether a loader reads on while the step runs is not seen without the step
FASTEST, RUNNER_UP, DEFAULT, CHEAPEST = "fastest", "runner-up", "default", "cheapest that feeds the step"
OTHER_LOADER = "fastest of its loader"


@dataclass
class Found:
    """What came of it: the race, fresh rounds of its finalists, and the same with the training step.

    `roles` says why a case is a finalist, by its key. `halved` are rounds over half as many samples.
    `remarks` are sentences about what could not be done.
    """

    data: Data
    race: Run
    final: Run
    roles: dict[str, list[str]]
    not_tried: list[str]
    stepped: Run | None = None
    halved: Run | None = None
    remarks: list[str] = field(default_factory=list)

    def again(self, case: Case) -> Case:
        """A case of the race as it is, or would be, measured again."""
        return replace(case, isolated=self.final.cases[0].isolated)

    @property
    def finalists(self) -> list[Case]:
        """Those that were measured again."""
        return [case for case in self.final.cases if case.key in self.roles]


def search(data: Data, requirements: Requirements, observer: Observer, began: float) -> Found:
    """Race all that take part, measure the few that matter again, and check what it rests on.

    InvalidSettings where nothing fits, or no case could be measured in the time there is.
    """
    device = str(pick_device(requirements.device))
    requirements = replace(requirements, full_bytes=data.full_bytes)
    field_ = candidate_set(data.manifest, requirements, device, data.cache, data.added)
    observer.status(f"for {requirements.told(data.cold)}")
    end = began + requirements.max_time_s
    left_s = end - time.monotonic()
    options = RunOptions(cache=(data.cache,), seed=requirements.seed, limits=False)
    race = SuccessiveHalving(RACING * left_s, proofs_s=PROVING * left_s, end_s=left_s)
    raced = run(data.manifest, options, observer=observer, cases=field_.cases, strategy=race)
    if raced.interrupted:
        raise KeyboardInterrupt
    roles = _roles(raced, data, requirements, end - time.monotonic())
    if not roles:
        raise nothing(raced, requirements)
    if time.monotonic() > end:
        raise too_late(raced, requirements)
    chosen, roles = _alike([case for case in raced.cases if case.key in roles], roles)
    fresh = replace(options, limits=True)
    again_s = (AGAIN_STEPPED if requirements.step_ms else AGAIN) * (end - time.monotonic())
    final = _again(data.manifest, chosen, fresh, AUTO, (again_s, end), observer)
    if not final.valid_records:
        raise nothing(final, requirements)
    found = Found(data, raced, final, roles, [*data.left_out, *field_.not_tried])
    found.remarks += left_out(final, "again", requirements)
    stepping = _steppable(found, chosen, requirements, end - time.monotonic())
    found.stepped = _with_step(data.manifest, stepping, requirements, end, options, observer)
    if found.stepped is not None and not final.skipped:  # or it was said of them already
        found.remarks += left_out(found.stepped, "with the step", requirements)
    fastest = next(case for case in chosen if FASTEST in roles[case.key])
    try:
        found.halved = _on_half(data, fastest, options, end, observer)
    except IobenchError as error:  # all that matters is there
        found.remarks.append(f"Whether speed depends on how much data there is was not looked at: {error}.")
    return found


def _alike(cases: Sequence[Case], roles: dict[str, list[str]]) -> tuple[list[Case], dict[str, list[str]]]:
    """The finalists, who matters most first, in processes of their own if one needs it, and their roles."""
    apart = any(case.isolated for case in cases)
    cases = sorted(cases, key=lambda case: _rank(roles[case.key]))
    alike = [replace(case, isolated=apart) for case in cases]
    return alike, {new.key: roles[old.key] for old, new in zip(cases, alike, strict=True)}


def rate_of(run: Run, key: str) -> float | None:
    """The median samples/s of a case; None where it was not measured."""
    rates = [made.samples_per_s for made in run.valid_records if key_of(made.case) == key]
    return statistics.median(rates) if rates else None


def _roles(raced: Run, data: Data, requirements: Requirements, left_s: float) -> dict[str, list[str]]:
    """Why which cases are measured again, by key, `left_s` seconds being left for that."""
    rates = {case.key: rate for case in raced.cases if (rate := rate_of(raced, case.key)) is not None}
    if not rates:
        return {}
    ordered = sorted(rates, key=lambda key: rates[key], reverse=True)
    named = [(FASTEST, ordered[0]), *((RUNNER_UP, key) for key in runners_up(rates))]
    measured = [case for case in raced.cases if case.key in rates]
    if (default := default_case(measured, data.usual)) is not None:
        named.append((DEFAULT, default.key))
    if requirements.step_ms:
        known = {key for _, key in named}
        stepping = _for_step(measured, rates, known, data.manifest, requirements)
        size = requirements.batch_sizes[0]
        epoch_s = data.manifest.schema.samples / size * requirements.step_s(size)
        named += stepping[: max(1, int(left_s / 2 / epoch_s) - len(known))]  # each is proved and measured
    roles: dict[str, list[str]] = {}
    for role, key in named:
        roles.setdefault(key, []).append(role)
    return roles


def _for_step(
    measured: Sequence[Case], rates: Mapping[str, float], known: set[str], manifest: Manifest, requirements: Requirements
) -> list[tuple[str, str]]:
    """Who may feed the step: what costs least, and the fastest of other loaders, which may read beside it.

    Of these only who would train faster, if it did, than the fastest does if that reads between steps.
    """

    def enough(case: Case) -> float:
        return case.batch_size / requirements.step_s(case.batch_size)

    def cost(case: Case) -> tuple[object, ...]:
        return rates[case.key] < enough(case), *cost_of(case, manifest), -rates[case.key]

    quickest = max(measured, key=lambda case: rates[case.key])
    sure = 1 / (1 / rates[quickest.key] + 1 / enough(quickest))
    feeding = [case for case in measured if rates[case.key] >= enough(case)]
    cheapest = [min(feeding, key=cost)] if feeding else []
    taken = {loader_word(case) for case in measured if case in cheapest or case.key in known}
    fastest = {loader_word(case): case for case in sorted(measured, key=lambda case: rates[case.key])}
    others = sorted(
        (
            case
            for word, case in fastest.items()
            if word not in taken and min(rates[case.key], enough(case)) > sure
        ),
        key=cost,
    )
    return [
        *((CHEAPEST, case.key) for case in cheapest),
        *((OTHER_LOADER, case.key) for case in others[:OTHER_LOADERS]),
    ]


def runners_up(rates: Mapping[str, float]) -> list[str]:
    """Who comes next after the fastest: one at least, and others that are near it, by their keys."""
    fastest, *others = sorted(rates, key=lambda key: rates[key], reverse=True)
    near = [key for key in others[1:RUNNERS_UP] if rates[key] >= NEAR * rates[fastest]]
    return [*others[:1], *near]


def cost_of(case: Case, manifest: Manifest) -> tuple[int, int, float]:
    """What orders cases by what they cost: packages to install, then processes, then bytes on disk."""
    return len(packages_of(case)), case.loader.workers, manifest.artifacts[case.variant].stored_bytes


def _again(
    manifest: Manifest,
    cases: Sequence[Case],
    options: RunOptions,
    rounds: int | str,
    times: tuple[float, float],
    observer: Observer,
) -> Run:
    """Fresh rounds: a winner that was picked from noise must not keep its lucky figure.

    `times` are the seconds that they may take, and when nothing may begin any more.
    """
    max_time_s, end = times
    again = replace(options, rounds=str(rounds), max_time=max(1.0, round(max_time_s)))
    race = FinalRounds(max_time_s, UNLIMITED if rounds == AUTO else int(rounds), end_s=end - time.monotonic())
    made = run(manifest, again, observer=observer, cases=cases, strategy=race)
    if made.interrupted:
        raise KeyboardInterrupt
    return made


def _steppable(found: Found, cases: Sequence[Case], requirements: Requirements, left_s: float) -> list[Case]:
    """The finalists for which there is time to be proved and measured once with the step, two at least.

    The fastest comes first, then the default; of the others a remark is made.
    """
    if not requirements.step_ms:
        return []
    samples, taken, needed_s = found.data.manifest.schema.samples, list[Case](), 0.0
    for case in sorted(cases, key=lambda case: _rank(found.roles[case.key])):
        needed_s += 2 * math.ceil(samples / case.batch_size) * requirements.step_s(case.batch_size)
        if needed_s <= left_s:
            taken.append(case)
    taken = taken if len(taken) >= min(COMPARED, len(cases)) else []
    if len(taken) < len(cases):
        which = f"all but {counted(len(taken), 'case')}" if taken else "any case"
        found.remarks.append(
            f"No time was left for rounds with the step of {which}: these need about "
            f"{seconds_text(needed_s)}; give that much more --max-time."
        )
    return [case for case in cases if case in taken]


def _rank(roles: Sequence[str]) -> int:
    return 0 if FASTEST in roles else 1 if DEFAULT in roles else 2


def _with_step(
    manifest: Manifest,
    cases: Sequence[Case],
    requirements: Requirements,
    end: float,
    options: RunOptions,
    observer: Observer,
) -> Run | None:
    """Rounds with the training step beside them; None where there are none."""
    if not cases:
        return None
    stepping = [
        replace(case, model=requirements.model)
        if requirements.model != "none"
        else replace(case, step_s=requirements.step_s(case.batch_size))
        for case in cases
    ]
    times = (STEPPED * (end - time.monotonic()), end)
    return _again(manifest, stepping, options, AUTO, times, observer)


def _on_half(data: Data, fastest: Case, options: RunOptions, end: float, observer: Observer) -> Run | None:
    """The fastest case over half as many samples: does its rate depend on how many there are?

    None where there is no time or no source for that.
    """
    if end - time.monotonic() < LEAST_S:
        return None
    manifest = measured_data.half(data, [fastest.variant], end - LEAST_S)
    if manifest is None:
        return None
    smaller = replace(fastest, dataset=manifest.name, content=f"{manifest.content or 0:016x}")
    return _again(manifest, [smaller], options, HALF_ROUNDS, (end - time.monotonic(), end), observer)
