"""Concatenation of pieces, or writing them into pre-allocated memory."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict

from iobench.base.units import bytes_text
from iobench.host.process_counters import status_of
from iobench.results.run_warning import Value
from iobench.studies._claims import ClaimResult, Claims, all_of
from iobench.studies._rounds import Measurements, interleave, merged, timed
from iobench.studies._study import IO_EVALUATION, Study, StudyOptions

ROWS, COLUMNS, ITEM_BYTES = 1000, 128, 4  # in a piece of half a MB
COUNTS, QUICK_COUNTS = (2, 8, 32, 128, 512), (2, 8, 32)
MAX_GROWN = 128  # pieces to append one by one: the copied bytes grow with the square
ROUNDS = 15
CAT, STACK, TD_CAT = "torch.cat", "torch.stack", "TensorDict.cat"
FILL, MEMMAP, GROWN = "pre-allocated", "memory-mapped", "torch.cat, piece by piece"


def _setup(options: StudyOptions) -> str:
    counts = ", ".join(map(str, options.sized(COUNTS, QUICK_COUNTS)))
    return f"{counts} pieces of {ROWS} × {COLUMNS} float32 put together along the first dimension"


def _measure(options: StudyOptions) -> Measurements:
    parts, counts = [], list(options.sized(COUNTS, QUICK_COUNTS))
    for count in counts:
        options.on_status(f"{count} pieces")
        methods = {_of(name, count): method for name, method in _methods(count).items()}
        contenders = {name: timed(method) for name, method in methods.items()}
        parts.append(interleave(contenders, ROUNDS, warmup=2, on_status=options.on_status))
        parts[-1].metrics["memory_bytes"] = {name: _peak(method) for name, method in methods.items()}
    few, *_, many = counts
    data = f"{few} to {many} pieces of {bytes_text(ROWS * COLUMNS * ITEM_BYTES)}"
    return merged(parts, data, counts=counts)


def _verdicts(claims: Claims) -> dict[str, ClaimResult]:
    (few, *_, many), held = claims.figures["counts"], ""
    for name in (CAT, FILL):
        if (value := claims.measured.median("memory_bytes", _of(name, many))) is not None:
            held += f"; {name} takes {bytes_text(value)}"
    aside = (
        f"{held}; {_crossing(claims, CAT)}, which also allocates once; "
        f"{_crossing(claims, GROWN)}, which copies everything for each piece"
    )
    wins = claims.faster(_of(FILL, many), _of(CAT, many), aside)
    crossings: list[dict[str, Value]] = [
        {"method": name, "faster_at_pieces": ", ".join(map(str, _wins(claims, name)))}
        for name in (CAT, GROWN)
    ]
    return {
        "Pre-allocating wins clearly once the pieces are many and large.": replace(
            wins, values=[*wins.values, *crossings]
        ),
        "With few pieces there is no gain.": claims.faster(_of(FILL, few), _of(CAT, few)).opposite(),
        "Without pre-allocation a TensorDict takes as long as plain tensors.": all_of(
            [claims.equal(_of(TD_CAT, count), _of(CAT, count)) for count in (few, many)]
        ),
    }


def _methods(count: int) -> dict[str, Callable[[], Any]]:
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
        **({GROWN: grown} if count <= MAX_GROWN else {}),
        CAT: lambda: torch.cat(pieces),
        STACK: lambda: torch.stack(pieces),
        TD_CAT: lambda: torch.cat(dicts),  # type: ignore[arg-type]
        FILL: fill,
        MEMMAP: memory_mapped,
    }


def _of(method: str, count: int) -> str:
    return f"{method}, {count} pieces"


def _crossing(claims: Claims, other: str) -> str:
    wins = _wins(claims, other)
    won = f"with {', '.join(map(str, wins))} pieces" if wins else "at no number of pieces"
    return f"pre-allocated is faster {won} than {other}"


def _wins(claims: Claims, other: str) -> list[int]:
    counts = [count for count in claims.figures["counts"] if _of(other, count) in claims.measured.seconds]
    return [n for n in counts if claims.compare(_of(FILL, n), _of(other, n)).outcome == "faster"]


def _filled(whole: Any, pieces: list[Any]) -> Any:
    for number, piece in enumerate(pieces):
        whole[number * ROWS : (number + 1) * ROWS] = piece
    return whole


def _peak(method: Callable[[], Any]) -> list[float]:
    """Return the growth of resident memory at its peak, in bytes; an empty list if it is unknown."""
    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        before_kib = int(status_of("self", "VmRSS"))
        method()
        grown_kib = int(status_of("self", "VmHWM")) - before_kib
        return [1024 * grown_kib] if grown_kib > 0 else []  # small pieces reuse freed memory
    except OSError:
        return []


QUESTION = "When does pre-allocation pay off?"
STUDY = Study(IO_EVALUATION, QUESTION, _setup, _measure, _verdicts, "experiment 2")
