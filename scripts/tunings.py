#!/usr/bin/env python3
"""How right `iobench tune` is: its choice against all settings that there are, loader by loader.

For each loader the tuning is asked for, and then every setting that it races, each of them with one more
changed, and what it chose, take turns in interleaved rounds of whole epochs: all of them in a few, and
those that are near the fastest in all. Other ways of starting workers than forking them take seconds each
time, and are measured only where one was chosen. Regret is how much longer the chosen settings take than
the fastest, by the medians of the grid. Run it on a machine with nothing else to do: it takes minutes.
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
from iobench.tuning import settings
from iobench.tuning.answer import Tuned
from iobench.tuning.contest import Contest
from iobench.tuning.trial import AS_IT_IS, Trial
from iobench.tuning.tune import own_of
from iobench.tuning.turn import Wanted
from iobench.tuning.use import Use

FEW, NEAR = 3, 1.25  # rounds of all settings; one whose best is slower by more than this cannot win
ROW_BYTES, ROWS = 64 << 10, 2000


class Made(Dataset):
    """Samples that a function makes of their number."""

    def __init__(self, rows: int, make: Callable[[int], np.ndarray]) -> None:
        self.rows, self.make = rows, make

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> torch.Tensor:
        return torch.from_numpy(self.make(row))


def cpu_heavy(folder: Path) -> DataLoader:
    """Unpacking, of which each sample takes about a millisecond."""
    packed = zlib.compress(np.random.default_rng(0).integers(0, 16, 1 << 18, dtype=np.uint8).tobytes())
    return DataLoader(
        Made(600, lambda row: np.frombuffer(bytearray(zlib.decompress(packed)), np.uint8)[::64]), 32
    )


def io_bound(folder: Path) -> DataLoader:
    """Reads at random that all come from the disk."""
    path = folder / "rows"
    path.write_bytes(np.random.default_rng(0).bytes(ROWS * ROW_BYTES))
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)

    def read(row: int) -> np.ndarray:
        os.posix_fadvise(file, row * ROW_BYTES, ROW_BYTES, os.POSIX_FADV_DONTNEED)
        return np.frombuffer(bytearray(os.pread(file, ROW_BYTES, row * ROW_BYTES)), np.uint8)

    return DataLoader(Made(ROWS, read), 64, shuffle=True)


def tiny(folder: Path) -> DataLoader:
    """A few samples that are in memory already."""
    return DataLoader(TensorDataset(torch.rand(2000, 16), torch.arange(2000)), 64, shuffle=True)


def sleeping(folder: Path) -> DataLoader:
    """What comes from far away: each sample is waited for."""

    def wait(row: int) -> np.ndarray:
        time.sleep(2e-3)
        return np.full(256, row, np.float32)

    return DataLoader(Made(500, wait), 32)


def too_many_workers(folder: Path) -> DataLoader:
    """Somebody's eight workers for next to no work."""
    return DataLoader(TensorDataset(torch.rand(20_000, 64)), 256, num_workers=8)


LOADERS = (cpu_heavy, io_bound, tiny, sleeping, too_many_workers)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--rounds", type=int, default=31, help="rounds of the grid")
    asked.add_argument("--max-time", type=float, default=30.0, help="seconds for each tuning")
    asked.add_argument("--only", nargs="*", default=[], help="only loaders of these names")
    given = asked.parse_args()
    print("loader            outcome  chosen                                    regret  fastest  of time")
    for make in LOADERS:
        if not given.only or make.__name__ in given.only:
            with tempfile.TemporaryDirectory() as folder:
                one(make, Path(folder), given.max_time, given.rounds)


def one(make: Callable[[Path], DataLoader], folder: Path, max_time_s: float, rounds: int) -> None:
    """Tune a loader, measure all of its settings, and print a row."""
    began = time.monotonic()
    said = iobench.tune(make(folder), max_time_s=max_time_s, data_dir=folder)
    tuning_s = time.monotonic() - began
    began = time.monotonic()
    trials = grid(make(folder), said, rounds)
    grid_s = time.monotonic() - began
    chosen, best = trials[said.use.name], max(trials.values(), key=lambda trial: trial.rate)
    print(
        f"{make.__name__:17} {said.outcome:8} {chosen.name:40} {best.rate / chosen.rate - 1:6.1%}  "
        f"{best.name}  {tuning_s / grid_s:.0%}",
        flush=True,
    )


def grid(loader: DataLoader, said: Tuned, rounds: int) -> dict[str, Trial]:
    """The settings near the fastest of all, and the chosen and present ones, after so many rounds."""
    own, _ = own_of(loader)
    use = Use("cpu")
    contest = Contest(own, Wanted(use, use.synchronize))
    known: dict[str, Trial] = {}
    for idle in (False, True):  # as tune may have taken it for either
        like = settings.Like(idle=idle, starts=())
        first, _ = settings.trials_of(own, like)
        more = [one for trial in first for one in settings.refinements(own, trial, like)]
        known |= {str(sorted(trial.changes.items())): trial for trial in [*more, *first]}
    chosen = Trial(said.use.name, said.use.changes, said.use.kind)
    known[str(sorted(chosen.changes.items()))] = chosen
    with contest.under_way():
        contest.fresh(list(known.values()), float("inf"), FEW)
        working = [trial for trial in known.values() if not trial.failed]
        best = max(max(trial.fresh.values()) for trial in working)
        near = [trial for trial in working if max(trial.fresh.values()) * NEAR > best]
        near += [t for t in working if t.name in (AS_IT_IS, said.use.name) and t not in near]
        for trial in near:
            trial.fresh.clear()
        contest.fresh(near, float("inf"), rounds)
    return {trial.name: trial for trial in near}


if __name__ == "__main__":
    main()
