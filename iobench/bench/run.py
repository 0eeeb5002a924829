"""A run: cases proved and then timed in interleaved rounds; one record for each timed round."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from iobench.bench.observer import Observer
from iobench.bench.options import RunOptions, cases_of, left_out
from iobench.bench.outcome import Run
from iobench.dataset.manifest import Manifest
from iobench.results import record
from iobench.results.record import Record

if TYPE_CHECKING:
    import torch

    from iobench.bench.case import Case
    from iobench.bench.crew import Crew
    from iobench.bench.race import Race


def run(
    manifest: Manifest,
    options: RunOptions | None = None,
    *,
    out: Path | None = None,
    observer: Observer | None = None,
    cases: Sequence[Case] | None = None,
    race: Race | None = None,
    went_before: Sequence[Record] = (),
    crew: Crew | None = None,
) -> Run:
    """Measure every case of a run in interleaved rounds; one Record for each timed round.

    The first untimed round of a case proves its content on the device against the manifest; a case
    that fails is not timed and is named in `Run.failures`. Records are appended to `out` (default: a
    new file in the `results` folder beside the dataset) as each round ends, so that Ctrl-C keeps them:
    it sets `Run.interrupted` and returns. A run goes on where `went_before` holds the rounds that it has.
    `cases` are those to measure, in the place of every one that the options make; a `race` drops who
    is clearly behind, and decides in the place of the options how many rounds there are. `crew` are those
    who measure, by default this process alone.
    InvalidSettings, InvalidOption, DeviceUnavailable, ManifestError, ColdCacheUnavailable or
    RecordError where the run cannot be had as asked.
    """
    from iobench.bench.rounds import Measuring

    options = options or RunOptions()
    world_size = crew.world_size if crew else 1
    found = cases if cases is not None else cases_here(manifest, options, world_size)
    path = out or new_path(manifest)
    record.check_writable(path)
    remarks = left_out(manifest, options, world_size) if cases is None else []
    result = Run(manifest, options, list(found), path, list(went_before), remarks=remarks)
    observer = observer or Observer()
    at_once = {case.key: world_size * case.batch_bytes(manifest.schema) for case in found}
    observer.planned(result.labels, at_once)
    Measuring(result, observer, race, crew).all_rounds()
    return result


def cases_here(manifest: Manifest, options: RunOptions, world_size: int = 1) -> list[Case]:
    """The cases of a run on the devices of this machine, over so many ranks; errors as of `run`."""
    from iobench.host.device import pick_device

    devices = list(dict.fromkeys(_device(name, pick_device(name), world_size) for name in options.device))
    return cases_of(manifest, options, devices, world_size)


def _device(asked: str, picked: torch.device, world_size: int) -> str:
    """The device of a case: without a number where each of several ranks has its own."""
    return str(picked) if world_size == 1 or ":" in asked else picked.type


def new_path(manifest: Manifest) -> Path:
    """Where the records of a run that begins now go by default."""
    now = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S-%f")[:-3]
    return manifest.root.parent / "results" / f"{manifest.name}-{now}.jsonl"
