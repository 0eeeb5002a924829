"""One call for all of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from iobench.base.errors import (
    InvalidSettings,
    IobenchError,
    TargetError,
)
from iobench.base.thresholds import CPU_CONTENDED
from iobench.base.units import counted, seconds_text
from iobench.loading.target import called_of, raised
from iobench.tuning import search_space
from iobench.tuning.candidate import BASELINE, HEADROOM, Candidate, slowing
from iobench.tuning.consumer import Consumer, HeadroomLoader
from iobench.tuning.settings_race import CUTS, ResourceLimits, SettingsRace, finalists, hidden_gain
from iobench.tuning.tunable_loader import TunableLoader
from iobench.tuning.tuning_result import TuningResult, answer
from iobench.tuning.turn import CYCLES, TurnResult, TurnSpec
from iobench.tuning.turn_recorder import TurnRecorder, new_path
from iobench.tuning.watchdog import Watchdog

MAX_TIME_S = 60.0
LOOK, RACE, REFINE = 0.1, 0.35, 0.2  # of the time; the rest is for the fresh rounds
LEAST_LEFT = 0.25  # of the time, that these have however late it is
FINALISTS = 2  # beside the loader as it is
NEAR = 0.9  # of the fastest in the race: who else is worth fresh rounds
PRESENT = ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers")

Status = Callable[[str], None]


def tune(
    target: str | Iterable[Any],
    *,
    device: str = "auto",
    step_ms: float = 0.0,
    model: str = "none",
    headroom: bool = False,
    max_memory_bytes: int | None = None,
    max_workers: int | None = None,
    max_time_s: float = MAX_TIME_S,
    timeout_s: float = 60.0,
    seed: int = 0,
    data_dir: Path = Path("data"),
    out: Path | None = None,
    on_status: Status = lambda text: None,
) -> TuningResult:
    """The settings with which somebody's loader is fastest, by a race whose winners are measured again.

    `target`: a DataLoader, any other iterable, or what makes one: `train.py:make_loader`, with what it is
    given as in `train.py:make_loader:batch_size=64`. Of a DataLoader every setting can be had, since another
    one is built over its dataset; of anything else those parameters of the function that are named alike.
    `step_ms` or `model` stand for the training; `headroom` measures the loop over batches that are on the
    device already, too. `max_memory_bytes` counts this process and its workers. Each turn is a record in
    `out`, by default a new file in the results folder of `data_dir`.
    TargetError where the target cannot be made, raises, hangs, or is slower with each turn; InvalidSettings
    where nothing fits the limits, or the time is too short for a round of each.
    """
    began = time.monotonic()
    _check(max_time_s=max_time_s, timeout_s=timeout_s, max_memory=max_memory_bytes)
    if max_workers is not None and max_workers < 0:
        raise InvalidSettings(f"max-workers {max_workers} is below 0")
    use = Consumer(device, step_ms, model, seed)
    if headroom and not use.trains:
        raise InvalidSettings("headroom is that of a training step: give --step-ms or --model with it")
    own, called = resolve_target(target)
    dog, limits = Watchdog(timeout_s), ResourceLimits(max_workers, max_memory_bytes)
    records = TurnRecorder(out or new_path(data_dir, called), called, _present(own), use, seed)
    replay = HeadroomLoader(use) if headroom else None
    wanted = TurnSpec(_held(use, replay), use.synchronize, guard=dog.over)
    contest = SettingsRace(own, wanted, limits, records.add)
    with dog.watching(), contest.under_way():
        try:
            return _Tuning(contest, limits, use, began + max_time_s, max_time_s, on_status).run(
                replay, records, seed
            )
        except IobenchError:
            raise
        except Exception as error:  # whatever somebody's loader does
            raise raised(error) from error


class _Tuning:
    """The steps of it, each with its part of the time."""

    def __init__(
        self, contest: SettingsRace, limits: ResourceLimits, use: Consumer, end: float, whole_s: float, status: Status
    ) -> None:
        self._contest, self._limits, self._use = contest, limits, use
        self._end, self._whole_s, self._status = end, whole_s, status

    def run(self, replay: HeadroomLoader | None, records: TurnRecorder, seed: int) -> TuningResult:
        own, device = self._contest.own, str(self._use.device)
        self._status(f"measuring the loader as it is; every turn is kept in {records.path}")
        turn = self._contest.look(Candidate(BASELINE), LOOK * self._whole_s)
        if replay is not None:
            replay.batches = turn.of or turn.batches
        starting = turn.measured.timing.first_batch_s > search_space.STARTING * turn.epoch_s
        like = search_space.LoaderTraits(turn.complete, starting, _idle(turn), not _idle(turn), device)
        candidates, not_tried = search_space.candidates_for(own, like, self._limits)
        self._check_time(turn, candidates)
        self._status(f"a race of {counted(len(candidates), 'setting')}: {'; '.join(one.name for one in candidates)}")
        self._contest.race(candidates, RACE * self._whole_s, seed)
        more = self._refined(candidates, replace(like, starting=True), seed) if len(candidates) > 1 else []
        chosen = self._finalists([*candidates, *more])
        if replay is not None:
            chosen.append(Candidate(HEADROOM, kind="headroom", make=lambda: replay))
        self._status(f"measuring again, in fresh rounds: {', '.join(one.name for one in chosen)}")
        self._contest.fresh(
            chosen, max(LEAST_LEFT * self._whole_s, self._end - time.monotonic()), seed=seed + 1
        )
        if (times := slowing(self._contest.turns)) is not None:
            raise TargetError(
                f"it is slower with each turn, {times:.1f} × from first to last, whatever is set: no "
                f"two settings can be compared; see what it keeps from epoch to epoch. "
                f"What was measured is in {records.path}"
            )
        tried, path = [*candidates, *more], str(records.path)
        return answer(self._contest, tried, chosen, not_tried, path, self._use.trains)

    def _check_time(self, turn: TurnResult, candidates: Sequence[Candidate]) -> None:
        """InvalidSettings where there is no time for a turn of each and three of the best."""
        timing, cycle = turn.measured.timing, max(1, self._contest.own.workers({}))
        each_s = turn.epoch_s / max(1, turn.of or turn.batches)
        least_s = timing.open_s + timing.first_batch_s + CYCLES * cycle * each_s
        needed_s = turn.took_s + (len(candidates) + 2 * CUTS) * least_s
        if needed_s > self._whole_s:
            raise InvalidSettings(
                f"--max-time {self._whole_s:g} is too short for a round of each of {len(candidates)} settings "
                f"and {CUTS} of the best: a few batches take {seconds_text(least_s)}; give --max-time "
                f"{math.ceil(needed_s)} or more"
            )

    def _refined(self, candidates: Sequence[Candidate], like: search_space.LoaderTraits, seed: int) -> list[Candidate]:
        """The fastest of the race with one more thing changed, which race against it."""
        best = max((one for one in candidates if _fits(one)), key=lambda one: one.rate, default=None)
        if best is None or not best.changes:
            return []
        known = [one.changes for one in candidates]
        more = search_space.refinements(self._contest.own, best, like)
        more = [one for one in more if one.changes not in known]
        if more:
            self._status(f"with {best.name}: {', '.join(one.name for one in more)}")
            again = Candidate(best.name, best.changes, best.kind)
            self._contest.race([again, *more], REFINE * self._whole_s, seed)
        return more

    def _finalists(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The loader as it is, and whoever was faster and near the fastest; it must fit the limits."""
        base, *others = candidates
        fitting = sorted((one for one in others if _fits(one)), key=lambda one: one.rate, reverse=True)
        if base.unfit is None:
            fitting = [one for one in fitting if one.rate > base.rate or hidden_gain(base, one)]
        elif not fitting:
            least = min((one for one in candidates if one.memory_bytes), key=lambda one: one.memory_bytes or 0)
            raise InvalidSettings(
                f"nothing fits the limits given: {least.name}, which takes least, "
                f"{least.unfit or least.failed}"
            )
        near = [one for one in fitting[:FINALISTS] if one.rate >= NEAR * fitting[0].rate]
        return finalists(candidates, near, self._end - time.monotonic())


def resolve_target(target: str | Iterable[Any]) -> tuple[TunableLoader, str]:
    """Somebody's loader, and what it is called; TargetError where it cannot be made."""
    if not isinstance(target, str):
        return TunableLoader(target), type(target).__name__
    found = called_of(target)
    workers = found.given_or_default("num_workers")
    known = workers if isinstance(workers, int) else 0
    return TunableLoader(found.made(), found.made, found.takes, known), found.name


def _held(use: Consumer, replay: HeadroomLoader | None) -> Callable[[Sequence[Any]], None]:
    """What is done with each batch; the first ones of the first epoch are held, where they are replayed."""
    if replay is None:
        return use

    def hold(tensors: Sequence[Any]) -> None:
        replay.hold(tensors)
        use(tensors)

    return hold


def _fits(candidate: Candidate) -> bool:
    return bool(candidate.rates) and candidate.failed is None


def _idle(turn: TurnResult) -> bool:
    """Whether its processes waited most of the time: sleeping, or for a disk or network, not for a core."""
    others = turn.measured.others
    if others is not None and (others.processors or 0.0) > CPU_CONTENDED:
        return False
    return turn.measured.processor.cpu_s < 0.5 * turn.measured.timing.epochs_s


def _present(own: TunableLoader) -> dict[str, Any]:
    return {name: getattr(own.loader, name) for name in PRESENT} if own.rebuilds else {}


def _check(**numbers: float | None) -> None:
    for name, value in numbers.items():
        if value is not None and not 0 < value < math.inf:
            raise InvalidSettings(f"{name.removesuffix('_s').replace('_', '-')} {value:g} is not above 0")
