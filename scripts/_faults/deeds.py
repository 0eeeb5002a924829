"""What is done to a file to damage it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

PAGE = 4096
Deed: TypeAlias = "Callable[[Path, random.Random, Sequence[Path]], None]"  # the last are files of others


def damage(
    deed: str, files: Sequence[Path], strangers: Sequence[Path], kept: bool, chance: random.Random
) -> Path:
    """Do a deed to one of the files, most often to the largest; says which. `kept`: its times stay."""
    by_size = sorted(files, key=lambda path: path.stat().st_size)
    file = by_size[-1] if chance.random() < 0.5 else chance.choice(by_size)
    stat = file.stat()
    DEEDS[deed](file, chance, strangers)
    if kept:
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    return file


def _changed(file: Path, change: Callable[[bytearray], None]) -> None:
    content = bytearray(file.read_bytes())
    if content:
        change(content)
    file.write_bytes(content)


def _flip(count: int, most: float) -> Deed:
    def flip(file: Path, chance: random.Random, strangers: Sequence[Path]) -> None:
        def change(content: bytearray) -> None:
            for _ in range(count):
                place = int(chance.random() * max(1, len(content) * most))
                content[place] ^= 1 << chance.randrange(8)

        _changed(file, change)

    return flip


def _end(file: Path, chance: random.Random, strangers: Sequence[Path]) -> None:
    """A bit of what stands at the end: footers and indices."""

    def change(content: bytearray) -> None:
        content[-1 - chance.randrange(min(len(content), 600))] ^= 1 << chance.randrange(8)

    _changed(file, change)


def _truncate(file: Path, chance: random.Random, strangers: Sequence[Path]) -> None:
    os.truncate(file, chance.randrange(max(1, file.stat().st_size)))


def _grow(file: Path, chance: random.Random, strangers: Sequence[Path]) -> None:
    os.truncate(file, file.stat().st_size + chance.choice((1, PAGE, 1 << 20)))


def _zero_pages(file: Path, chance: random.Random, strangers: Sequence[Path]) -> None:
    def change(content: bytearray) -> None:
        start = chance.randrange(len(content)) // PAGE * PAGE
        length = min(len(content) - start, PAGE * chance.choice((1, 4)))
        content[start : start + length] = bytes(length)

    _changed(file, change)


def _swap(file: Path, chance: random.Random, strangers: Sequence[Path]) -> None:
    """Exchange two stretches as long as a sample's vector, wherever they lie."""

    def change(content: bytearray) -> None:
        length = min(256, len(content) // 3)
        start = len(content) % 256 if len(content) > 1024 else 0
        one, other = (start + 256 * chance.randrange(max(1, len(content) // 512)) for _ in range(2))
        if abs(one - other) >= length:
            first, second = content[one : one + length], content[other : other + length]
            content[one : one + len(second)], content[other : other + len(first)] = second, first

    _changed(file, change)


def _of_another(file: Path, chance: random.Random, strangers: Sequence[Path]) -> None:
    content, size = chance.choice(strangers).read_bytes(), file.stat().st_size
    file.write_bytes(content if chance.random() < 0.5 else content.ljust(size, b"\0")[:size])


def _directory(file: Path, chance: random.Random, strangers: Sequence[Path]) -> None:
    file.unlink()
    file.mkdir()


def _fifo(file: Path, chance: random.Random, strangers: Sequence[Path]) -> None:
    file.unlink()
    os.mkfifo(file)


DEEDS: dict[str, Deed] = {
    "a bit": _flip(1, 1.0),
    "a bit of the beginning": _flip(1, 0.05),
    "a bit of the end": _end,
    "many bits": _flip(50, 1.0),
    "truncated": _truncate,
    "grown": _grow,
    "pages of zeros": _zero_pages,
    "samples swapped": _swap,
    "another format's file": _of_another,
    "a directory": _directory,
    "a FIFO": _fifo,
}
