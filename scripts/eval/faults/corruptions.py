"""Corruptions of files, by name."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

PAGE = 4096
Corruption: TypeAlias = (
    "Callable[[Path, random.Random, Sequence[Path]], None]"  # the last: files of other formats
)


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
    CORRUPTIONS[corruption](file, rng, foreign_files)
    if keep_times:
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    return file


def _rewrite(file: Path, change: Callable[[bytearray], None]) -> None:
    content = bytearray(file.read_bytes())
    if content:
        change(content)
    file.write_bytes(content)


def _flip(count: int, first_share: float) -> Corruption:
    def flip(file: Path, rng: random.Random, foreign_files: Sequence[Path]) -> None:
        def change(content: bytearray) -> None:
            for _ in range(count):
                position = int(rng.random() * max(1, len(content) * first_share))
                content[position] ^= 1 << rng.randrange(8)

        _rewrite(file, change)

    return flip


def _flip_at_end(file: Path, rng: random.Random, foreign_files: Sequence[Path]) -> None:
    """Flip a bit near the end, in footers and indices."""

    def change(content: bytearray) -> None:
        content[-1 - rng.randrange(min(len(content), 600))] ^= 1 << rng.randrange(8)

    _rewrite(file, change)


def _truncate(file: Path, rng: random.Random, foreign_files: Sequence[Path]) -> None:
    os.truncate(file, rng.randrange(max(1, file.stat().st_size)))


def _grow(file: Path, rng: random.Random, foreign_files: Sequence[Path]) -> None:
    os.truncate(file, file.stat().st_size + rng.choice((1, PAGE, 1 << 20)))


def _zero_pages(file: Path, rng: random.Random, foreign_files: Sequence[Path]) -> None:
    def change(content: bytearray) -> None:
        start = rng.randrange(len(content)) // PAGE * PAGE
        length = min(len(content) - start, PAGE * rng.choice((1, 4)))
        content[start : start + length] = bytes(length)

    _rewrite(file, change)


def _swap(file: Path, rng: random.Random, foreign_files: Sequence[Path]) -> None:
    """Exchange two ranges as long as a sample's vector."""

    def change(content: bytearray) -> None:
        length = min(256, len(content) // 3)
        start = len(content) % 256 if len(content) > 1024 else 0
        one, other = (start + 256 * rng.randrange(max(1, len(content) // 512)) for _ in range(2))
        if abs(one - other) >= length:
            first, second = content[one : one + length], content[other : other + length]
            content[one : one + len(second)], content[other : other + len(first)] = second, first

    _rewrite(file, change)


def _replace(file: Path, rng: random.Random, foreign_files: Sequence[Path]) -> None:
    content, size = rng.choice(foreign_files).read_bytes(), file.stat().st_size
    file.write_bytes(content if rng.random() < 0.5 else content.ljust(size, b"\0")[:size])


def _directory(file: Path, rng: random.Random, foreign_files: Sequence[Path]) -> None:
    file.unlink()
    file.mkdir()


def _fifo(file: Path, rng: random.Random, foreign_files: Sequence[Path]) -> None:
    file.unlink()
    os.mkfifo(file)


CORRUPTIONS: dict[str, Corruption] = {
    "bit flipped": _flip(1, 1.0),
    "bit flipped at the start": _flip(1, 0.05),
    "bit flipped at the end": _flip_at_end,
    "50 bits flipped": _flip(50, 1.0),
    "truncated": _truncate,
    "grown": _grow,
    "pages zeroed": _zero_pages,
    "samples swapped": _swap,
    "replaced by another format's file": _replace,
    "replaced by a directory": _directory,
    "replaced by a FIFO": _fifo,
}
