"""Callbacks that follow a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from iobench.results.cases import Label
from iobench.results.record import Record


@dataclass
class Progress:
    """Batches consumed in the current round; the run writes it, any thread may read it."""

    batches: int = 0


class Observer:
    """Receives the events of a run, between rounds; this base class ignores them. Cases come by key."""

    def planned(self, labels: Mapping[str, Label], batch_bytes: Mapping[str, int]) -> None:
        """Receive the run's cases, and the bytes of one batch of each."""

    def resumed(self, records: Sequence[Record]) -> None:
        """Receive the rounds that a resumed run has already."""

    def status(self, text: str) -> None:
        """Receive one line about what happens outside timed rounds."""

    def begins(self, key: str, number: int) -> Progress:
        """Receive the start of a case's round (0 is untimed); the run updates the returned progress."""
        return Progress()

    def recorded(self, key: str, record: Record) -> None:
        """Receive the record of a timed round that has ended."""
