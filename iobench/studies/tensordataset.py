"""The example of a 2019 tutorial: a TensorDataset under DataLoader, one sample at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from iobench.base.units import bytes_text
from iobench.host.call_profile import CallProfile
from iobench.results.run_warning import Value
from iobench.studies._claims import ClaimResult, Claims, judged
from iobench.studies._rounds import Measurements, exhaust, interleave, timed
from iobench.studies._study import FASTER_LOADING, Study, StudyOptions

COLUMNS, BATCH = 128, 8192
PUBLISHED, QUICK = 819_200, 81_920
BY_SAMPLE, BY_BATCH, RANGES = "one sample at a time", "whole batches by index", "whole batches by range"
MOST, SOME = 0.5, 0.1
PROFILES = 3  # shares vary between profiles


def _setup(options: StudyOptions) -> str:
    rows = options.sized(PUBLISHED, QUICK)
    return f"TensorDataset of {rows:,} × {COLUMNS} float64, batch {BATCH}, shuffled, an epoch"


def _measure(options: StudyOptions) -> Measurements:
    rows = options.sized(PUBLISHED, QUICK)
    dataset = TensorDataset(torch.randn(rows, COLUMNS, dtype=torch.float64))
    data = dataset.tensors[0]
    batches = BatchSampler(RandomSampler(dataset), BATCH, drop_last=False)
    loaders: dict[str, Iterable[Any]] = {
        BY_SAMPLE: DataLoader(dataset, batch_size=BATCH, shuffle=True),
        BY_BATCH: DataLoader(dataset, batch_size=None, sampler=batches),
    }
    contenders = {name: timed(partial(exhaust, loader)) for name, loader in loaders.items()}
    starts = range(0, len(data), BATCH)
    contenders[RANGES] = timed(lambda: exhaust(data[at : at + BATCH].clone() for at in starts))
    measured = interleave(contenders, on_status=options.on_status)
    profiles = [_calls(loaders[BY_SAMPLE]) for _ in range(PROFILES)]
    shares = {name: [one["shares"][name] for one in profiles] for name in profiles[0]["shares"]}
    samples = f"{len(data):,} samples of {bytes_text(data[0].nbytes)}"
    return replace(measured, figures={**profiles[0], "shares": shares}, data=samples)


def _once(claims: Claims) -> ClaimResult:
    calls, rows = claims.figures["calls"], claims.figures["rows"]
    return judged(calls == rows, f"{calls:,} calls for {rows:,} samples", calls=calls, samples=rows)


def _share(claims: Claims, function: str, least: float) -> ClaimResult:
    """Return the verdict on a share of an epoch in a function, from the shares in all profiles."""
    shares: Sequence[float] = claims.figures["shares"][function]
    decided = min(shares) > least or max(shares) <= least
    evidence = f"{min(shares):.0%} to {max(shares):.0%} of an epoch in {len(shares)} runs of cProfile"
    evidence += ", which exaggerates the time of short calls"
    values: dict[str, Value] = {"function": function, "lowest": min(shares), "highest": max(shares)}
    return judged(min(shares) > least if decided else None, evidence, claims.measured.data, **values)


def _calls(loader: Any) -> dict[str, Any]:
    """Profile an epoch: calls of the dataset, and shares of the time in it and in collating."""
    with CallProfile() as profile:
        exhaust(loader)
    if profile.obstacle is not None:
        obstacle = f"another profiler is active ({profile.obstacle}), so that calls cannot be counted"
        return {"obstacle": obstacle, "shares": {}}
    figures = profile.calls
    total = sum(own for _, _, own, _, _ in figures.values())
    calls = [value for key, value in figures.items() if key[2] == "__getitem__" and "dataset.py" in key[0]]
    collated = max((value[3] for key, value in figures.items() if "collate.py" in key[0]), default=0.0)
    shares = {"__getitem__": sum(value[3] for value in calls) / total, "collate": collated / total}
    return {"shares": shares, "calls": sum(value[1] for value in calls), "rows": len(loader.dataset)}


def _verdicts(claims: Claims) -> dict[str, ClaimResult]:
    profiled = partial(claims.unless, "obstacle")
    return {
        "An epoch calls __getitem__ once for each sample.": profiled(_once),
        "Most of the time goes into __getitem__ (there 29.2 of 44.8 s).": profiled(
            partial(_share, function="__getitem__", least=MOST)
        ),
        "Stacking the samples takes a good part of the rest (there 8 of 44.8 s).": profiled(
            partial(_share, function="collate", least=SOME)
        ),
        "Indexing whole batches is the remedy.": claims.faster(BY_BATCH, BY_SAMPLE, long=[BY_SAMPLE]),
    }


STUDY = Study(FASTER_LOADING, "What does one __getitem__ per sample cost?", _setup, _measure, _verdicts)
