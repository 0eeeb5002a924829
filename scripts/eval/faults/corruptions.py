"""Corruptions of files, by name."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

PAGE = 4096
FOREIGN = "replaced by another format's file"


def corrupt(
    corruption: str,
    files: Sequence[Path],
    foreign_files: Sequence[Path],
    keep_times: bool,
    rng: random.Random,
) -> Path:
    """Corrupt one of the files, most often the largest, and return it; optionally keep its times."""
    by_size = sorted(files, key=lambda path: path.stat().st_size)
    file = by_size[-1] if rng.random() < 0.5 else rng.choice(by_size)
    stat = file.stat()
    if corruption == FOREIGN:
        _replace(file, rng, rng.choice(foreign_files))
    elif corruption in FILES:
        FILES[corruption](file, rng)
    elif content := bytearray(file.read_bytes()):
        CONTENTS[corruption](content, rng)
        file.write_bytes(content)
    if keep_times:
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    return file


def _flip(content: bytearray, rng: random.Random, count: int = 1, first_share: float = 1.0) -> None:
    for _ in range(count):
        position = int(rng.random() * max(1, len(content) * first_share))
        content[position] ^= 1 << rng.randrange(8)


def _flip_at_end(content: bytearray, rng: random.Random) -> None:
    """Flip a bit near the end, in footers and indices."""
    content[-1 - rng.randrange(min(len(content), 600))] ^= 1 << rng.randrange(8)


def _zero_pages(content: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(content)) // PAGE * PAGE
    length = min(len(content) - start, PAGE * rng.choice((1, 4)))
    content[start : start + length] = bytes(length)


def _swap(content: bytearray, rng: random.Random) -> None:
    """Exchange two ranges as long as a sample's vector."""
    length = min(256, len(content) // 3)
    start = len(content) % 256 if len(content) > 1024 else 0
    one, other = (start + 256 * rng.randrange(max(1, len(content) // 512)) for _ in range(2))
    if abs(one - other) >= length:
        first, second = content[one : one + length], content[other : other + length]
        content[one : one + len(second)], content[other : other + len(first)] = second, first


def _truncate(file: Path, rng: random.Random) -> None:
    os.truncate(file, rng.randrange(max(1, file.stat().st_size)))


def _grow(file: Path, rng: random.Random) -> None:
    os.truncate(file, file.stat().st_size + rng.choice((1, PAGE, 1 << 20)))


def _replace(file: Path, rng: random.Random, other: Path) -> None:
    content, size = other.read_bytes(), file.stat().st_size
    file.write_bytes(content if rng.random() < 0.5 else content.ljust(size, b"\0")[:size])


def _directory(file: Path, rng: random.Random) -> None:
    file.unlink()
    file.mkdir()


def _fifo(file: Path, rng: random.Random) -> None:
    file.unlink()
    os.mkfifo(file)


CONTENTS: dict[str, Callable[[bytearray, random.Random], None]] = {
    "bit flipped": _flip,
    "bit flipped at the start": partial(_flip, first_share=0.05),
    "bit flipped at the end": _flip_at_end,
    "50 bits flipped": partial(_flip, count=50),
    "pages zeroed": _zero_pages,
    "samples swapped": _swap,
}
FILES: dict[str, Callable[[Path, random.Random], None]] = {
    "truncated": _truncate,
    "grown": _grow,
    "replaced by a directory": _directory,
    "replaced by a FIFO": _fifo,
}
CORRUPTIONS = (*CONTENTS, *FILES, FOREIGN)
