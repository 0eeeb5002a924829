"""Regret of `iobench tune`: its choice against all settings, loader by loader.

Each loader is tuned. Then all settings of the search space, each with one more changed, and the chosen ones
are measured in interleaved rounds of whole epochs: all in a few rounds, those near the fastest in all rounds.
Start methods other than fork take seconds each time and are measured only if one was chosen. Regret is how
much longer the chosen settings take than the fastest, by the medians of the grid.
"""

from __future__ import annotations

import argparse
import os
import time
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

import iobench
from eval import harness
from eval.harness import Row, Trials
from eval.loaders.datasets import Computed
from iobench.advise.settings import search_space
from iobench.advise.settings.candidate import BASELINE, Candidate
from iobench.advise.settings.settings_race import SettingsRace
from iobench.advise.settings.tunable_loader import TunableLoader
from iobench.advise.settings.turn import TurnSpec
from iobench.advise.tuning_result import TuningResult

OPTIONS = {"rounds": (31, "rounds of the grid"), "max_time": (30.0, "seconds for each tuning")}
FEW, NEAR = 3, 1.25  # rounds of all settings; one whose best is slower by more than this cannot win
ROW_BYTES, ROWS = 64 << 10, 2000


def cpu_heavy(folder: Path) -> DataLoader:
    """Decompression of about a millisecond per sample."""
    packed = zlib.compress(np.random.default_rng(0).integers(0, 16, 1 << 18, dtype=np.uint8).tobytes())

    def unpack(row: int) -> torch.Tensor:
        return torch.frombuffer(bytearray(zlib.decompress(packed)), dtype=torch.uint8)[::64]

    return DataLoader(Computed(600, unpack), 32)


def io_bound(folder: Path) -> DataLoader:
    """Random reads that all come from the disk."""
    path = folder / "rows"
    path.write_bytes(np.random.default_rng(0).bytes(ROWS * ROW_BYTES))
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)

    def read(row: int) -> torch.Tensor:
        os.posix_fadvise(file, row * ROW_BYTES, ROW_BYTES, os.POSIX_FADV_DONTNEED)
        return torch.frombuffer(bytearray(os.pread(file, ROW_BYTES, row * ROW_BYTES)), dtype=torch.uint8)

    return DataLoader(Computed(ROWS, read), 64, shuffle=True)


def tiny(folder: Path) -> DataLoader:
    """A few samples in memory."""
    return DataLoader(TensorDataset(torch.rand(2000, 16), torch.arange(2000)), 64, shuffle=True)


def sleeping(folder: Path) -> DataLoader:
    """Samples with latency, as from remote storage."""

    def wait(row: int) -> torch.Tensor:
        time.sleep(2e-3)
        return torch.full((256,), row, dtype=torch.float32)

    return DataLoader(Computed(500, wait), 32)


def too_many_workers(folder: Path) -> DataLoader:
    """Eight workers for next to no work."""
    return DataLoader(TensorDataset(torch.rand(20_000, 64)), 256, num_workers=8)


LOADERS = (cpu_heavy, io_bound, tiny, sleeping, too_many_workers)


def trials(options: argparse.Namespace) -> Trials:
    return {make.__name__: partial(regret, make, options) for make in LOADERS}


def regret(make: Callable[[Path], DataLoader], options: argparse.Namespace) -> Iterator[Row]:
    """Tune a loader, measure all of its settings, and yield the regret."""
    folder = options.folder
    result, tuning_s = harness.timed(
        lambda: iobench.tune(make(folder), max_time_s=options.max_time, data_dir=folder)
    )
    candidates, grid_s = harness.timed(lambda: grid(make(folder), result, options.rounds))
    chosen, best = candidates[result.use.name], max(candidates.values(), key=lambda candidate: candidate.rate)
    yield {
        "outcome": result.outcome,
        "chosen": chosen.name,
        "regret": best.rate / chosen.rate - 1,
        "fastest": best.name,
        "of the grid's time": tuning_s / grid_s,
    }


def grid(loader: DataLoader, result: TuningResult, rounds: int) -> dict[str, Candidate]:
    """Measure all settings; return those near the fastest, the baseline and the chosen one."""
    own = TunableLoader(loader)
    race = SettingsRace(own, TurnSpec())
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
            candidate.final.clear()
        race.final_rounds(near, float("inf"), rounds)
    return {candidate.name: candidate for candidate in near}
