"""`iobench.run` with a result for notebooks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from iobench.bench import run as bench
from iobench.bench.outcome import Run
from iobench.notebook.notebook_result import NotebookResult, with_result_type
from iobench.results import columns, history
from iobench.results.columns import Columns
from iobench.results.summary import Summary, summarise
from iobench.results.verdict import sentences

if TYPE_CHECKING:
    from iobench.report.figure import Figure

MAX_CONTEXTS = 6  # with a chart


@dataclass
class NotebookRun(NotebookResult, Run):
    """The result of a run, with a display in a notebook; a row of its data is a round of a case."""

    @cached_property
    def _summary(self) -> Summary | None:
        return summarise(self.valid_records) if self.valid_records else None

    def _columns(self) -> Columns:
        if self._summary is None:
            return []
        cases = [case for context in self._summary.contexts for case in context.shown]
        return [*columns.identity_columns(cases), *columns.metric_columns(cases)]

    def _sentences(self) -> list[str]:
        failed = [f"Failed: {self.labels[key]}: {error}" for key, error in self.failures.items()]
        ended = ["Interrupted: these are the rounds measured so far."] if self.interrupted else []
        if self._summary is None:
            return ["Nothing was measured.", *ended, *failed]
        warnings = [f"Warning: {one.sentence}." for one in self._summary.warnings]
        return [*sentences(self._summary.contexts), *ended, *failed, *warnings]

    def _rows(self) -> list[dict[str, Any]]:
        return [history.flat(one) for one in self.valid_records]

    def _figures(self) -> list[Figure]:
        from iobench.report import figures

        contexts = self._summary.contexts[:MAX_CONTEXTS] if self._summary else []
        speeds = [figures.of_context(one, number, whole=False)[0] for number, one in enumerate(contexts, 1)]
        return [replace(one, title=at.title or one.title) for one, at in zip(speeds, contexts, strict=True)]


run = with_result_type(NotebookRun, bench.run)
