"""Putting pieces together: concatenated, or written into memory that was there before."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict

from iobench.base.units import bytes_text
from iobench.studies._base import Answer, Study, StudyOptions
from iobench.studies._claims import against, all_of, claimed_equal, claimed_faster, opposite
from iobench.studies._references import IO_EVALUATION
from iobench.studies._turns import Measurements, interleave, timed, together

ROWS, COLUMNS, ITEM_BYTES = 1000, 128, 4  # of a piece: half a MB
COUNTS, QUICK_COUNTS = (2, 8, 32, 128, 512), (2, 8, 32)
MOST_GROWN = 128  # pieces that are added one by one: what that copies grows with their square
TURNS = 15
CAT, STACK, TD_CAT, FILL, MEMMAP = (
    "torch.cat",
    "torch.stack",
    "TensorDict.cat",
    "pre-allocated",
    "memory-mapped",
)
GROWN = "torch.cat, piece by piece"


class PreallocationStudy(Study):
    """Time and peak memory against the number of pieces."""

    reference = IO_EVALUATION
    part = "experiment 2"
    question = "When does pre-allocating pay?"

    def about(self, options: StudyOptions) -> str:
        """Sizes and settings, in words."""
        counts = ", ".join(map(str, self._counts(options)))
        return f"{counts} pieces of {ROWS} × {COLUMNS} float32 put together along the first dimension"

    def measure(self, options: StudyOptions) -> Measurements:
        """Each way with each number of pieces."""
        parts = []
        for count in self._counts(options):
            options.on_status(f"{count} pieces")
            ways = {_of(name, count): way for name, way in _ways(count).items()}
            contenders = {name: timed(way) for name, way in ways.items()}
            parts.append(interleave(contenders, TURNS, warmup=2, on_status=options.on_status))
            parts[-1].noted["memory_bytes"] = {name: _peak(way) for name, way in ways.items()}
        few, *_, many = counts = list(self._counts(options))
        data = f"{few} to {many} pieces of {bytes_text(ROWS * COLUMNS * ITEM_BYTES)}"
        return together(parts, data, counts=counts)

    def answers(self, found: Measurements) -> list[Answer]:
        """What the rounds say about each claim."""
        few, *_, many = found.figures["counts"]
        gains = claimed_faster("", found, _of(FILL, few), _of(CAT, few))
        apart = [claimed_equal("", found, _of(TD_CAT, count), _of(CAT, count)) for count in (few, many)]
        return [
            claimed_faster(
                "Pre-allocating wins clearly once the pieces are many and large.",
                found,
                _of(FILL, many),
                _of(CAT, many),
                f"{_memory(found, many)}; {_crossing(found, CAT)}, which allocates once, too; "
                f"{_crossing(found, GROWN)}, which copies all that is there for each piece",
            ),
            opposite(gains, "With few pieces there is no gain."),
            all_of("Without pre-allocation a TensorDict takes as long as plain tensors.", apart),
        ]

    def _counts(self, options: StudyOptions) -> tuple[int, ...]:
        return QUICK_COUNTS if options.quick else COUNTS


def _ways(count: int) -> dict[str, Callable[[], Any]]:
    pieces = [torch.full((ROWS, COLUMNS), float(number)) for number in range(count)]
    dicts = [TensorDict({"x": piece}, [ROWS]) for piece in pieces]

    def fill() -> Any:
        whole = TensorDict({"x": torch.empty(count * ROWS, COLUMNS)}, [count * ROWS])
        return _filled(whole, dicts)

    def memory_mapped() -> Any:
        with tempfile.TemporaryDirectory(prefix="iobench-") as folder:
            shape = TensorDict({"x": torch.empty(1, COLUMNS).expand(count * ROWS, COLUMNS)}, [count * ROWS])
            return _filled(shape.memmap_like(folder), dicts)

    def grown() -> Any:
        whole = pieces[0]
        for piece in pieces[1:]:
            whole = torch.cat([whole, piece])
        return whole

    return {
        **({GROWN: grown} if count <= MOST_GROWN else {}),
        CAT: lambda: torch.cat(pieces),
        STACK: lambda: torch.stack(pieces),
        TD_CAT: lambda: torch.cat(dicts),  # type: ignore[arg-type]
        FILL: fill,
        MEMMAP: memory_mapped,
    }


def _of(way: str, count: int) -> str:
    """The contender that puts so many pieces together in this way."""
    return f"{way}, {count} pieces"


def _crossing(found: Measurements, other: str) -> str:
    """With how many pieces pre-allocating is faster than another way."""
    counts = [n for n in found.figures["counts"] if _of(other, n) in found.seconds]
    wins = [n for n in counts if against(found.seconds, _of(FILL, n), _of(other, n)).outcome == "faster"]
    won = f"with {', '.join(map(str, wins))} pieces" if wins else "with no number of pieces tried"
    return f"pre-allocated is faster {won} than {other}"


def _filled(whole: Any, pieces: list[Any]) -> Any:
    for number, piece in enumerate(pieces):
        whole[number * ROWS : (number + 1) * ROWS] = piece
    return whole


def _peak(way: Callable[[], Any]) -> list[float]:
    """Bytes by which resident memory was larger at its peak; nothing where the kernel does not tell."""
    try:
        Path("/proc/self/clear_refs").write_text("5")  # forgets the last peak
        before = _status_bytes("VmRSS")
        way()
        grown = _status_bytes("VmHWM") - before
        return [grown] if grown > 0 else []  # small pieces go where others were
    except OSError:
        return []


def _status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def _memory(found: Measurements, count: int) -> str:
    held = {name: found.median("memory_bytes", _of(name, count)) for name in (CAT, FILL)}
    told = [f"{name} takes {bytes_text(value)}" for name, value in held.items() if value is not None]
    return "".join(f"; {one}" for one in told)


STUDY = PreallocationStudy()
