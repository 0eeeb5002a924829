"""Disks that fail while they are read: one line that names the file, never death by SIGBUS."""

from __future__ import annotations

import errno
import functools
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from _faults.attacked import Whole, variants
from _faults.children import REFUSED, complaint, forked
from _faults.reading import WAYS
from _faults.registry import Outcome, Trials, kind
from iobench import Manifest
from iobench.dataset.manifest import Opener

SAMPLES, PICTURES, DISK_BYTES = 6_000, 300, 96 << 20
TWICE = ("run native", "run dataloader")  # which open it to prove it, and again for a round


class LoopDisk:
    """A small file system on a loop device, whose reads fail from `fail` on; OSError where there is none."""

    def __init__(self, folder: Path) -> None:
        self.path, self._backing = folder / "disk", folder / "backing"
        self.path.mkdir(parents=True)
        with open(self._backing, "wb") as file:
            file.truncate(DISK_BYTES)
        if os.geteuid():
            raise OSError(errno.EPERM, "a loop device needs root")
        _call("mkfs.ext4", "-q", "-F", "-O", "^has_journal", str(self._backing))
        _call("mount", "-o", "loop", str(self._backing), str(self.path))

    def fail(self, files: Sequence[Path]) -> None:
        """Cut what is behind the device, and drop of these files what no map holds in memory."""
        for file in files:
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
        os.truncate(self._backing, 0)

    def close(self) -> None:
        """Give the device back."""
        _call("umount", "--lazy", str(self.path))


class CutFiles:
    """In place of a disk that cannot be had: files that are cut, whose maps fail alike."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "cut"
        self.path.mkdir(parents=True)

    def fail(self, files: Sequence[Path]) -> None:
        """Cut each in the middle."""
        for file in files:
            os.truncate(file, file.stat().st_size // 2)

    def close(self) -> None:
        """Nothing was taken."""


@kind("read-errors")
def read_errors(trials: Trials) -> Iterator[Outcome]:
    """Every way to read every format, on a disk that fails, and over files that are cut."""
    every = [
        (disk, variant, way, opening)
        for disk in (LoopDisk, CutFiles)
        for variant in variants()
        for way in WAYS
        if way != "run stream"
        for opening in ((1,) if disk is CutFiles else (0, 1, 2) if way in TWICE else (0, 1))
    ]
    chosen = trials.chance.sample(every, min(len(every), 6 if trials.quick else 200))
    whole = Whole(trials.folder / "whole", dict.fromkeys(one[1] for one in chosen), SAMPLES, PICTURES)
    for number, (disk_type, variant, way, opening) in enumerate(chosen):
        disk: LoopDisk | CutFiles
        try:
            disk = disk_type(trials.folder / str(number))
        except OSError:
            disk = CutFiles(trials.folder / str(number))
        try:
            root = whole.copy(variant, disk.path / "d")
            ended = forked(functools.partial(_read, root, variant, way, disk, opening))
        finally:
            disk.close()
        when = f"after opening {opening}" if opening else "before it is opened"
        what = f"{type(disk).__name__} that fails {when}, {variant}, {way}"
        problem = complaint(ended)
        named = str(root) in ended.said or "wrong content" in ended.said
        if ended.code == REFUSED and not named:
            problem = f"it names no file: {ended.said}"
        yield what, problem
        shutil.rmtree(trials.folder / str(number), ignore_errors=True)


def _read(root: Path, variant: str, way: str, disk: LoopDisk | CutFiles, opening: int) -> None:
    """Read, and have the disk fail as soon as the artifact has been opened so many times."""
    manifest = Manifest.load(root)
    if not opening:
        disk.fail(manifest.files_of(variant))
    opened, count = Opener.__call__, 0

    def then_fail(self: Opener) -> Any:
        nonlocal count
        reader, count = opened(self), count + 1
        if count == opening:
            disk.fail(manifest.files_of(variant))
        return reader

    Opener.__call__ = then_fail  # type: ignore[method-assign]
    WAYS[way](root, variant)


def _call(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        raise OSError(errno.EIO, f"{command[0]}: {error.stderr.decode().strip()}") from error
