"""Entry point of a run: verify cases, then time them in interleaved rounds."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from iobench.base.finding import Finding
from iobench.bench.budget import Budget
from iobench.bench.case_grid import cases_of, skip_notes
from iobench.bench.observer import Observer
from iobench.bench.options import RunOptions
from iobench.bench.outcome import Run
from iobench.dataset.manifest import Manifest
from iobench.results import history, record_file
from iobench.results.parts import DatasetPart, check_prices
from iobench.results.record import Record

if TYPE_CHECKING:
    import torch

    from iobench.bench.case import Case
    from iobench.bench.executor_factory import ExecutorFactory
    from iobench.bench.policies import Policy


def run(
    manifest: Manifest | None,
    options: RunOptions | None = None,
    *,
    out: str | Path | None = None,
    observer: Observer | None = None,
    cases: Sequence[Case] | None = None,
    policy: Policy | None = None,
    earlier_records: Sequence[Record] = (),
    backend: ExecutorFactory | None = None,
    budget: Budget | None = None,
    live: DatasetPart | None = None,
) -> Run:
    """Measure every case of a run in interleaved rounds, with one Record per timed round.

    The first untimed round of a case verifies its content on the device against the manifest. A case that
    fails is not timed and is listed in `Run.failures`. Records are appended to `out` as each round ends, so
    that Ctrl-C keeps them: it sets `Run.interrupted` and returns.

    Parameters
    ----------
    manifest : Manifest or None
        The dataset; None for a live loader, which `cases` and `backend` describe.
    options : RunOptions, optional
        What to measure, by default each prepared format under the default loaders.
    out : str or Path, optional
        File of records, by default a new one in the `results` folder next to the dataset.
    observer : Observer, optional
        Receives progress.
    cases : sequence of Case, optional
        Cases to measure, instead of all that the options make.
    policy : Policy, optional
        Decides which turn is next and which cases are dropped, by default equal shares of the time.
    earlier_records : sequence of Record
        Rounds of an interrupted run, which is resumed.
    backend : ExecutorFactory, optional
        Processes that measure, by default this process alone.
    budget : Budget, optional
        Time for everything, by default that of the options, from this call on.
    live : DatasetPart, optional
        What is known of a live loader's data.

    Raises
    ------
    InvalidSettings, InvalidOption, DeviceUnavailable, ManifestError, ColdCacheUnavailable, RecordError
        If the run is impossible as requested.
    """
    from iobench.bench.policies import EqualShares
    from iobench.bench.run_loop import RunLoop

    options = options or RunOptions()
    budget = budget or Budget(options.seconds)
    world_size = backend.world_size if backend else 1
    chosen, notes = list(cases or ()), list[Finding]()
    if manifest is not None:
        check_prices(options.prices, manifest.url)
        if cases is None:
            chosen = cases_here(manifest, options, world_size)
            notes = skip_notes(manifest, options, world_size)
        out = out or new_path(manifest)
    path = Path(out or os.devnull)
    record_file.check_writable(path)
    for case in chosen:
        record_file.check_parts(case=case.facets)
    if any(case.loader.workers for case in chosen):
        tempfile.gettempdir()  # raises FileNotFoundError: without it workers would never deliver a batch
    result = Run(manifest, options, chosen, path, list(earlier_records), notes=notes, live=live)
    observer = observer or Observer()
    batch_bytes = {case.key: world_size * case.batch_bytes(manifest.schema) for case in chosen if manifest}
    observer.planned(result.labels, batch_bytes)
    with record_file.only_writer(path):
        policy = policy or EqualShares(options.stopping_rule(chosen))
        RunLoop(result, observer, policy, backend, budget).all_turns()
    return result


def cases_here(manifest: Manifest, options: RunOptions, world_size: int = 1) -> list[Case]:
    """Return the cases of a run on this machine's devices over `world_size` ranks; raises as `run` does."""
    from iobench.host.device import pick_device

    devices = list(dict.fromkeys(_device(name, pick_device(name), world_size) for name in options.device))
    return cases_of(manifest, options, devices, world_size)


def _device(name: str, picked: torch.device, world_size: int) -> str:
    """Return the device of a case, without an index if each of several ranks has its own."""
    return str(picked) if world_size == 1 or ":" in name else picked.type


def new_path(manifest: Manifest) -> Path:
    """Return the default file of records for a run that starts now."""
    return history.new_file(manifest.data_dir, manifest.root.name)
