"""Runs of `iobench run` over volumes of data, and a control group with little memory, for studies."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from iobench.bench.observer import Observer
from iobench.bench.options import RunOptions
from iobench.bench.run import run
from iobench.dataset.manifest import Manifest
from iobench.host import usable_memory
from iobench.studies._base import StudyOptions
from iobench.studies._rounds import ROUNDS, Measurements, RoundResult
from iobench.studies._subprocess import Heartbeat

LOADERS = {"dataloader": "dataloader:fetch=batch", "native": "native"}  # variant of each loader
NO_SWAP = {"memory.swap.max": "0", "memory.memsw.limit_in_bytes": "{}"}  # cgroup version 2, version 1
RELEASE_S = 5.0  # for the kernel to notice that the last process of a group has ended


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


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """Yield the folder of a temporary control group with a memory limit; PermissionError if not allowed."""
    group = _create(limit_bytes)
    try:
        yield group
    finally:
        _remove(group)


def join(group: Path) -> None:
    """Move this process into a group, where all memory that it allocates from now on counts."""
    (group / "cgroup.procs").write_text(str(os.getpid()))


def _create(limit_bytes: int) -> Path:
    """Create the group below this process's group or next to it.

    Version 2 has no limits below a group that has processes.
    """
    name, reason = f"iobench-{os.getpid()}", "no control group accounts for memory here"
    for parent in (folder for own in usable_memory.memory_groups() for folder in (own, own.parent)):
        group = parent / name
        try:
            group.mkdir()
        except OSError as error:
            reason = f"{group}: {error.strerror}"
            continue
        try:
            limit = next(group / file for file in usable_memory.LIMIT_FILES if (group / file).exists())
            limit.write_text(str(limit_bytes))
            for file, value in NO_SWAP.items():
                if (group / file).exists():
                    (group / file).write_text(value.format(limit_bytes))
            return group
        except (OSError, StopIteration) as error:
            reason = f"{group}: memory cannot be limited here ({error})" if str(error) else reason
            group.rmdir()
    raise PermissionError(reason)


def _remove(group: Path) -> None:
    until = time.monotonic() + RELEASE_S
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.05)
