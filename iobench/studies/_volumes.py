"""Runs like any other over a volume of data, as rounds of a study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from iobench.base.errors import (
    WrongContent,
)
from iobench.bench.observer import Observer
from iobench.bench.options import RunOptions
from iobench.bench.run import run
from iobench.dataset.manifest import Manifest
from iobench.studies._apart import Heartbeat
from iobench.studies._base import StudyOptions
from iobench.studies._limited import join
from iobench.studies._turns import ROUNDS, Measurements, Turn

LOADERS = {"dataloader": "dataloader:fetch=batch", "native": "native"}  # by name, as they are measured


class HowLong(Observer):
    """Passes on how long a run says that it will take."""

    def __init__(self, options: StudyOptions, mode: str) -> None:
        self._options, self._mode = options, mode

    def status(self, text: str) -> None:
        """Tell how long the rounds will take; not what is checked before."""
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
    """Rounds of formats under DataLoader, whole batches, and as their own libraries advise."""
    wanted = RunOptions(
        format=tuple(variants),
        loader=tuple(LOADERS.values()),
        device=(device,),
        cache=(mode,),
        order=("sequential",),
        rounds=str(count),
        limits=False,
    )
    done = run(Manifest.load(root), wanted, out=root / f"{mode}.jsonl", observer=observer)
    if done.interrupted:
        raise KeyboardInterrupt
    for key, failure in done.failures.items():
        raise WrongContent(f"{done.labels[key]}: {failure}")
    found = Measurements({contender(one.variant, one.loader.name, volume): [] for one in done.cases})
    for made in done.records:
        noted = {"speed_bytes_per_s": made.bytes_per_s, "in_memory": made.cache.residency}
        known = {figure: value for figure, value in noted.items() if value is not None}
        name = contender(made.case["format"], made.case["loader"], volume)
        found.note(name, Turn(made.epoch_s, known))
        if made.others is not None:
            found.others.append(made.others)
    return found


def rounds_within(
    heartbeat: Heartbeat, group: Path, rehearsal: Path, root: Path, device: str, volume: str
) -> Measurements:
    """Warm rounds with no more memory than a group may have; for a process of its own."""
    variants = list(Manifest.load(rehearsal).artifacts)
    rounds(rehearsal, variants, device, "warm", "", count=1)  # what libraries take once is not part of it
    join(group)
    heartbeat()
    return rounds(root, variants, device, "warm", volume)


def at(label: str, volume: str) -> str:
    """The contender that a format and a loader are over a volume."""
    return f"{label} at {volume}"


def contender(variant: str, loader: str, volume: str) -> str:
    """The same from their names."""
    return at(f"{variant} · {LOADERS[loader]}", volume)
