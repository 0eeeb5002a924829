"""A run: cases proved and then timed in interleaved rounds; one record for each timed round."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from iobench.bench.case import Case
from iobench.bench.observer import Observer
from iobench.bench.options import RunOptions, cases_of
from iobench.dataset.manifest import Manifest
from iobench.results import record
from iobench.results.cases import Label, labels
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
        }


def run(
    manifest: Manifest,
    options: RunOptions | None = None,
    *,
    out: Path | None = None,
    observer: Observer | None = None,
) -> Run:
    """Measure every case of a run in interleaved rounds; one Record for each timed round.

    The first untimed round of a case proves its content on the device against the manifest; a case
    that fails is not timed and is named in `Run.failures`. Records are appended to `out` (default: a
    new file in the `results` folder beside the dataset) as each round ends, so that Ctrl-C keeps them:
    it sets `Run.interrupted` and returns.
    InvalidSettings, InvalidOption, DeviceUnavailable, ManifestError, ColdCacheUnavailable or
    RecordError where the run cannot be had as asked.
    """
    from iobench.bench.rounds import Measuring
    from iobench.loading.transfer import pick_device

    options = options or RunOptions()
    devices = list(dict.fromkeys(str(pick_device(name)) for name in options.device))
    found = cases_of(manifest, options, devices)
    path = out or _new_path(manifest)
    record.check_writable(path)
    result = Run(manifest, options, found, path)
    observer = observer or Observer()
    observer.planned(result.labels, {case.key: case.batch_bytes(manifest.schema) for case in found})
    Measuring(result, observer).all_rounds()
    return result


def _new_path(manifest: Manifest) -> Path:
    now = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S-%f")[:-3]
    return manifest.root.parent / "results" / f"{manifest.name}-{now}.jsonl"
