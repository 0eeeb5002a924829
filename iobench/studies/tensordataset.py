"""The exhibit of a 2019 tutorial: a TensorDataset under DataLoader, one sample at a time."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from iobench.studies._base import FAILS, HOLDS, Answer, Found, Options, Study, take_turns, timed
from iobench.studies._claims import claimed_faster

COLUMNS, BATCH = 128, 8192
PUBLISHED, QUICK = 819_200, 81_920
BY_SAMPLE, BY_BATCH, RANGES = "one sample at a time", "whole batches by index", "whole batches by range"
MOST, SOME = 0.5, 0.1


class TensorDatasetStudy(Study):
    """Per-sample against batch sampling, with call counts."""

    source = "“Faster data loading in PyTorch”, a tutorial of 2019"
    question = "What does one __getitem__ per sample cost?"

    def about(self, options: Options) -> str:
        """Sizes and settings, in words."""
        return (
            f"TensorDataset of {self._rows(options):,} × {COLUMNS} float64, batch {BATCH}, shuffled, an epoch"
        )

    def measure(self, options: Options) -> Found:
        """Epochs over the exhibit, and the calls of one."""
        dataset = TensorDataset(torch.randn(self._rows(options), COLUMNS, dtype=torch.float64))
        data = dataset.tensors[0]
        loaders: dict[str, Iterable[Any]] = {
            BY_SAMPLE: DataLoader(dataset, batch_size=BATCH, shuffle=True),
            BY_BATCH: DataLoader(
                dataset, batch_size=None, sampler=BatchSampler(RandomSampler(dataset), BATCH, drop_last=False)
            ),
        }
        contenders = {name: timed(partial(_exhaust, loader)) for name, loader in loaders.items()}
        contenders[RANGES] = timed(
            lambda: _exhaust(data[start : start + BATCH].clone() for start in _starts(data))
        )
        return replace(take_turns(contenders), figures=_calls(loaders[BY_SAMPLE]))

    def answers(self, found: Found) -> list[Answer]:
        """What the rounds say about each claim."""
        shares, calls, rows = (found.figures[name] for name in ("shares", "calls", "rows"))
        where = "under the profiler, which makes short calls look long"
        return [
            Answer(
                "An epoch calls __getitem__ once for each sample.",
                HOLDS if calls == rows else FAILS,
                f"{calls:,} calls for {rows:,} samples",
            ),
            Answer(
                "Most of the time goes into __getitem__ (there 29.2 of 44.8 s).",
                HOLDS if shares["__getitem__"] > MOST else FAILS,
                f"{shares['__getitem__']:.0%} of an epoch, {where}",
            ),
            Answer(
                "Stacking the samples takes a good part of the rest (there 8 of 44.8 s).",
                HOLDS if shares["collate"] > SOME else FAILS,
                f"{shares['collate']:.0%} of an epoch in collating, {where}",
            ),
            claimed_faster("Indexing whole batches is the remedy.", found, BY_BATCH, BY_SAMPLE),
        ]

    def _rows(self, options: Options) -> int:
        return QUICK if options.quick else PUBLISHED


def _exhaust(batches: Iterable[Any]) -> None:
    for _ in batches:
        pass


def _starts(data: torch.Tensor) -> range:
    return range(0, len(data), BATCH)


def _calls(loader: Any) -> dict[str, Any]:
    """How often, and for what part of an epoch, the dataset is asked and batches are collated."""
    profile = cProfile.Profile()
    with profile:
        _exhaust(islice(loader, None))
    figures: dict[Any, Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    total = sum(own for _, _, own, _, _ in figures.values())
    asked = [value for key, value in figures.items() if key[2] == "__getitem__" and "dataset.py" in key[0]]
    collated = max((value[3] for key, value in figures.items() if "collate.py" in key[0]), default=0.0)
    shares = {"__getitem__": sum(value[3] for value in asked) / total, "collate": collated / total}
    return {"shares": shares, "calls": sum(value[1] for value in asked), "rows": len(loader.dataset)}


STUDY = TensorDatasetStudy()
