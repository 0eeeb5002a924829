"""The exhibit of a 2019 tutorial: a TensorDataset under DataLoader, one sample at a time."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from iobench.base.units import bytes_text
from iobench.studies._base import FAILS, HOLDS, UNKNOWN, Answer, Study, StudyOptions
from iobench.studies._claims import claimed_faster, if_large_enough
from iobench.studies._references import FASTER_LOADING
from iobench.studies._turns import Measurements, interleave, timed

COLUMNS, BATCH = 128, 8192
PUBLISHED, QUICK = 819_200, 81_920
BY_SAMPLE, BY_BATCH, RANGES = "one sample at a time", "whole batches by index", "whole batches by range"
MOST, SOME = 0.5, 0.1
PROFILES = 3  # shares differ from one to the next


class TensorDatasetStudy(Study):
    """Per-sample against batch sampling, with call counts."""

    reference = FASTER_LOADING
    question = "What does one __getitem__ per sample cost?"

    def about(self, options: StudyOptions) -> str:
        """Sizes and settings, in words."""
        return (
            f"TensorDataset of {self._rows(options):,} × {COLUMNS} float64, batch {BATCH}, shuffled, an epoch"
        )

    def measure(self, options: StudyOptions) -> Measurements:
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
        found, profiles = (
            interleave(contenders, on_status=options.on_status),
            [_calls(loaders[BY_SAMPLE]) for _ in range(PROFILES)],
        )
        shares = {name: [one["shares"][name] for one in profiles] for name in profiles[0]["shares"]}
        samples = f"{len(data):,} samples of {bytes_text(data[0].nbytes)}"
        return replace(found, figures={**profiles[0], "shares": shares}, data=samples)

    def answers(self, found: Measurements) -> list[Answer]:
        """What the rounds say about each claim."""
        calls, rows = (found.figures[name] for name in ("calls", "rows"))
        return [
            Answer(
                "An epoch calls __getitem__ once for each sample.",
                HOLDS if calls == rows else FAILS,
                f"{calls:,} calls for {rows:,} samples",
            ),
            _of_share(
                "Most of the time goes into __getitem__ (there 29.2 of 44.8 s).",
                found,
                "__getitem__",
                MOST,
            ),
            _of_share(
                "Stacking the samples takes a good part of the rest (there 8 of 44.8 s).",
                found,
                "collate",
                SOME,
            ),
            if_large_enough(
                claimed_faster("Indexing whole batches is the remedy.", found, BY_BATCH, BY_SAMPLE),
                found,
                BY_SAMPLE,
            ),
        ]

    def _rows(self, options: StudyOptions) -> int:
        return QUICK if options.quick else PUBLISHED


def _of_share(claim: str, found: Measurements, function: str, least: float) -> Answer:
    """Whether all profiles, or none, found more than so much of an epoch in a function."""
    shares: Sequence[float] = found.figures["shares"][function]
    answer = HOLDS if min(shares) > least else FAILS if max(shares) <= least else UNKNOWN
    told = f"{min(shares):.0%} to {max(shares):.0%} of an epoch in {len(shares)} runs of cProfile"
    return Answer(claim, answer, f"{told}, which exaggerates the time of short calls", found.data)


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
