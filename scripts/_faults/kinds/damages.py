"""Damaged artifacts of every format: one line or right content, whoever reads them."""

from __future__ import annotations

import functools
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from _faults.children import complaint, forked
from _faults.reading import WAYS, assert_right, prepare
from _faults.registry import Outcome, Trials, kind
from iobench import Manifest
from iobench.dataset.prepare import DEFAULT_FORMATS

PAGE = 4096
Deed = Callable[[Path, random.Random], None]


@kind("damages")
def damages(trials: Trials) -> Iterator[Outcome]:
    """Every damage to every variant, met by every way to read."""
    variants = (*DEFAULT_FORMATS, "hdf5:compression=gzip", "hdf5:chunk_bytes=0")
    whole = prepare(trials.folder / "whole", variants)
    every = [(variant, way, deed) for variant in variants for way in WAYS for deed in DEEDS]
    for number in trials.some(full=700, quick=40):
        if number % len(every) == 0:
            trials.chance.shuffle(every)
        variant, way, deed = every[number % len(every)]
        root, kept = trials.folder / str(number) / "d", trials.chance.random() < 0.5
        shutil.copytree(whole.root, root)
        for file in root.rglob("*"):  # as they were when they were verified
            shutil.copystat(whole.root / file.relative_to(root), file)
        file = _damaged(Manifest.load(root), variant, deed, kept, trials.chance)
        ended = forked(functools.partial(_read, root, variant, way))
        times = ", times preserved" if kept else ""
        yield f"{number}: {deed} in {file.name} of {variant}{times}, {way}", complaint(ended)
        shutil.rmtree(root.parent)


def _read(root: Path, variant: str, way: str) -> None:
    read = WAYS[way]
    read(root, variant)
    if getattr(read, "proves", False):
        assert_right(root, variant)


def _damaged(manifest: Manifest, variant: str, deed: str, kept: bool, chance: random.Random) -> Path:
    """Damage a file of an artifact, most often the largest; says which."""
    files = sorted(manifest.files_of(variant), key=lambda path: path.stat().st_size)
    file = files[-1] if chance.random() < 0.7 else chance.choice(files)
    stat = file.stat()
    DEEDS[deed](file, chance)
    if kept:
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    return file


def _changed(file: Path, change: Callable[[bytearray], None]) -> None:
    content = bytearray(file.read_bytes())
    change(content)
    file.write_bytes(content)


def _flip(count: int, most: float) -> Deed:
    def flip(file: Path, chance: random.Random) -> None:
        def change(content: bytearray) -> None:
            for _ in range(count):
                place = int(chance.random() * max(1, len(content) * most))
                content[place] ^= 1 << chance.randrange(8)

        _changed(file, change)

    return flip


def _truncate(file: Path, chance: random.Random) -> None:
    os.truncate(file, chance.randrange(file.stat().st_size))


def _grow(file: Path, chance: random.Random) -> None:
    os.truncate(file, file.stat().st_size + chance.choice((1, PAGE, 1 << 20)))


def _zero_pages(file: Path, chance: random.Random) -> None:
    def change(content: bytearray) -> None:
        start = chance.randrange(len(content)) // PAGE * PAGE
        length = min(len(content) - start, PAGE * chance.choice((1, 4)))
        content[start : start + length] = bytes(length)

    _changed(file, change)


def _swap(file: Path, chance: random.Random) -> None:
    """Exchange two stretches as long as a sample's vector, wherever they lie."""

    def change(content: bytearray) -> None:
        length = min(256, len(content) // 3)
        start = len(content) % 256 if len(content) > 1024 else 0
        one, other = (start + 256 * chance.randrange(max(1, len(content) // 512)) for _ in range(2))
        if abs(one - other) >= length:
            first, second = content[one : one + length], content[other : other + length]
            content[one : one + len(second)], content[other : other + len(first)] = second, first

    _changed(file, change)


def _of_another(file: Path, chance: random.Random) -> None:
    root = file.parent.parent
    others = [path for path in root.rglob("*") if path.is_file() and path.parent != file.parent]
    content, size = chance.choice(sorted(others)).read_bytes(), file.stat().st_size
    file.write_bytes(content if chance.random() < 0.5 else content.ljust(size, b"\0")[:size])


def _directory(file: Path, chance: random.Random) -> None:
    file.unlink()
    file.mkdir()


def _fifo(file: Path, chance: random.Random) -> None:
    file.unlink()
    os.mkfifo(file)


DEEDS: dict[str, Deed] = {
    "a bit": _flip(1, 1.0),
    "a bit of the beginning": _flip(1, 0.05),
    "many bits": _flip(50, 1.0),
    "truncated": _truncate,
    "grown": _grow,
    "pages of zeros": _zero_pages,
    "samples swapped": _swap,
    "another format's file": _of_another,
    "a directory": _directory,
    "a FIFO": _fifo,
}
