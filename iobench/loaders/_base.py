"""What run asks of a loader."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import torch

from formats import Rows
from iobench.arms import Settings
from iobench.manifest import Opener

HostBatch: TypeAlias = Any  # dict[str, Tensor], or a tensorclass of the same fields


class Loader(ABC):
    """Yields host batches for lists of rows, until it is closed."""

    def __init__(self, opener: Opener, settings: Settings, device: torch.device) -> None:
        self.opener = opener
        self.settings = settings
        self.device = device

    @abstractmethod
    def epoch(self, batches: Sequence[Rows]) -> Iterator[HostBatch]:
        """The batches of these rows, in this order. LoaderFailed or a FormatError where one cannot be had."""

    @abstractmethod
    def close(self) -> None:
        """Let go of readers and workers; a second call does nothing."""
