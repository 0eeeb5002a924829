"""Result of a run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from iobench.base.errors import IobenchError
from iobench.base.finding import Finding
from iobench.bench.case import Case
from iobench.bench.options import RunOptions
from iobench.dataset.manifest import Manifest
from iobench.results.cases import Label, labels
from iobench.results.record import Record


@dataclass
class Run:
    """Result of a run.

    Attributes
    ----------
    manifest, options, cases, path
        The dataset, the options, the cases made of them, and the file of records.
    records : list of Record
        One per timed round, in the order of measurement.
    failures : dict of str to IobenchError
        What is wrong with a case, by its key.
    notes : list of Finding
        Remarks about how the run went.
    traces : list of Path
        Files for a trace viewer.
    interrupted : bool
        Whether Ctrl-C ended the run.
    eliminated : dict of str to int
        Cases eliminated by successive halving, with the number of rounds they had.
    skipped : list of str
        Keys of cases for which there was no time.
    stopped : IobenchError or None
        Why the run ended before all rounds were made.
    """

    manifest: Manifest
    options: RunOptions
    cases: list[Case]
    path: Path
    records: list[Record] = field(default_factory=list)
    failures: dict[str, IobenchError] = field(default_factory=dict)
    notes: list[Finding] = field(default_factory=list)
    traces: list[Path] = field(default_factory=list)
    interrupted: bool = False
    eliminated: dict[str, int] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    stopped: IobenchError | None = None

    @property
    def valid_records(self) -> list[Record]:
        """Records of the cases that did not fail."""
        return [one for one in self.records if one.settings_key not in self.failures]

    @property
    def labels(self) -> dict[str, Label]:
        """Label of each case among those of the run, by its key."""
        return labels({case.key: case.facets for case in self.cases})

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the records themselves, for JSON."""
        shown = self.labels
        return {
            "dataset": self.manifest.name,
            "records": str(self.path),
            "failures": {str(shown[key]): _as_json(error) for key, error in self.failures.items()},
            "notes": [asdict(note) for note in self.notes],
            "traces": [str(path) for path in self.traces],
            "interrupted": self.interrupted,
            "stopped": None if self.stopped is None else _as_json(self.stopped),
        }


def _as_json(error: IobenchError) -> dict[str, str | None]:
    return {"message": str(error), **error.fields()}
