"""Capacity planning: one host's measurements, extrapolated to a stated cluster.

Every resource is passed by the bytes of one rank, of one node, or of all ranks together. Its capacity is
measured on one host, or stated; the demand grows with the ranks. The resource with the highest utilisation is
exhausted first (the bottleneck law of operational analysis: Denning and Buzen, "The operational analysis of
queueing network models", 1978). Nothing is measured here.
"""

from iobench.results.capacity.bottleneck import CapacityPlan, ResourceUse, plan_capacity
from iobench.results.capacity.cluster import Cluster
from iobench.results.capacity.resources import ALL, NODE, RANK, Resource

__all__ = ["ALL", "NODE", "RANK", "CapacityPlan", "Cluster", "Resource", "ResourceUse", "plan_capacity"]
