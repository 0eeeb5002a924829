"""Estimates of a run's duration."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from iobench.base import thresholds
from iobench.base.errors import InvalidSettings
from iobench.base.units import counted, seconds_text
from iobench.bench.outcome import Run
from iobench.bench.strategy import Strategy


@dataclass(frozen=True)
class RoundEstimates:
    """Passes estimates of the duration of planned rounds to `status`, one line each, as they become known."""

    strategy: Strategy
    status: Callable[[str], None]

    def resumed(self, run: Run, done: int) -> None:
        """Report how many rounds a resumed run has; raises InvalidSettings if it has all."""
        total = len(run.cases) * (self.strategy.planned or 0)
        if done == total:
            raise InvalidSettings(
                f"--resume: the run has all {counted(done, 'round')}",
                kind="nothing-to-resume",
                path=run.path,
                hint="show it with 'iobench runs show'",
            )
        of_total = f" of {total}" if total else ""
        self.status(f"resuming {run.path} after {done}{of_total} rounds")

    def before_proofs(self, cases: int) -> None:
        """Report the least time that so many cases take, from the minimal length of a round."""
        if self.strategy.planned is not None:
            least = seconds_text(cases * self.strategy.planned * thresholds.ROUND_S)
            self.status(f"{self._rounds_of(cases)}, estimate: at least {least} plus verification")

    def after_proofs(self, took_s: Mapping[str, float], done: Collection[str]) -> None:
        """Report the time that the rounds will take, estimated from the verification of each case, by key.

        `done` has the key of the case of each round that the run has already.
        """
        if self.strategy.planned is None or not took_s:
            return
        each_s = {key: max(thresholds.ROUND_S, seconds) for key, seconds in took_s.items()}
        expected_s = sum(each_s.values()) * self.strategy.planned - sum(each_s.get(key, 0.0) for key in done)
        line = f"{self._rounds_of(len(took_s))}, estimate after verification: {seconds_text(expected_s)}"
        if expected_s > self.strategy.max_time_s:
            line += f"; no round begins that would end after {seconds_text(self.strategy.max_time_s)}"
        self.status(line)

    def after_first_round(self, took_s: float) -> None:
        """Report the time that the remaining rounds will take, estimated from the first."""
        if self.strategy.planned is None or self.strategy.planned == 1:
            return
        left_s = took_s * (self.strategy.planned - 1)
        left_s = min(left_s, self.strategy.max_time_s - took_s)
        if left_s > 0:
            self.status(f"after 1 of {self.strategy.planned} rounds: about {seconds_text(left_s)} left")

    def _rounds_of(self, cases: int) -> str:
        return f"{counted(cases, 'case')} × {counted(self.strategy.planned or 0, 'round')}"
