"""Specification of a timed round: its length, what each batch is for, and what ends an epoch early."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from iobench.bench.process_group import ProcessGroup, SingleProcess
from iobench.loading.host_to_device import DeviceBatch
from iobench.loading.loaders import EpochRequest
from iobench.loading.stages import StageProfile
from iobench.results.parts import PartialEpoch

T = TypeVar("T")


class Cut(Protocol):
    """End of an epoch of unknown length, and its extrapolation."""

    ended: bool  # the epoch was cut off, so that no other follows

    def over(self, batches: Iterator[T]) -> Iterator[T]:
        """Yield the batches of an epoch up to its end."""

    def partial(self, samples: int) -> PartialEpoch | None:
        """Return the extrapolated epoch; None for a whole one."""


@dataclass
class RoundSpec:
    """Specification of a round."""

    number: int  # it determines the numbers of its epochs
    consume: Callable[[DeviceBatch], None]
    seconds: float  # least duration; 0 for a single epoch
    profile: StageProfile | None = None  # collects the time of stages
    batches: int | None = None  # of the window, where the round is a part of an epoch: see `Part`
    limit_s: float = math.inf  # ends a part, however short its window; an epoch, too, if `batches` is given
    cut: Cut | None = None  # what ends an epoch before its last batch
    requested: Callable[[EpochRequest], None] = lambda request: None  # before each epoch, untimed
    excluded: Collection[int] = ()  # processes whose memory does not count
    warm: bool = False  # the data are in the page cache: their pages are mapped before the clock starts, as
    # in later epochs of a script that keeps its files open
    strict: bool = False  # synchronize the device after each batch
    ended: Callable[[], None] = lambda: None  # called after each epoch; not timed
    group: ProcessGroup = field(default_factory=SingleProcess)  # they begin each epoch together
