"""How batches reach host memory: one module per loader, named as on the command line."""

from __future__ import annotations

import torch

from iobench.arms import Arm
from iobench.loaders._base import Loader
from iobench.loaders.dataloader import TorchDataLoader
from iobench.loaders.native import Native
from iobench.loaders.stream import Stream
from iobench.manifest import Opener
from iobench.stages import UNTIMED, Stages

__all__ = ["Loader", "open_loader"]

_LOADERS: dict[str, type[Loader]] = {loader.name: loader for loader in (TorchDataLoader, Native, Stream)}


def open_loader(arm: Arm, opener: Opener, device: torch.device, stages: Stages = UNTIMED) -> Loader:
    """The arm's loader over an artifact, opened in this process unless workers will open it."""
    return _LOADERS[arm.loader](opener, arm.settings, device, stages)
