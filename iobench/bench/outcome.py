"""Result of a run, and the callbacks that follow it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from iobench.base.errors import IobenchError
from iobench.base.finding import Finding
from iobench.bench.case import Case
from iobench.bench.options import RunOptions
from iobench.bench.part import Proof
from iobench.dataset.manifest import Manifest
from iobench.results import charts, history
from iobench.results.cases import Label, labels
from iobench.results.columns import blocks_of
from iobench.results.display import Block, Displayed
from iobench.results.parts import DatasetPart
from iobench.results.record import Record
from iobench.results.run_warning import warning_blocks
from iobench.results.summary import Summary, summarise


@dataclass
class Run(Displayed):
    """Result of a run."""

    manifest: Manifest | None  # the dataset; None for a live loader
    options: RunOptions  # what was asked for
    cases: list[Case]  # what the options make
    path: Path  # file of the records
    records: list[Record] = field(default_factory=list)  # one per timed round, in the order of measurement
    failures: dict[str, IobenchError] = field(default_factory=dict)  # what is wrong with a case, by its key
    notes: list[Finding] = field(default_factory=list)  # remarks about how the run went
    traces: list[Path] = field(default_factory=list)  # files for a trace viewer
    interrupted: bool = False  # Ctrl-C ended the run
    eliminated: dict[str, int] = field(default_factory=dict)  # cases, by key, and their rounds before that
    skipped: list[str] = field(default_factory=list)  # cases for which there was no time, by key
    proofs: dict[str, Proof] = field(default_factory=dict)  # of the cases that were verified, by key
    stopped: IobenchError | None = None  # why the run ended before all rounds were made
    live: DatasetPart | None = None  # what is known of a live loader's data

    @property
    def ended(self) -> KeyboardInterrupt | IobenchError | None:
        """Ctrl-C, or the error, that ended the run before all rounds were made."""
        return KeyboardInterrupt() if self.interrupted else self.stopped

    @property
    def valid_records(self) -> list[Record]:
        """Records of the cases that did not fail."""
        return [one for one in self.records if one.settings_key not in self.failures]

    @property
    def labels(self) -> dict[str, Label]:
        """Label of each case among those of the run, by its key."""
        return labels({case.key: case.facets for case in self.cases})

    @cached_property
    def summary(self) -> Summary | None:
        """Summary of the valid records; None without any."""
        return summarise(self.valid_records) if self.valid_records else None

    def path_of(self, case: Case) -> Path:
        """Return the path of what a case reads; the working folder for a live loader."""
        if self.manifest is None:
            return Path.cwd()
        return self.manifest.root if case.loader.own_data else self.manifest.path_of(case.variant)

    def blocks(self) -> Iterator[Block]:
        """Yield the answer, the table of cases, what failed, and warnings."""
        failed = [f"Failed: {self.labels[key]}: {error}" for key, error in self.failures.items()]
        ended = ["Interrupted: these are the rounds measured so far"] if self.interrupted else []
        if self.summary is None:
            yield Block("answer", ["Nothing was measured"])
        else:
            yield from blocks_of(self.summary)
            yield from (Block("chart", chart=one) for one in charts.of_contexts(self.summary.contexts))
        if failed or ended:
            yield Block("text", [*ended, *failed])
        yield from warning_blocks(self.summary.warnings if self.summary else ())

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each round of a case."""
        return [history.flat(one) for one in self.valid_records]

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the records themselves, for JSON."""
        shown, data = self.labels, self.manifest or self.live
        return {
            "dataset": data.name if data else None,
            "records": str(self.path),
            "failures": {str(shown[key]): _as_json(error) for key, error in self.failures.items()},
            "notes": self.notes,
            "traces": [str(path) for path in self.traces],
            "interrupted": self.interrupted,
            "stopped": None if self.stopped is None else _as_json(self.stopped),
        }


def _as_json(error: IobenchError) -> dict[str, str | None]:
    return {"message": str(error), **error.fields()}


class Progress(Protocol):
    """Number of batches consumed in the current round; the run writes it, any thread may read it."""

    count: int


@dataclass
class BatchCount:
    """Progress of a run in this process."""

    count: int = 0


class Observer:
    """Receives the events of a run, between rounds; this base class ignores them. Cases come by key."""

    def planned(self, labels: Mapping[str, Label], batch_bytes: Mapping[str, int]) -> None:
        """Receive the run's cases, and the bytes of one batch of each."""

    def resumed(self, records: Sequence[Record]) -> None:
        """Receive the rounds that a resumed run has already."""

    def status(self, text: str) -> None:
        """Receive one line about what happens outside timed rounds."""

    def begins(self, key: str, number: int) -> Progress:
        """Receive the start of a case's round (0 is untimed); the run updates the returned progress."""
        return BatchCount()

    def recorded(self, key: str, record: Record) -> None:
        """Receive the record of a timed round that has ended."""
