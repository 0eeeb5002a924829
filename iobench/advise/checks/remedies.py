"""Changes of a user's code that are tried as candidates, without touching it."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch.utils.data import Dataset, IterableDataset, default_collate

from iobench.advise.checks import jpeg_draft
from iobench.advise.checks.cost_checks import COLLECTED, SHARE, fits_in_memory
from iobench.advise.checks.evidence import gc_shares
from iobench.advise.checks.loop_stats import LoopStats
from iobench.advise.checks.profiling import Profile
from iobench.advise.settings.candidate import Candidate
from iobench.advise.settings.rebuilt_loader import rebuilt
from iobench.advise.settings.tunable_loader import TunableLoader, same_tensors, shallow_copy

CACHED = "samples cached in memory"
FROZEN = "gc.freeze()"
DEFAULT_COLLATE = "torch's own collate function"
DECODED = 0.1  # of the time, from which on it is tried to decode less
CHECKED, MIN_CHECKED = 12, 6  # samples that are compared with themselves, if time allows, and at least
CHECKED_S = 0.5
SLOW_SAMPLE_S = 20e-6  # under the profiler; indexing a tensor takes less


class CachingDataset(Dataset[Any]):
    """A dataset that asks another one for each sample once.

    A sample is returned as views of its values: those cost as much as rows of one array, in which most keep
    samples, and what is done to a sample's containers does not last.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset, self._cached = dataset, dict[Any, Any]()

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, row: Any) -> Any:
        if row not in self._cached:
            self._cached[row] = self._dataset[row]
        return _views(self._cached[row])


def _views(sample: Any) -> Any:
    """Return a sample with views of its tensors and arrays."""
    if hasattr(sample, "shape") and sample.shape:
        return sample[:]
    if isinstance(sample, dict):
        return {name: _views(value) for name, value in sample.items()}
    if type(sample) in (list, tuple):
        return type(sample)(map(_views, sample))
    return sample


class WithFrozenHeap:
    """A loader; objects that exist when a loop begins are not looked at by the collector during it."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        gc.freeze()
        try:
            yield from self._loader
        finally:
            gc.unfreeze()

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]


def remedies(loader: TunableLoader, loop: LoopStats, profiles: Sequence[Profile]) -> list[Candidate]:
    """Return the loader with each change whose cause the measurements show, the most promising first."""
    if not profiles:
        return []
    fetching, found = profiles[-1], list[Candidate]()
    own: Any = loader.loader
    if loader.rebuilds and not isinstance(own.dataset, IterableDataset) and own.batch_sampler is not None:
        found += _for_samples(own, loop, fetching)
    if max(gc_shares(loop, fetching)) >= COLLECTED and not gc.get_freeze_count():
        frozen = {"gc": "freeze"}
        found.append(Candidate(FROZEN, frozen, "gc", make=lambda: WithFrozenHeap(loader.with_changes({}))))
    return found


def _for_samples(own: Any, loop: LoopStats, fetching: Profile) -> list[Candidate]:
    """Return changes of the work for each sample; a copy of the dataset is asked for some samples."""
    dataset, found = shallow_copy(own.dataset), list[Candidate]()
    try:
        rows = next(iter(own.batch_sampler))[:2]
        samples = [dataset[row] for row in rows]
        if _may_cache(own, loop, fetching) and _repeats(dataset):
            found.append(_cached(own, dataset))
        if fetching.costs.get("decoding", 0.0) >= DECODED:
            found += _drafted(own, jpeg_draft.resized_to(dataset, rows[0]))
        custom = own.collate_fn is not default_collate and 1 - fetching.getitem_share >= SHARE
        if custom and same_tensors(default_collate(samples), own.collate_fn(samples)):
            found.append(Candidate(DEFAULT_COLLATE, {"collate_fn": None}, "default-collate"))
    except Exception:  # noqa: BLE001 - a user's dataset may raise anything
        return found
    return found


def _repeats(dataset: Any) -> bool:
    """Return True if samples are the same each time; one of two random flips is the same half of the time."""
    until = time.perf_counter() + CHECKED_S
    for number, row in enumerate(range(min(CHECKED, len(dataset)))):
        if not same_tensors(dataset[row], dataset[row]):
            return False
        if number >= MIN_CHECKED and time.perf_counter() > until:
            break
    return True


def _cached(own: Any, dataset: Any) -> Candidate:
    cached = rebuilt(own, {"num_workers": 0}, CachingDataset(dataset))
    return Candidate(CACHED, {"num_workers": 0}, "cache", make=lambda: cached)


def _drafted(own: Any, size: jpeg_draft.Size | None) -> Iterator[Candidate]:
    """Yield the loader over images that are decoded at a smaller scale, if there is one."""
    if size is not None:
        dataset, same = jpeg_draft.DraftDataset(own.dataset, size), {"num_workers": own.num_workers}
        named = f"JPEG decoded at the scale of {size[0]} × {size[1]}"
        changes = dict(zip(("width", "height"), size, strict=True))
        yield Candidate(named, changes, "draft", make=lambda: rebuilt(own, same, dataset))


def _may_cache(own: Any, loop: LoopStats, fetching: Profile) -> bool:
    """Return True if samples cost something, and all of them fit in memory."""
    slow = fetching.getitem_share * fetching.total_s >= SLOW_SAMPLE_S * fetching.getitem_calls
    costly = slow and fetching.getitem_share >= SHARE and not hasattr(own.dataset, "__getitems__")
    return costly and fits_in_memory(loop)
