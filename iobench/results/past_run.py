"""A past run: a file of records in brief."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from iobench.base.errors import RecordError
from iobench.base.text import enumerated, shortened
from iobench.results import record
from iobench.results.record import Record
from iobench.results.summary import summarise
from iobench.results.trend import CasePoint, case_points
from iobench.results.verdict import brief, sentence, verdict


@dataclass(frozen=True)
class PastRun:
    """A past run in brief; where it cannot be read, `problem` says why and the rest is empty."""

    name: str
    path: Path
    time: str = ""  # ISO 8601, UTC, end of its last round
    dataset: str = ""
    cases: int = 0
    rounds: int = 0
    device: str = ""
    cache: str = ""
    outcome: str = ""  # kind of the verdict on its first context
    verdict: str = ""
    brief: str = ""  # the verdict in a few words
    problem: RecordError | None = None
    points: list[CasePoint] = field(default_factory=list, repr=False)  # for trends

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        fields = asdict(replace(self, problem=None, points=[]))
        del fields["points"]
        problem = self.problem.fields() if self.problem else None
        return {**fields, "path": str(self.path), "problem": problem}


def read(path: Path) -> PastRun:
    """Return the run in a file of records."""
    try:
        records, _ = record.read(path)
    except RecordError as error:
        return PastRun(path.stem, path, problem=error)
    summary, last = summarise(records), records[-1]
    verdicts = [sentence(context) for context in summary.contexts]
    return PastRun(
        name=path.stem,
        path=path,
        time=last.time,
        dataset=last.dataset.name,
        cases=len(summary.cases),
        rounds=max(case.rounds for case in summary.cases),
        device=_all(records, "device"),
        cache=_all(records, "cache"),
        outcome=verdict(summary.contexts[0]).kind,
        verdict=verdicts[0] + (f" (and {len(verdicts) - 1} more)" if len(verdicts) > 1 else ""),
        brief=brief(summary.contexts),
        points=case_points(path.stem, records),
    )


def _all(records: Sequence[Record], facet: str) -> str:
    return enumerated(sorted({shortened(str(one.case.get(facet)), 40) for one in records}))
