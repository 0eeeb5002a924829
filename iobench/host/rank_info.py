"""Rank of this process: its numbers in the group and on its host, and what says so."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from iobench.base.errors import InvalidSettings
from iobench.base.text import printable

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")  # as torchrun sets them
GIVE_BOTH, SLURM = "give rank and world_size", "tasks of Slurm's srun"


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
        problem, found = "environment variables of torchrun", _listed(values)
        if not all(value.isdecimal() for value in values.values()):
            raise InvalidSettings(problem, "invalid-rank", expected="numbers", found=found)
        rank, world_size, local_rank, local_size, node = map(int, values.values())
        if not (rank < world_size and local_rank < local_size <= world_size):
            expected = "RANK below WORLD_SIZE and LOCAL_RANK below LOCAL_WORLD_SIZE"
            hint = "start all ranks with one torchrun"
            raise InvalidSettings(problem, "invalid-rank", expected=expected, found=found, hint=hint)
        info = cls(rank, world_size, local_rank, node, printable(platform.node()))
        return info if world_size > 1 else None

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host}"

    @property
    def leads_host(self) -> bool:
        """True if this rank does the work that is done once per host."""
        return self.local_rank == 0


def torchrun_variables(rank: int, world_size: int) -> dict[str, str]:
    """Return the variables that torchrun sets for a rank of one host."""
    values = (rank, world_size, rank, world_size, 0)
    return {name: str(value) for name, value in zip(VARIABLES, values, strict=True)}


@dataclass(frozen=True)
class ProcessRank:
    """Number of a process among those that share the samples."""

    rank: int = 0
    world_size: int = 1
    source: str = field(default="", compare=False)  # what says so

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise InvalidSettings(
                "rank", kind="invalid-rank", expected=f"0 to {self.world_size - 1}", found=self.rank
            )

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size} ({self.source})"

    @property
    def by_slurm(self) -> bool:
        """True if only Slurm says so."""
        return self.source == SLURM


def has_process_group() -> bool:
    """Return True if the process group of torch.distributed is initialized."""
    distributed: Any = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def process_rank(environment: Mapping[str, str] = os.environ) -> ProcessRank:
    """Return the rank of this process; 0 of 1 if nothing says that there are others.

    The first of these counts: the process group of torch.distributed; RANK and WORLD_SIZE, as torchrun sets
    them; LOCAL_RANK, NODE_RANK and WORLD_SIZE, as Lightning does; the step of Slurm's srun. A task of Slurm
    may start several ranks, so that only the others must agree.

    Raises InvalidSettings if two of them differ, or variables are no numbers or not enough.
    """
    rank, world_size, local_rank, node = (
        _number(environment, name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK")
    )
    known = list[ProcessRank]()
    if has_process_group():
        group: Any = sys.modules["torch.distributed"]
        known.append(ProcessRank(group.get_rank(), group.get_world_size(), "the process group"))
    if rank is not None and world_size is not None:
        known.append(ProcessRank(rank, world_size, "RANK and WORLD_SIZE"))
    # the ranks of other hosts are unknown; torchrun numbers hosts itself, whatever a scheduler's NODE_RANK is
    first_host = node == 0 and "TORCHELASTIC_RUN_ID" not in environment
    if first_host and local_rank is not None and world_size is not None:
        known.append(ProcessRank(local_rank, world_size, "LOCAL_RANK, NODE_RANK and WORLD_SIZE"))
    for other in known[1:]:
        if other != known[0]:
            raise InvalidSettings(
                "rank of this process",
                kind="contradicting-ranks",
                expected=known[0],
                found=other,
                hint=f"{GIVE_BOTH}, or unset those variables",
            )
    if known:
        return known[0]
    if rank or (world_size or 1) > 1:
        names = ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE")
        raise InvalidSettings(
            "rank of this process",
            kind="incomplete-ranks",
            expected="RANK and WORLD_SIZE, or a process group",
            found=_listed({name: environment.get(name, "unset") for name in names}),
            hint=f"create the process group first, or {GIVE_BOTH}",
        )
    return _of_slurm(environment) or ProcessRank()


def given_rank(rank: int | None, world_size: int | None) -> ProcessRank | None:
    """Return the rank that is given, None if it is not; InvalidSettings if it is given by half."""
    if (rank is None) != (world_size is None):
        raise InvalidSettings(
            "rank and world_size require each other", kind="missing-option", hint="give both or neither"
        )
    return None if rank is None or world_size is None else ProcessRank(rank, world_size)


def _number(environment: Mapping[str, str], name: str) -> int | None:
    """Return the number in an environment variable; None if it is unset, empty or -1."""
    value = environment.get(name, "")
    if value in ("", "-1"):
        return None
    if not value.isdecimal():
        raise InvalidSettings(
            "rank of this process", kind="invalid-rank", expected="a number", found=f"{name}={value}"
        )
    return int(value)


def _of_slurm(environment: Mapping[str, str]) -> ProcessRank | None:
    """Return the rank of a task of srun; a batch script has SLURM_PROCID=0 and no step."""
    rank, tasks = _number(environment, "SLURM_PROCID"), _number(environment, "SLURM_STEP_NUM_TASKS")
    if tasks is None and (rank or "SLURM_STEP_ID" in environment):
        tasks = _number(environment, "SLURM_NTASKS")
    return None if rank is None or tasks is None else ProcessRank(rank, tasks, SLURM)


def _listed(variables: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in variables.items())
