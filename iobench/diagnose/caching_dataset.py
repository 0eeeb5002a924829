"""Samples kept in memory once they were made: would they fit, and what would it bring?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils.data import Dataset, IterableDataset

from iobench.diagnose.loop_stats import LoopStats
from iobench.diagnose.profiling import Profile
from iobench.diagnose.sample_checks import SHARE, fits
from iobench.tuning.candidate import Candidate
from iobench.tuning.tunable_loader import TunableLoader, copied, rebuilt, same

KEPT = "samples kept in memory"


class CachingDataset(Dataset[Any]):
    """A dataset that makes each sample once."""

    def __init__(self, dataset: Any) -> None:
        self._dataset, self._held = dataset, dict[Any, Any]()

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, row: Any) -> Any:
        if row not in self._held:
            self._held[row] = self._dataset[row]
        return self._held[row]


def cache_candidate(own: TunableLoader, seen: LoopStats, profiles: Sequence[Profile]) -> Candidate | None:
    """The loader over samples that are kept, without workers; None where that is not the same, or no use."""
    loader: Any = own.loader
    decodes = bool(profiles) and profiles[-1].decode_share >= SHARE
    if not own.rebuilds or not decodes or not fits(seen) or loader.batch_sampler is None:
        return None
    if isinstance(loader.dataset, IterableDataset) or hasattr(loader.dataset, "__getitems__"):
        return None
    dataset = copied(loader.dataset)
    try:
        row = next(iter(loader.batch_sampler))[0]
        alike = same(dataset[row], dataset[row])
    except Exception:  # noqa: BLE001 - whatever somebody's dataset says
        return None
    if not alike:  # it draws at random: kept samples would be others
        return None
    made = rebuilt(loader, {"num_workers": 0}, CachingDataset(dataset))
    return Candidate(KEPT, {"num_workers": 0}, "cache", make=lambda: made)
