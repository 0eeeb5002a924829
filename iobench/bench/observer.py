"""Whoever wants to know how a run is going."""

from __future__ import annotations

from dataclasses import dataclass

from iobench.results.record import Record


@dataclass
class Progress:
    """Batches consumed of the epoch under way; written by the run, read by anybody."""

    batches: int = 0


class Observer:
    """Is told what happens, between epochs; does nothing about it."""

    def status(self, text: str) -> None:
        """What is going on beside timed rounds."""

    def begins(self, label: str, number: int) -> Progress:
        """A case's epoch begins, round 0 being untimed; it keeps the returned progress up to date."""
        return Progress()

    def recorded(self, record: Record) -> None:
        """A timed round has ended."""
