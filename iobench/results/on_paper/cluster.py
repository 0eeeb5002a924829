"""A cluster as it is stated."""

from __future__ import annotations

import math
from dataclasses import dataclass

from iobench.base.errors import (
    InvalidSettings,
)
from iobench.base.units import counted


@dataclass(frozen=True)
class Cluster:
    """What is stated: how many ranks on how many nodes, and what lies between them and the data.

    `network_bytes_per_s` is of one node, `storage_bytes_per_s` of all nodes together; the data come from
    there where either is stated, and else from each node's own copy. `step_s`: what a training step takes,
    0 where a rank takes batches as fast as its loader gives them. `data_bytes`: logical bytes of all the
    data, by default those that were measured.
    """

    ranks: int
    nodes: int
    network_bytes_per_s: float | None = None
    storage_bytes_per_s: float | None = None
    shard_bytes: float | None = None
    data_bytes: float | None = None
    step_s: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= self.ranks:
            raise InvalidSettings(
                f"{counted(self.ranks, 'rank')} on {counted(self.nodes, 'node')}: give at least one rank "
                "for each node"
            )
        stated = (self.network_bytes_per_s, self.storage_bytes_per_s, self.shard_bytes, self.data_bytes)
        if not all(one is None or 0 < one < math.inf for one in stated) or not 0 <= self.step_s < math.inf:
            raise InvalidSettings("bandwidths, sizes and times have to be above 0")

    @property
    def shared(self) -> bool:
        """Whether the data come over the network."""
        return self.network_bytes_per_s is not None or self.storage_bytes_per_s is not None

    @property
    def ranks_per_node(self) -> int:
        """On the fullest node."""
        return -(-self.ranks // self.nodes)
