"""How long a run will take, as far as that is known, and what its rounds were enough for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from iobench.base import thresholds
from iobench.base.errors import (
    InvalidSettings,
)
from iobench.base.units import counted, seconds_text
from iobench.bench.outcome import Run
from iobench.bench.plan import PRECISION, RoundPlan, worst
from iobench.results import stats
from iobench.results.cases import Label


@dataclass(frozen=True)
class Duration:
    """Tells `status` what a plan of rounds comes to, from what is known by then."""

    plan: RoundPlan
    status: Callable[[str], None]

    def going_on(self, run: Run, there: int) -> None:
        """Of a run that is gone on with, how much of it is there; InvalidSettings where that is all."""
        whole = len(run.cases) * (self.plan.count or 0)
        if there == whole:
            raise InvalidSettings(
                f"--resume {run.path}: all {counted(there, 'round')} are there; "
                "'iobench runs show' shows them"
            )
        total = f" of {whole}" if whole else ""
        self.status(f"going on with {run.path}: {there}{total} rounds are there")

    def before_proofs(self, cases: int) -> None:
        """The least that so many cases take, by how long a round lasts."""
        if self.plan.count is not None:
            least = seconds_text(cases * self.plan.count * thresholds.ROUND_S)
            self.status(f"{self._rounds_of(cases)}: at least {least}, after a proof of each")

    def after_proofs(self, took_s: Mapping[str, float], done: Collection[str]) -> None:
        """What the rounds will take, by what proofs took; `done`: of each round that is there, its case."""
        if self.plan.count is None or not took_s:
            return
        each_s = {key: max(thresholds.ROUND_S, seconds) for key, seconds in took_s.items()}
        expected_s = sum(each_s.values()) * self.plan.count - sum(each_s.get(key, 0.0) for key in done)
        said = f"{self._rounds_of(len(took_s))}: roughly {seconds_text(expected_s)}, going by the proofs"
        if self.plan.max_time_s is not None and expected_s > self.plan.max_time_s:
            said += f"; no round begins that would end after {seconds_text(self.plan.max_time_s)}"
        self.status(said)

    def after_first_round(self, took_s: float) -> None:
        """What the other rounds will take, by the first."""
        if self.plan.count is None or self.plan.count == 1:
            return
        left_s = took_s * (self.plan.count - 1)
        if self.plan.max_time_s is not None:
            left_s = max(0.0, min(left_s, self.plan.max_time_s - took_s))
        self.status(f"after 1 of {self.plan.count} rounds: about {seconds_text(left_s)} left")

    def after_rounds(
        self, made: int, elapsed_s: float, rates: Mapping[str, list[float]], labels: Mapping[str, Label]
    ) -> list[str]:
        """What became of `--rounds auto`, or of rounds that `--max-time` cut short."""
        if self.plan.count is not None:
            said = f"{made} of {self.plan.count} rounds were made before --max-time was over"
            return [said] if made < self.plan.count else []
        key, reach = worst(rates)
        said = f"{counted(made, 'round')} in {elapsed_s:.0f} s"
        if made < stats.FEWEST:
            said += ", too few for an interval; give a longer --max-time"
        elif reach > PRECISION:
            said += f", until --max-time: the interval of {labels[key]} still reaches {reach:.1%} from its "
            said += "median; give a longer --max-time"
        else:
            said += f": every interval is within {PRECISION:.0%} of its median"
        return [said]

    def _rounds_of(self, cases: int) -> str:
        return f"{counted(cases, 'case')} × {counted(self.plan.count or 0, 'round')}"
