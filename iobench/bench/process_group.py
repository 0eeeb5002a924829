"""Interface of a rank to the other ranks that verify or measure the same case."""

from __future__ import annotations

from typing import Protocol, TypeVar

T = TypeVar("T")


class ProcessGroup(Protocol):
    """The ranks that verify or measure one case at the same time, each over its share of the samples.

    Every rank makes the same calls in the same order. A call raises IobenchError if another rank failed.
    """

    rank: int
    world_size: int

    def barrier(self) -> None:
        """Block until all ranks arrive."""

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all ranks, by rank."""


class SingleProcess:
    """The process group of a run in one process."""

    rank = 0
    world_size = 1

    def barrier(self) -> None:
        """Return at once."""

    def all_gather(self, value: T) -> list[T]:
        """Return the own value in a list."""
        return [value]
