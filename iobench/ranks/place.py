"""Which of several processes this is, and where."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass

from iobench.base.errors import (
    InvalidSettings,
)

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")  # as torchrun sets them


@dataclass(frozen=True)
class Place:
    """A rank among `world_size`, and its number among those of its host."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node: int  # number of the host
    host: str

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}"

    @property
    def leads_host(self) -> bool:
        """Whether it does what is done once for each host."""
        return self.local_rank == 0


def of_environment(environment: Mapping[str, str] = os.environ) -> Place | None:
    """The place that torchrun gave to this process; None where nobody did, or where it is alone.

    InvalidSettings where the variables are no numbers that go together.
    """
    if any(name not in environment for name in VARIABLES):
        return None
    found = {name: environment[name] for name in VARIABLES}
    if not all(value.isdecimal() for value in found.values()):
        raise InvalidSettings(f"{_listed(found)}: these are not the numbers that torchrun gives to a rank")
    rank, world_size, local_rank, local_size, node = map(int, found.values())
    if not (rank < world_size and local_rank < local_size <= world_size):
        raise InvalidSettings(f"{_listed(found)}: there is no such rank; start all of them with one torchrun")
    place = Place(rank, world_size, local_rank, local_size, node, platform.node())
    return place if world_size > 1 else None


def _listed(variables: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in variables.items())
