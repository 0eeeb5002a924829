"""Dataset that caches its samples in memory, as a candidate of a diagnosis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils.data import Dataset, IterableDataset

from iobench.advise.checks.loop_stats import LoopStats
from iobench.advise.checks.profiling import Profile
from iobench.advise.checks.sample_checks import SHARE, fits_in_memory
from iobench.advise.settings.candidate import Candidate
from iobench.advise.settings.tunable_loader import TunableLoader, rebuilt, same_tensors, shallow_copy

CACHED = "samples cached in memory"


class CachingDataset(Dataset[Any]):
    """A dataset that asks another one for each sample once."""

    def __init__(self, dataset: Any) -> None:
        self._dataset, self._cached = dataset, dict[Any, Any]()

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, row: Any) -> Any:
        if row not in self._cached:
            self._cached[row] = self._dataset[row]
        return self._cached[row]


def cache_candidate(loader: TunableLoader, loop: LoopStats, profiles: Sequence[Profile]) -> Candidate | None:
    """Return the loader over cached samples, without workers.

    None where caching would change the samples (random augmentation), or cannot help.
    """
    own: Any = loader.loader
    decodes = bool(profiles) and profiles[-1].decode_share >= SHARE
    if not loader.rebuilds or not decodes or not fits_in_memory(loop) or own.batch_sampler is None:
        return None
    if isinstance(own.dataset, IterableDataset) or hasattr(own.dataset, "__getitems__"):
        return None
    dataset = shallow_copy(own.dataset)
    try:
        row = next(iter(own.batch_sampler))[0]
        deterministic = same_tensors(dataset[row], dataset[row])
    except Exception:  # noqa: BLE001 - a user's dataset may raise anything
        return None
    if not deterministic:
        return None
    cached = rebuilt(own, {"num_workers": 0}, CachingDataset(dataset))
    return Candidate(CACHED, {"num_workers": 0}, "cache", make=lambda: cached)
