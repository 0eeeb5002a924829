"""`iobench.run`, in a notebook too."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from iobench.bench import run as bench
from iobench.bench.outcome import Run
from iobench.notebook.shown import Shown, handing_out
from iobench.results import columns, history
from iobench.results.columns import Columns
from iobench.results.summary import Summary, summarise
from iobench.results.verdict import sentences

if TYPE_CHECKING:
    from iobench.report.figure import Figure

MOST_CONTEXTS = 6  # that are drawn


@dataclass
class ShownRun(Shown, Run):
    """What came of a run, which a notebook can show: a row of its data is a round of a case."""

    @cached_property
    def _summary(self) -> Summary | None:
        return summarise(self.sound) if self.sound else None

    def _columns(self) -> Columns:
        if self._summary is None:
            return []
        cases = [case for context in self._summary.contexts for case in context.shown]
        return [*columns.heads(cases), *columns.figures(cases)]

    def _sentences(self) -> list[str]:
        failed = [f"Failed: {label}: {reason}" for label, reason in self.as_dict()["failures"].items()]
        ended = ["It was interrupted; these are the rounds that it had."] if self.interrupted else []
        if self._summary is None:
            return ["Nothing was measured.", *ended, *failed]
        warned = [f"Warning: {one.sentence}." for one in self._summary.warnings]
        return [*sentences(self._summary.contexts), *ended, *failed, *warned]

    def _rows(self) -> list[dict[str, Any]]:
        return [history.flat(one) for one in self.sound]

    def _figures(self) -> list[Figure]:
        from iobench.report import figures

        contexts = self._summary.contexts[:MOST_CONTEXTS] if self._summary else []
        drawn = [figures.of_context(one, number, whole=False)[0] for number, one in enumerate(contexts, 1)]
        return [replace(one, title=at.title or one.title) for one, at in zip(drawn, contexts, strict=True)]


run = handing_out(ShownRun, bench.run)
