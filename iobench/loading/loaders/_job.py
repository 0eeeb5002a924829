"""The job of a loader: the artifact, the order of its samples, and the device of the batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from iobench.dataset.opener import Opener
from iobench.loading.collate import Collate
from iobench.loading.order import Order
from iobench.loading.stages import UNTIMED, Stages


@dataclass(frozen=True)
class Job:
    """Arguments of `Loader.open`.

    Attributes
    ----------
    opener : Opener
        Opens the artifact, in any process.
    order : Order
        Order of the samples and batch size.
    device : str
        Device that the batches go to.
    stages : Stages
        Profile of the time spent in each stage of loading.
    collate : Collate
        How samples that differ in length become a batch.
    dataset : Path or None
        Folder of the dataset, if epochs are to be saved and resumed.
    """

    opener: Opener
    order: Order
    device: str = "cpu"
    stages: Stages = field(default=UNTIMED, compare=False)
    collate: Collate = field(default_factory=Collate)
    dataset: Path | None = None
