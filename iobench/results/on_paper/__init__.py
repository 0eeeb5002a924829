"""What many ranks would get, on paper: one host's measurements held against what is stated of a cluster.

Every resource is passed by the bytes of one rank, of one node, or of all ranks together. What it can pass is
measured on one host, or stated; what is asked of it grows with the ranks. The one that is asked for the
largest part of what it has is exhausted first (the bottleneck law of operational analysis: Denning and
Buzen, "The operational analysis of queueing network models", 1978). Nothing is measured here.
"""

from iobench.results.on_paper.bottleneck import Outlook, Use, outlook
from iobench.results.on_paper.cluster import Cluster
from iobench.results.on_paper.resources import ALL, NODE, RANK, Resource

__all__ = ["ALL", "NODE", "RANK", "Cluster", "Outlook", "Resource", "Use", "outlook"]
