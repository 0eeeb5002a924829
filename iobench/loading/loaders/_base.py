"""What run asks of a loader."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from typing import ClassVar

import torch

from iobench.bench.case import Settings
from iobench.dataset.manifest import Opener
from iobench.errors import BenchError, LoaderFailed
from iobench.formats import FormatError, Rows
from iobench.loading.stages import UNTIMED, Stages
from iobench.loading.transfer import HostBatch


class Loader(ABC):
    """Yields host batches for lists of rows, until it is closed."""

    name: ClassVar[str]

    def __init__(
        self, opener: Opener, settings: Settings, device: torch.device, stages: Stages = UNTIMED
    ) -> None:
        self.opener = opener
        self.settings = settings
        self.device = device
        self.stages = stages

    @property
    def ahead(self) -> bool:
        """Whether something reads ahead of the consumer, so that what `next()` takes is waiting."""
        return False

    def epoch(self, batches: Sequence[Rows]) -> Generator[HostBatch, None, None]:
        """The batches of these rows, in this order; ends its workers when it is closed.

        LoaderFailed or a FormatError where a batch cannot be had.
        """
        try:
            yield from self._epoch(batches)
            return
        except (FormatError, BenchError) as error:
            failed: Exception = type(error)(_reason(error.with_traceback(None)))
        except (RuntimeError, OSError, MemoryError) as error:
            reason = _reason(error.with_traceback(None)) or type(error).__name__
            failed = LoaderFailed(f"{self.name} over {self.opener.path}: {reason}")
        raise failed  # anew: the frames behind the first error would keep workers alive and files mapped

    @abstractmethod
    def close(self) -> None:
        """Let go of readers and workers; a second call does nothing."""

    @abstractmethod
    def _epoch(self, batches: Sequence[Rows]) -> Iterator[HostBatch]:
        """What `epoch` yields, with errors as they come."""


def _reason(error: Exception) -> str:
    """One line of an error; the last one where torch wrote a worker's traceback into the message."""
    first, *more = str(error).strip().splitlines() or [""]
    if "Original Traceback" not in str(error):
        return first
    kind, _, said = more[-1].partition(": ")
    return said or kind
