"""Disks that fail while they are read: one error line that names the file, and never SIGBUS."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from eval.faults.children import REFUSED, failure_of, run_forked
from eval.faults.reading import READERS
from eval.faults.registry import Outcome, Trials, kind, module_of_tests
from eval.faults.targets import VerifiedDatasets, variants
from iobench import Manifest
from iobench.dataset.opener import Opener

SAMPLES, IMAGE_SAMPLES = 6_000, 300
CONTENT_KINDS = ("wrong-content", "wrong-row")  # errors of the content check name the case
OPENS_TWICE = ("run native", "run dataloader")  # they open the data to verify them, and again for a round
LoopDisk = module_of_tests("loop_disk").LoopDisk


class TruncatedFiles:
    """Truncated files, whose memory maps fail as on a failing disk; needs no root."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "files"
        self.path.mkdir(parents=True)

    def fail(self, files: Sequence[Path]) -> None:
        """Truncate each file in the middle."""
        for file in files:
            os.truncate(file, file.stat().st_size // 2)

    def close(self) -> None:
        """Do nothing: there is no device."""


@kind("read-errors")
def read_errors(trials: Trials) -> Iterator[Outcome]:
    """Read every format with every reader from failing disks and truncated files."""
    every = [
        (disk, variant, way, opening)
        for disk in (LoopDisk, TruncatedFiles)
        for variant in variants()
        for way in READERS
        if way != "run stream"
        for opening in ((1,) if disk is TruncatedFiles else (0, 1, 2) if way in OPENS_TWICE else (0, 1))
    ]
    chosen = trials.rng.sample(every, min(len(every), 6 if trials.quick else 200))
    datasets = VerifiedDatasets(
        trials.folder / "whole", dict.fromkeys(one[1] for one in chosen), SAMPLES, IMAGE_SAMPLES
    )
    for number, (disk_type, variant, way, opening) in enumerate(chosen):
        disk: LoopDisk | TruncatedFiles
        try:
            disk = disk_type(trials.folder / str(number))
        except OSError:
            disk = TruncatedFiles(trials.folder / str(number))
        try:
            root = datasets.copy(variant, disk.path / "d")
            result = run_forked(functools.partial(_read, root, variant, way, disk, opening))
        finally:
            disk.close()
        when = f"after opening {opening}" if opening else "before opening"
        what = f"{type(disk).__name__} failing {when}, {variant}, {way}"
        problem = failure_of(result)
        named = str(root) in result.output or result.kind in CONTENT_KINDS
        if result.code == REFUSED and not named:
            problem = f"names no file: {result.output}"
        yield what, problem
        shutil.rmtree(trials.folder / str(number), ignore_errors=True)


def _read(root: Path, variant: str, way: str, disk: LoopDisk | TruncatedFiles, opening: int) -> None:
    """Read, and let the disk fail once the artifact has been opened so many times."""
    manifest = Manifest.load(root)
    if not opening:
        disk.fail(manifest.files_of(variant))
    call, count = Opener.__call__, 0

    def then_fail(self: Opener) -> Any:
        nonlocal count
        reader, count = call(self), count + 1
        if count == opening:
            disk.fail(manifest.files_of(variant))
        return reader

    Opener.__call__ = then_fail  # type: ignore[method-assign]
    READERS[way](root, variant)
