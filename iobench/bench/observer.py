"""Whoever wants to know how a run is going."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from iobench.results.cases import Label
from iobench.results.record import Record


@dataclass
class Progress:
    """Batches consumed of the round under way; written by the run, read by anybody."""

    batches: int = 0


class Observer:
    """Is told what happens, between rounds; does nothing about it. Cases come by their keys."""

    def planned(self, labels: Mapping[str, Label], batch_bytes: Mapping[str, int]) -> None:
        """The run's cases, with the bytes of a batch of each."""

    def went_before(self, records: Sequence[Record]) -> None:
        """Rounds that a run which is gone on with has already."""

    def status(self, text: str) -> None:
        """What is going on beside timed rounds."""

    def begins(self, key: str, number: int) -> Progress:
        """A case's round begins, round 0 being untimed; it keeps the returned progress up to date."""
        return Progress()

    def recorded(self, key: str, record: Record) -> None:
        """A timed round has ended."""
