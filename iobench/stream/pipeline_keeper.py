"""Keep a loader's pipeline between epochs: maps, open files, the index and touched memory."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from iobench.stream.pipeline import Pipeline


class PipelineKeeper:
    """Keeps the pipeline of the last completed epoch for the next one.

    It is closed with the keeper, and replaced if its files changed or their state in the page cache asks for
    another backend. A forked child opens its own. A copy or an unpickled keeper starts without one.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._kept: list[Pipeline] = []  # at most one
        weakref.finalize(self, _close, self._kept, self._process)

    @contextmanager
    def lend(self, open_pipeline: Callable[[], Pipeline]) -> Iterator[Pipeline]:
        """Lend the kept pipeline, or a new one, for an epoch; keep it if the epoch was completed."""
        pipeline = self._take() or open_pipeline()
        try:
            yield pipeline
        finally:
            # an epoch that ran at the same time may have returned its own
            if pipeline.completed and not self._kept and os.getpid() == self._process:
                self._kept.append(pipeline)
            else:
                pipeline.close()

    def close(self) -> None:
        """Close the kept pipeline; the next epoch opens a new one."""
        _close(self._kept, self._process)

    def _take(self) -> Pipeline | None:
        if not self._kept or os.getpid() != self._process:
            return None
        pipeline = self._kept.pop()
        if pipeline.is_current():
            return pipeline
        pipeline.close()
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy as a new keeper: a pipeline belongs to one loader in one process."""
        return PipelineKeeper, ()


def _close(kept: list[Pipeline], process: int) -> None:
    while kept and os.getpid() == process:  # in a forked child the pipeline is its parent's
        kept.pop().close()
