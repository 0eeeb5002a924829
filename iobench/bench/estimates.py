"""Estimates of a run's duration, and notes on whether its rounds were enough."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from iobench.base import thresholds
from iobench.base.errors import InvalidSettings
from iobench.base.finding import Finding
from iobench.base.units import counted, seconds_text
from iobench.bench.outcome import Run
from iobench.bench.round_plan import PRECISION, RoundPlan, worst
from iobench.results import stats
from iobench.results.cases import Label


@dataclass(frozen=True)
class RoundEstimates:
    """Passes estimates of a plan's duration to `status`, one line each, as they become known."""

    plan: RoundPlan
    status: Callable[[str], None]

    def resumed(self, run: Run, done: int) -> None:
        """Report how many rounds a resumed run has; raises InvalidSettings if it has all."""
        total = len(run.cases) * (self.plan.count or 0)
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
        if self.plan.count is not None:
            least = seconds_text(cases * self.plan.count * thresholds.ROUND_S)
            self.status(f"{self._rounds_of(cases)}, estimate: at least {least} plus verification")

    def after_proofs(self, took_s: Mapping[str, float], done: Collection[str]) -> None:
        """Report the time that the rounds will take, estimated from the verification of each case.

        Parameters
        ----------
        took_s : mapping of str to float
            Seconds of each case's verification, by key.
        done : collection of str
            The key of the case of each round that the run has already.
        """
        if self.plan.count is None or not took_s:
            return
        each_s = {key: max(thresholds.ROUND_S, seconds) for key, seconds in took_s.items()}
        expected_s = sum(each_s.values()) * self.plan.count - sum(each_s.get(key, 0.0) for key in done)
        line = f"{self._rounds_of(len(took_s))}, estimate after verification: {seconds_text(expected_s)}"
        if self.plan.max_time_s is not None and expected_s > self.plan.max_time_s:
            line += f"; no round begins that would end after {seconds_text(self.plan.max_time_s)}"
        self.status(line)

    def after_first_round(self, took_s: float) -> None:
        """Report the time that the remaining rounds will take, estimated from the first."""
        if self.plan.count is None or self.plan.count == 1:
            return
        left_s = took_s * (self.plan.count - 1)
        if self.plan.max_time_s is not None:
            left_s = max(0.0, min(left_s, self.plan.max_time_s - took_s))
        self.status(f"after 1 of {self.plan.count} rounds: about {seconds_text(left_s)} left")

    def after_rounds(
        self, made: int, elapsed_s: float, rates: Mapping[str, list[float]], labels: Mapping[str, Label]
    ) -> list[Finding]:
        """Return notes on the outcome of `--rounds auto`, or on rounds that `--max-time` cut off.

        The kinds are `max-time-reached`, `auto-few-rounds`, `auto-imprecise` and `auto-precise`.
        """
        values: dict[str, float | int | str] = {"rounds": made, "elapsed_s": elapsed_s}
        longer = "give a longer --max-time"
        if self.plan.count is not None:
            if made >= self.plan.count:
                return []
            message = f"--max-time ended the run after {made} of {self.plan.count} rounds"
            return [Finding("max-time-reached", message, values={**values, "planned": self.plan.count})]
        key, reach = worst(rates)
        line = f"{counted(made, 'round')} in {elapsed_s:.0f} s"
        if made < stats.MIN_ROUNDS:
            return [Finding("auto-few-rounds", f"{line}, too few for an interval", longer, values)]
        values["precision"] = reach
        if reach > PRECISION:
            line += f", ended by --max-time: the interval of {labels[key]} is ±{reach:.1%} of its median"
            return [Finding("auto-imprecise", line, longer, {**values, "case": key})]
        return [Finding("auto-precise", f"{line}: every interval is within ±{PRECISION:.0%}", values=values)]

    def _rounds_of(self, cases: int) -> str:
        return f"{counted(cases, 'case')} × {counted(self.plan.count or 0, 'round')}"
