"""Publications of practitioners that studies repeat; fields that are not known are left empty."""

from __future__ import annotations

from iobench.studies._base import Reference

IO_EVALUATION = Reference("DataLoader and TensorDict: an IO evaluation", "a project of PyTorch practitioners")
FASTER_LOADING = Reference("Faster data loading in PyTorch", "a practitioner's tutorial", 2019)
MEMORY_SETTINGS = Reference(
    "Who is faster: PyTorch's memory-related settings", "a practitioner's measurements"
)
IO_BOTTLENECK = Reference(
    "Stuck in the I/O bottleneck", "a practitioner's report on PNG, HDF5 and LMDB for small batches"
)
DISTRIBUTED_LOADER = Reference(
    "Dpex: a distributed drop-in DataLoader on Ray", "a practitioner's project and its measurements"
)
