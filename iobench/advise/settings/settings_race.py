"""Settings of one loader as cases of runs in this process: a race, and final rounds of the fastest."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from iobench.advise.settings.candidate import Candidate
from iobench.advise.settings.consumer import Consumer
from iobench.advise.settings.settings_backend import ResourceLimits, SettingsBackend
from iobench.advise.settings.tunable_loader import TunableLoader
from iobench.advise.settings.turn import Turn, TurnSpec
from iobench.base.background_load import BackgroundLoad
from iobench.base.finding import Finding
from iobench.bench.case import Case
from iobench.bench.options import RunOptions
from iobench.bench.outcome import Run
from iobench.bench.run import run
from iobench.bench.search_strategies import FinalRounds, SuccessiveHalving
from iobench.bench.strategy import Strategy
from iobench.dataset.manifest import Manifest
from iobench.formats import Field, Schema
from iobench.loading.loaders._user_loader import UserLoader
from iobench.loading.loaders.dataloader import unwarned
from iobench.results import stats
from iobench.results.record import Record

OWN_ORDER = "own"
PRESENT = ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers")


@dataclass(frozen=True)
class SettingsCases:
    """A loader as its cases describe it: its name, its present settings, and what consumes its batches."""

    loader: TunableLoader
    consumer: Consumer

    def case(self, candidate: Candidate, turn: Turn | None) -> Case:
        """Return the case of a candidate; `turn` is any earlier one."""
        known = turn is not None and turn.fields and turn.fields[0][0]
        own, consumer = self.loader, self.consumer
        name = own.name if candidate.make is None else candidate.name
        present = {option: getattr(own.loader, option) for option in PRESENT} if own.rebuilds else {}
        options = tuple({**present, **candidate.changes}.items())
        return Case(
            own.name,
            content="",
            device=str(consumer.device),
            batch_size=turn.fields[0][0][0] if turn is not None and known else 1,
            order=OWN_ORDER,
            seed=consumer.seed,
            model=consumer.model,
            step_s=consumer.step_s,
            variant="",
            loader=UserLoader("", name, options, (), None, ""),
        )

    def manifest(self, turn: Turn | None) -> Manifest:
        """Return the loader's data as a dataset without artifacts."""
        samples = max(1, round(turn.samples)) if turn is not None else 1
        try:
            fields = [
                Field(f"f{number}", shape[1:], dtype)
                for number, (shape, dtype) in enumerate(turn.fields if turn is not None else ())
            ]
        except ValueError:  # tensors that no dataset can hold
            fields = []
        unknown = [Field("batch", (), "uint8")]
        return Manifest(Path(self.loader.name), Schema(samples, tuple(fields or unknown)), source={})


ROUNDS = 15  # of the finalists, if time allows
CUTS = 3  # rounds that must fit in the time for an epoch to be measured whole
MIN_TURN_S = 0.05
HIDDEN_START = 0.3  # of an epoch, for its first batch


class SettingsRace:
    """Runs over the settings of one loader: races, then final rounds.

    No turn begins after `end`, a moment of `time.monotonic`. Records go to `path`, by default nowhere.
    """

    def __init__(
        self,
        loader: TunableLoader,
        spec: TurnSpec,
        limits: ResourceLimits | None = None,
        path: Path = Path(os.devnull),
        end: float = math.inf,
    ) -> None:
        self.loader, self._path, self.end = loader, path, end
        self._cases = SettingsCases(loader, spec.consumer)
        self._backend = SettingsBackend(loader, spec, limits)
        self.turns: list[tuple[Candidate, Record]] = []  # in order of time

    @contextmanager
    def active(self) -> Iterator[None]:
        """Context of all turns; persistent workers end with it."""
        with unwarned():
            try:
                yield
            finally:
                self.loader.close()

    @property
    def background(self) -> list[BackgroundLoad]:
        """Load of other processes during each turn."""
        return [turn.background for _, turn in self.turns if turn.background is not None]

    def warm_up(self, candidate: Candidate, limit_s: float | None) -> Turn:
        """Run one turn before all rounds; errors of the loader pass through."""
        return self._backend.take(candidate, limit_s)

    def race(self, candidates: Sequence[Candidate], seconds: float, seed: int = 0) -> None:
        """Run rounds and eliminate candidates that are clearly slower; the first round keeps the order given.

        After `seconds` the first round ends, except for its first two candidates: one turn of a slow
        loader may take all the time, and the second candidate is the most promising change.
        """
        limit_s = max(MIN_TURN_S, seconds / CUTS / len(candidates))
        strategy = SuccessiveHalving(seconds, ordered=True, end_s=self.left_s)
        for candidate, made in self._run(candidates, limit_s, strategy, seed):
            candidate.race.append(made)

    @property
    def left_s(self) -> float:
        """Seconds until the end."""
        return max(0.0, self.end - time.monotonic())

    def final_rounds(
        self, candidates: Sequence[Candidate], seconds: float, rounds: int = ROUNDS, seed: int = 1
    ) -> None:
        """Run interleaved rounds of whole epochs, or of parts of them if time is short."""
        whole_s = sum(max(statistics.median(one.epoch_s), one.turn_s) for one in candidates if one.epoch_s)
        whole = CUTS * whole_s <= seconds and not any(one.endless for one in candidates)
        limit_s = None if whole else max(MIN_TURN_S, seconds / stats.ENOUGH_ROUNDS / len(candidates))
        at_least = min(rounds, stats.MIN_ROUNDS)
        strategy = FinalRounds(seconds, rounds, at_least=at_least, end_s=self.left_s)
        for candidate, made in self._run(candidates, limit_s, strategy, seed):
            candidate.final.append(made)

    def _run(
        self, candidates: Sequence[Candidate], limit_s: float | None, strategy: Strategy, seed: int
    ) -> list[tuple[Candidate, Record]]:
        """Run the candidates that have not failed, each as a case, and return their records."""
        backend, first = self._backend, self._backend.first
        chosen = [one for one in candidates if not one.failure]
        cases = [self._cases.case(one, first) for one in chosen]
        backend.limit_s = limit_s
        backend.candidates = {case.key: one for case, one in zip(cases, chosen, strict=True)}
        made = run(
            self._cases.manifest(first),
            RunOptions(limits=False, seed=seed),
            out=self._path,
            cases=cases,
            strategy=strategy,
            backend=backend,
        )
        self._conclude(made, backend.candidates[cases[0].key])
        turns = [(backend.candidates[one.settings_key], one) for one in made.records]
        self.turns += turns
        return turns

    def _conclude(self, made: Run, baseline: Candidate) -> None:
        """Note failures and eliminations; without the loader's own settings there is nothing to compare."""
        if made.interrupted:
            raise KeyboardInterrupt
        for key, error in made.failures.items():
            candidate = self._backend.candidates[key]
            if not candidate.changes:
                raise error
            candidate.failure = candidate.failure or Finding(error.kind, error.problem, error.hint)
        for key, rounds in made.eliminated.items():
            self._backend.candidates[key].eliminated = rounds


def hidden_gain(baseline: Candidate, candidate: Candidate) -> bool:
    """Return True if a race cannot show the gain of a setting, so that it needs final rounds.

    Persistent workers start in their first turn, as any workers do, and again after each cut turn.
    """
    slow_start = baseline.first_batch_s and baseline.first_batch_s[0] > HIDDEN_START * baseline.epoch_s[0]
    return candidate.kind == "persistent" and bool(slow_start and candidate.rates) and not candidate.failure


def finalists(
    candidates: Sequence[Candidate], ordered: Sequence[Candidate], seconds: float
) -> list[Candidate]:
    """Return the baseline, the first of `candidates`, and as many of `ordered` as have time for rounds."""
    chosen = [candidates[0], *ordered[:1]]
    for one in ordered[1:]:
        if stats.ENOUGH_ROUNDS * sum(candidate.turn_s for candidate in [*chosen, one]) <= seconds:
            chosen.append(one)
    return chosen
