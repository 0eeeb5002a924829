"""What is said of cases that there was no time for, and where nothing could be measured at all."""

from __future__ import annotations

from iobench.base.errors import (
    LoaderFailed,
)
from iobench.base.units import counted
from iobench.bench.outcome import Run
from iobench.recommendation.needs import Needs


def nothing(run: Run, needs: Needs) -> LoaderFailed:
    """That no case gave a figure, why, and how many had no time to."""
    reasons = list(dict.fromkeys(run.failures.values()))
    if run.untried:
        tried = len(run.cases) - len(run.untried)
        reasons.append(
            f"{tried} of {counted(len(run.cases), 'case')} were tried in --max-time {needs.max_time_s:g}, "
            "give a longer one for the others"
        )
    return LoaderFailed(f"no case could be measured: {'; '.join(reasons)} (records: {run.path})")


def too_late(raced: Run, needs: Needs) -> LoaderFailed:
    """That all the time went before anything could be measured again, on which an answer rests."""
    tried = len(raced.cases) - len(raced.untried)
    return LoaderFailed(
        f"--max-time {needs.max_time_s:g} was over when {tried} of {counted(len(raced.cases), 'case')} had "
        f"been tried, and none of them measured again; give at least --max-time {2 * needs.max_time_s:g} "
        f"(records: {raced.path})"
    )


def left_out(again: Run, how: str, needs: Needs) -> list[str]:
    """Which finalists there was no time for, in a sentence; none where there was for all."""
    if not again.untried:
        return []
    named = again.labels
    called = "; ".join(str(named[key]) for key in again.untried)
    longer = f"give a longer --max-time than {needs.max_time_s:g}"
    return [f"There was no time to measure {called} {how}, and nothing is said of it: {longer}."]
