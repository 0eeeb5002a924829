"""Identity of a rank: its numbers in the group and on its host."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass

from iobench.base.errors import InvalidSettings
from iobench.base.text import printable

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")  # as torchrun sets them


@dataclass(frozen=True)
class RankInfo:
    """A rank: its number among `world_size`, and its number among the ranks of its host."""

    rank: int
    world_size: int
    local_rank: int
    node: int  # number of the host
    host: str

    @classmethod
    def from_env(cls, environment: Mapping[str, str] = os.environ) -> RankInfo | None:
        """Return this process's rank as torchrun set it; None without torchrun, or for a single rank.

        Raises InvalidSettings if the variables are not consistent numbers.
        """
        if any(name not in environment for name in VARIABLES):
            return None
        values = {name: environment[name] for name in VARIABLES}
        if not all(value.isdecimal() for value in values.values()):
            raise InvalidSettings(
                "environment variables of torchrun",
                kind="invalid-rank",
                expected="numbers",
                found=_listed(values),
            )
        rank, world_size, local_rank, local_size, node = map(int, values.values())
        if not (rank < world_size and local_rank < local_size <= world_size):
            raise InvalidSettings(
                "environment variables of torchrun",
                kind="invalid-rank",
                expected="RANK below WORLD_SIZE and LOCAL_RANK below LOCAL_WORLD_SIZE",
                found=_listed(values),
                hint="start all ranks with one torchrun",
            )
        info = cls(rank, world_size, local_rank, node, printable(platform.node()))
        return info if world_size > 1 else None

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}"

    @property
    def leads_host(self) -> bool:
        """True if this rank does the work that is done once per host."""
        return self.local_rank == 0


def _listed(variables: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in variables.items())
