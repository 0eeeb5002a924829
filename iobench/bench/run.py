"""A run: cases proved and then timed in interleaved rounds; one record for each timed round."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from iobench.bench.observer import Observer
from iobench.bench.options import RunOptions, cases_of, left_out
from iobench.bench.outcome import Run
from iobench.dataset.manifest import Manifest
from iobench.results import record
from iobench.results.record import Record


def run(
    manifest: Manifest,
    options: RunOptions | None = None,
    *,
    out: Path | None = None,
    observer: Observer | None = None,
    went_before: Sequence[Record] = (),
) -> Run:
    """Measure every case of a run in interleaved rounds; one Record for each timed round.

    The first untimed round of a case proves its content on the device against the manifest; a case
    that fails is not timed and is named in `Run.failures`. Records are appended to `out` (default: a
    new file in the `results` folder beside the dataset) as each round ends, so that Ctrl-C keeps them:
    it sets `Run.interrupted` and returns. A run goes on where `went_before` holds the rounds that it has.
    InvalidSettings, InvalidOption, DeviceUnavailable, ManifestError, ColdCacheUnavailable or
    RecordError where the run cannot be had as asked.
    """
    from iobench.bench.rounds import Measuring
    from iobench.host.device import pick_device

    options = options or RunOptions()
    devices = list(dict.fromkeys(str(pick_device(name)) for name in options.device))
    found = cases_of(manifest, options, devices)
    path = out or _new_path(manifest)
    record.check_writable(path)
    result = Run(manifest, options, found, path, list(went_before), remarks=left_out(manifest, options))
    observer = observer or Observer()
    observer.planned(result.labels, {case.key: case.batch_bytes(manifest.schema) for case in found})
    Measuring(result, observer).all_rounds()
    return result


def _new_path(manifest: Manifest) -> Path:
    now = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S-%f")[:-3]
    return manifest.root.parent / "results" / f"{manifest.name}-{now}.jsonl"
