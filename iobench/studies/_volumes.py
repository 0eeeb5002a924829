"""Runs of `iobench run` over volumes of data, as rounds of a study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from iobench.bench.observer import Observer
from iobench.bench.options import RunOptions
from iobench.bench.run import run
from iobench.dataset.manifest import Manifest
from iobench.studies._base import StudyOptions
from iobench.studies._memory_limit import join
from iobench.studies._rounds import ROUNDS, Measurements, RoundResult
from iobench.studies._subprocess import Heartbeat

LOADERS = {"dataloader": "dataloader:fetch=batch", "native": "native"}  # variant of each loader


class TimeEstimates(Observer):
    """Passes on a run's estimates of its time."""

    def __init__(self, options: StudyOptions, mode: str) -> None:
        self._options, self._mode = options, mode

    def status(self, text: str) -> None:
        """Report the time of the rounds, and no other status."""
        if ": about " in text:
            self._options.on_status(f"{self._mode}: {text}")


def rounds(
    root: Path,
    variants: Sequence[str],
    device: str,
    mode: str,
    volume: str,
    count: int = ROUNDS,
    observer: Observer | None = None,
) -> Measurements:
    """Run rounds of formats with whole batches under DataLoader and under native."""
    options = RunOptions(
        format=tuple(variants),
        loader=tuple(LOADERS.values()),
        device=(device,),
        cache=(mode,),
        order=("sequential",),
        rounds=str(count),
        limits=False,
    )
    done = run(Manifest.load(root), options, out=root / f"{mode}.jsonl", observer=observer)
    if done.interrupted:
        raise KeyboardInterrupt
    for key, failure in done.failures.items():
        raise failure.changed(problem=f"{done.labels[key]}: {failure.problem}")
    measured = Measurements({contender(one.variant, one.loader.name, volume): [] for one in done.cases})
    for record in done.records:
        metrics = {"speed_bytes_per_s": record.bytes_per_s, "residency": record.cache.residency}
        known = {metric: value for metric, value in metrics.items() if value is not None}
        name = contender(record.case["format"], record.case["loader"], volume)
        measured.add(name, RoundResult(record.epoch_s, known))
        if record.background is not None:
            measured.background.append(record.background)
    return measured


def rounds_within(
    heartbeat: Heartbeat, group: Path, rehearsal: Path, root: Path, device: str, volume: str
) -> Measurements:
    """Run warm rounds within a control group's memory; must run in a process of its own."""
    variants = list(Manifest.load(rehearsal).artifacts)
    rounds(
        rehearsal, variants, device, "warm", "", count=1
    )  # memory that libraries allocate once does not count
    join(group)
    heartbeat()
    return rounds(root, variants, device, "warm", volume)


def at(label: str, volume: str) -> str:
    """Return a contender's name: format and loader, and the volume of data."""
    return f"{label} at {volume}"


def contender(variant: str, loader: str, volume: str) -> str:
    """Return a contender's name from its format, loader and volume."""
    return at(f"{variant} · {LOADERS[loader]}", volume)
