"""A cluster as stated by the user."""

from __future__ import annotations

import math
from dataclasses import dataclass

from iobench.base.errors import InvalidSettings
from iobench.base.units import counted


@dataclass(frozen=True)
class Cluster:
    """Ranks, nodes, and the path between them and the data.

    Attributes
    ----------
    ranks, nodes : int
        Devices that train together, and machines that hold them.
    network_bytes_per_s : float or None
        Bandwidth of one node's network. The data come over it if this or the storage's bandwidth is stated;
        otherwise every node has its own copy.
    storage_bytes_per_s : float or None
        Bandwidth of the storage, for all nodes together.
    shard_bytes : float or None
        Size of the files that hold the data.
    data_bytes : float or None
        Logical bytes of all data; by default those that were measured.
    step_s : float
        Seconds of a training step; 0 where a rank takes batches as fast as its loader delivers them.
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
                f"{counted(self.ranks, 'rank')} on {counted(self.nodes, 'node')}",
                kind="out-of-range",
                hint="give at least one rank for each node",
            )
        stated = (self.network_bytes_per_s, self.storage_bytes_per_s, self.shard_bytes, self.data_bytes)
        if not all(one is None or 0 < one < math.inf for one in stated) or not 0 <= self.step_s < math.inf:
            raise InvalidSettings("bandwidths, sizes and times must be above 0", kind="out-of-range")

    @property
    def shared(self) -> bool:
        """True if the data come over the network."""
        return self.network_bytes_per_s is not None or self.storage_bytes_per_s is not None

    @property
    def ranks_per_node(self) -> int:
        """Ranks on the fullest node."""
        return -(-self.ranks // self.nodes)
