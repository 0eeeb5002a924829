#!/usr/bin/env python3
"""Regret of `iobench tune`: its choice against all settings, loader by loader.

    .venv/bin/python scripts/tunings.py [--rounds 31] [--max-time 30] [--only NAME...]

Takes several minutes for each of five loaders, on an idle machine. Each loader is tuned. Then all settings of
the search space, each with one more changed, and the chosen ones are measured in interleaved rounds of whole
epochs: all in a few rounds, those near the fastest in all rounds. Start methods other than fork take seconds
each time and are measured only if one was chosen. Regret is how much longer the chosen settings take than the
fastest, by the medians of the grid.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import iobench
from iobench.advise.settings import search_space
from iobench.advise.settings.candidate import BASELINE, Candidate
from iobench.advise.settings.consumer import Consumer
from iobench.advise.settings.settings_race import SettingsRace
from iobench.advise.settings.turn import TurnSpec
from iobench.advise.tune import resolve_target
from iobench.advise.tuning_result import TuningResult

FEW, NEAR = 3, 1.25  # rounds of all settings; one whose best is slower by more than this cannot win
ROW_BYTES, ROWS = 64 << 10, 2000


class Computed(Dataset):
    """Samples computed from their row number."""

    def __init__(self, rows: int, make: Callable[[int], np.ndarray]) -> None:
        self.rows, self.make = rows, make

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> torch.Tensor:
        return torch.from_numpy(self.make(row))


def cpu_heavy(folder: Path) -> DataLoader:
    """Decompression of about a millisecond per sample."""
    packed = zlib.compress(np.random.default_rng(0).integers(0, 16, 1 << 18, dtype=np.uint8).tobytes())
    return DataLoader(
        Computed(600, lambda row: np.frombuffer(bytearray(zlib.decompress(packed)), np.uint8)[::64]), 32
    )


def io_bound(folder: Path) -> DataLoader:
    """Random reads that all come from the disk."""
    path = folder / "rows"
    path.write_bytes(np.random.default_rng(0).bytes(ROWS * ROW_BYTES))
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)

    def read(row: int) -> np.ndarray:
        os.posix_fadvise(file, row * ROW_BYTES, ROW_BYTES, os.POSIX_FADV_DONTNEED)
        return np.frombuffer(bytearray(os.pread(file, ROW_BYTES, row * ROW_BYTES)), np.uint8)

    return DataLoader(Computed(ROWS, read), 64, shuffle=True)


def tiny(folder: Path) -> DataLoader:
    """A few samples in memory."""
    return DataLoader(TensorDataset(torch.rand(2000, 16), torch.arange(2000)), 64, shuffle=True)


def sleeping(folder: Path) -> DataLoader:
    """Samples with latency, as from remote storage."""

    def wait(row: int) -> np.ndarray:
        time.sleep(2e-3)
        return np.full(256, row, np.float32)

    return DataLoader(Computed(500, wait), 32)


def too_many_workers(folder: Path) -> DataLoader:
    """Eight workers for next to no work."""
    return DataLoader(TensorDataset(torch.rand(20_000, 64)), 256, num_workers=8)


LOADERS = (cpu_heavy, io_bound, tiny, sleeping, too_many_workers)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=31, help="rounds of the grid")
    parser.add_argument("--max-time", type=float, default=30.0, help="seconds for each tuning")
    parser.add_argument("--only", nargs="*", default=[], help="only loaders of these names")
    options = parser.parse_args()
    print("loader            outcome  chosen                                    regret  fastest  of time")
    for make in LOADERS:
        if not options.only or make.__name__ in options.only:
            with tempfile.TemporaryDirectory() as folder:
                one(make, Path(folder), options.max_time, options.rounds)


def one(make: Callable[[Path], DataLoader], folder: Path, max_time_s: float, rounds: int) -> None:
    """Tune a loader, measure all of its settings, and print a row."""
    began = time.monotonic()
    result = iobench.tune(make(folder), max_time_s=max_time_s, data_dir=folder)
    tuning_s = time.monotonic() - began
    began = time.monotonic()
    candidates = grid(make(folder), result, rounds)
    grid_s = time.monotonic() - began
    chosen, best = candidates[result.use.name], max(candidates.values(), key=lambda candidate: candidate.rate)
    print(
        f"{make.__name__:17} {result.outcome:8} {chosen.name:40} {best.rate / chosen.rate - 1:6.1%}  "
        f"{best.name}  {tuning_s / grid_s:.0%}",
        flush=True,
    )


def grid(loader: DataLoader, result: TuningResult, rounds: int) -> dict[str, Candidate]:
    """Measure all settings; return those near the fastest, the baseline and the chosen one."""
    own, _ = resolve_target(loader)
    consumer = Consumer("cpu")
    race = SettingsRace(own, TurnSpec(consumer, consumer.synchronize))
    known: dict[str, Candidate] = {}
    for idle in (False, True):  # tune may have classified it as either
        like = search_space.LoaderTraits(idle=idle, starts=())
        first, _ = search_space.candidates_for(own, like)
        more = [one for candidate in first for one in search_space.refinements(own, candidate, like)]
        known |= {str(sorted(candidate.changes.items())): candidate for candidate in [*more, *first]}
    chosen = Candidate(result.use.name, result.use.changes, result.use.kind)
    known[str(sorted(chosen.changes.items()))] = chosen
    with race.active():
        race.final_rounds(list(known.values()), float("inf"), FEW)
        working = [candidate for candidate in known.values() if not candidate.failure]
        best = max(max(candidate.final_rates.values()) for candidate in working)
        near = [candidate for candidate in working if max(candidate.final_rates.values()) * NEAR > best]
        near += [t for t in working if t.name in (BASELINE, result.use.name) and t not in near]
        for candidate in near:
            candidate.final_rates.clear()
        race.final_rounds(near, float("inf"), rounds)
    return {candidate.name: candidate for candidate in near}


if __name__ == "__main__":
    main()
