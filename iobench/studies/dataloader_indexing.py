"""Large random batches of rows in memory: indexed at once, by DataLoader one by one, and by remedies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from iobench.base.units import bytes_text
from iobench.dataset.sources import Synthetic
from iobench.loading import loaders
from iobench.loading.loaders import Job
from iobench.loading.order import Order
from iobench.studies._claims import ClaimResult, Claims, all_of
from iobench.studies._epochs import epochs
from iobench.studies._rounds import Measurements, exhaust, interleave, timed
from iobench.studies._study import DATALOADER_INDEXING, Study, StudyOptions, cores, warm_dataset

COLUMNS, BATCHES = 100, 7
PUBLISHED, QUICK = 700_000, 70_000  # rows; a tenth of the reporter's
INDEXED, BY_SAMPLE, TUNED = "indexing", "DataLoader", "DataLoader with tuned settings"
BY_BATCHES, BY_GETITEMS = "DataLoader over batches of indices", "DataLoader with __getitems__"
FROM_FILE = {"native from npy": "native", "StreamLoader from npy": "stream"}
MUCH, LITTLE = 10.0, 2.0  # ratios: "far slower" is at least the first, "hardly better" less than the second


class WholeBatches(TensorDataset):
    """A TensorDataset that returns a batch at once."""

    def __getitems__(self, rows: list[int]) -> Any:
        """Return the rows of each tensor."""
        return tuple(tensor[rows] for tensor in self.tensors)


def _setup(options: StudyOptions) -> str:
    rows = options.sized(PUBLISHED, QUICK)
    return f"{rows:,} × {COLUMNS} float32, {BATCHES} batches of random rows an epoch; there 7,000,000 rows"


def _measure(options: StudyOptions) -> Measurements:
    rows = options.sized(PUBLISHED, QUICK)
    batch = rows // BATCHES
    data = torch.rand(rows, COLUMNS)
    dataset, batches = TensorDataset(data), BatchSampler(RandomSampler(data), batch, drop_last=False)
    tuned: dict[str, Any] = {"num_workers": cores(), "persistent_workers": True, "pin_memory": options.gpu}
    own: dict[str, Iterable[Any]] = {
        BY_SAMPLE: DataLoader(dataset, batch, shuffle=True),
        TUNED: DataLoader(dataset, batch, shuffle=True, multiprocessing_context="fork", **tuned),
        BY_BATCHES: DataLoader(dataset, batch_size=None, sampler=batches),
        BY_GETITEMS: DataLoader(WholeBatches(data), batch, shuffle=True, collate_fn=lambda batch: batch),
    }
    contenders = {name: timed(partial(exhaust, loader)) for name, loader in own.items()}
    contenders[INDEXED] = timed(partial(_index, data, batch))
    manifest = warm_dataset(options, Synthetic(rows * COLUMNS, (COLUMNS,)), ["npy"], f"indexing-{rows}")
    job = Job(manifest.opener("npy"), Order("random", batch))
    contenders |= {name: epochs(loaders.get(loader), job) for name, loader in FROM_FILE.items()}
    measured = interleave(contenders, warmup=options.warmup, on_status=options.on_status)
    return replace(measured, data=f"{rows:,} samples of {bytes_text(data[0].nbytes)}")


def _index(data: torch.Tensor, batch: int) -> None:
    order = torch.randperm(len(data))
    exhaust(data[order[at : at + batch]] for at in range(0, len(data), batch))


def _verdicts(claims: Claims) -> dict[str, ClaimResult]:
    def all_faster(*names: str) -> ClaimResult:
        return all_of([claims.faster(name, BY_SAMPLE) for name in names])

    return {
        "DataLoader is far slower than indexing (there 48.5 against 0.39 s).": claims.at_least(
            MUCH, INDEXED, BY_SAMPLE
        ),
        "Tuned settings hardly help (there 43.3 s).": claims.at_least(LITTLE, TUNED, BY_SAMPLE).opposite(),
        "The remedy is to index whole batches in DataLoader (not tested there).": all_faster(
            BY_BATCHES, BY_GETITEMS
        ),
        "Batches from a file beat DataLoader over memory (not tested there).": all_faster(*FROM_FILE),
    }


QUESTION = "What does DataLoader cost over indexing a tensor, and what brings it back?"
STUDY = Study(DATALOADER_INDEXING, QUESTION, _setup, _measure, _verdicts)
