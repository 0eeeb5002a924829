"""What came of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from iobench.bench.case import Case
from iobench.bench.options import RunOptions
from iobench.dataset.manifest import Manifest
from iobench.results.cases import Label, key_of, labels
from iobench.results.record import Record


@dataclass
class Run:
    """What came of a run.

    `failures` maps a case's key to what is wrong with it; `remarks` are sentences about how it went;
    `traces` are files for a trace viewer.
    """

    manifest: Manifest
    options: RunOptions
    cases: list[Case]
    path: Path
    records: list[Record] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    traces: list[Path] = field(default_factory=list)
    interrupted: bool = False
    dropped: dict[str, int] = field(default_factory=dict)  # out of a race, after so many rounds
    untried: list[str] = field(default_factory=list)  # for which a race had no time
    stopped: str | None = None  # why it ended before all rounds were made

    @property
    def sound(self) -> list[Record]:
        """The records of cases with which nothing is wrong."""
        return [one for one in self.records if key_of(one.case) not in self.failures]

    @property
    def labels(self) -> dict[str, Label]:
        """The label of each case among those of the run, by its key."""
        return labels({case.key: case.facets for case in self.cases})

    def as_dict(self) -> dict[str, Any]:
        """Everything but the records themselves, for JSON."""
        shown = self.labels
        return {
            "dataset": self.manifest.name,
            "records": str(self.path),
            "failures": {str(shown[key]): reason for key, reason in self.failures.items()},
            "remarks": self.remarks,
            "traces": [str(path) for path in self.traces],
            "interrupted": self.interrupted,
            "stopped": self.stopped,
        }
