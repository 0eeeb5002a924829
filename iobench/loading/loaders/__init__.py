"""How batches reach host memory: one module per loader, named as on the command line."""

from __future__ import annotations

import torch

from iobench.bench.case import Case
from iobench.dataset.manifest import Opener
from iobench.loading.loaders._base import Loader
from iobench.loading.loaders.dataloader import TorchDataLoader
from iobench.loading.loaders.native import Native
from iobench.loading.loaders.stream import Stream
from iobench.loading.stages import UNTIMED, Stages

__all__ = ["Loader", "open_loader"]

_LOADERS: dict[str, type[Loader]] = {loader.name: loader for loader in (TorchDataLoader, Native, Stream)}


def open_loader(case: Case, opener: Opener, device: torch.device, stages: Stages = UNTIMED) -> Loader:
    """The case's loader over an artifact, opened in this process unless workers will open it."""
    return _LOADERS[case.loader](opener, case.settings, device, stages)
