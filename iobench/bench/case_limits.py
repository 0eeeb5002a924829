"""Which limit a case runs into: the lowest one on the way of its bytes, in logical bytes per second."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iobench.bench.case import Case
from iobench.dataset.manifest import Manifest
from iobench.errors import LoaderFailed, ManifestError
from iobench.formats import FormatError
from iobench.host import cache, limits
from iobench.host.aio import DirectUnavailable
from iobench.host.device import pick_device
from iobench.host.limits import Below, Limit
from iobench.host.memory import PAGE

if TYPE_CHECKING:
    import torch

SECONDS = 0.1  # for each way to a limit, and four times as long where a case has beaten one
SLOTS = 5  # that a survey copies into, as StreamLoader does

Key = tuple[object, ...]
Measure = Callable[[float], Limit]


class CaseLimits:
    """Limits of this machine as cases need them; each is measured once, and again where it was beaten."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._known: dict[Key, Limit] = {}

    def of(self, case: Case) -> Limit | None:
        """The lowest limit on the case's way; None where none can be measured."""
        return self._lowest(case, SECONDS)

    def again(self, case: Case) -> Limit | None:
        """The same, measured again and longer; limits only rise."""
        before, self._known = self._known, {}
        self._lowest(case, 4 * SECONDS)
        for key, limit in before.items():
            now = self._known.get(key, limit)
            self._known[key] = now if now.bytes_per_s > limit.bytes_per_s else limit
        return self._lowest(case, SECONDS)

    def below(self) -> Below | None:
        """Whether a layer below this kernel caches; None where nobody can tell."""
        try:
            return limits.below(_largest_file(self._manifest))
        except (DirectUnavailable, OSError, FormatError):
            return None

    def _lowest(self, case: Case, seconds: float) -> Limit | None:
        found = []
        for key, factor, measure in self._on_the_way(case):
            try:
                if key not in self._known:
                    self._known[key] = measure(seconds)
            except (DirectUnavailable, OSError):  # a disk that fails is the case's to complain of
                continue
            found.append(replace(self._known[key], bytes_per_s=self._known[key].bytes_per_s * factor))
        return min(found, key=lambda limit: limit.bytes_per_s, default=None)

    def _on_the_way(self, case: Case) -> Iterator[tuple[Key, float, Measure]]:
        """What tells each limit apart, logical bytes per byte that it counts, and how to measure it."""
        schema, files = self._manifest.schema, self._manifest.files_of(case.variant)
        largest, stored = max(files, key=_size), sum(map(_size, files))
        slot_bytes, slots = case.loader.slots(case.batch_bytes(schema))
        if case.cache == "warm":
            yield (
                ("page cache", case.variant, slot_bytes, slots),
                1.0,
                partial(_page_cache, largest, slot_bytes, slots),
            )
        elif case.order == "random" and stored > cache.free_memory():
            size = schema.sample_bytes
            yield ("random", size), schema.logical_bytes / stored, partial(limits.random_read, largest, size)
        else:
            yield ("disk",), schema.logical_bytes / stored, partial(limits.sequential_read, largest)
        device = pick_device(case.device)
        if device.type != "cpu":
            pinned = case.loader.pins(case.device)
            key = ("device", case.device, slot_bytes, pinned)
            yield key, 1.0, partial(limits.host_to_device, device, slot_bytes, pinned)


def _page_cache(file: Path, slot_bytes: int, slots: int, seconds: float) -> Limit:
    """With one thread or all cores, whichever is more."""
    threads = {1, len(os.sched_getaffinity(0))}
    found = [limits.page_cache(file, slot_bytes, slots, number, seconds) for number in threads]
    return max(found, key=lambda limit: limit.bytes_per_s)


def _largest_file(manifest: Manifest) -> Path:
    """The largest file of the dataset; ManifestError where it has none, CorruptArtifact where one is gone."""
    for variant in manifest.artifacts:
        manifest.opener(variant)
    if not manifest.artifacts:
        raise ManifestError(
            f"dataset {manifest.name} has no artifact to read; add one with 'iobench prepare'"
        )
    return max((f for variant in manifest.artifacts for f in manifest.files_of(variant)), key=_size)


def _size(file: Path) -> int:
    return file.stat().st_size


@dataclass
class Survey:
    """All limits of this machine for one dataset, and what to know about them."""

    limits: list[Limit] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def survey(
    manifest: Manifest,
    device: torch.device,
    batch_size: int,
    seconds: float,
    on_status: Callable[[str], None] = lambda text: None,
) -> Survey:
    """Every limit that a case over this dataset can run into, each measured for `seconds` a way."""
    found, schema = Survey(), manifest.schema
    file = _largest_file(manifest)
    slot_bytes = max(1, min(batch_size, schema.samples) * schema.sample_bytes)
    sizes = sorted({PAGE, schema.sample_bytes})
    disk: list[Measure] = [partial(limits.sequential_read, file)]
    disk += [partial(limits.random_read, file, size) for size in sizes]
    on_status("reading past the page cache")
    try:
        try:
            found.limits += [measure(seconds) for measure in disk]
            found.remarks.append(limits.below(file).sentence)
        except DirectUnavailable as error:
            found.remarks.append(f"no limit of the disk: {error}")
        on_status("copying memory")
        for threads in sorted({1, len(os.sched_getaffinity(0))}):
            found.limits.append(limits.page_cache(file, slot_bytes, SLOTS, threads, seconds))
            found.limits.append(limits.memory_copy(slot_bytes, SLOTS, threads, seconds))
    except OSError as error:
        raise LoaderFailed(
            f"{file}: cannot be read: {error.strerror}; see what is wrong with the disk"
        ) from error
    if device.type != "cpu":
        on_status("copying to the device and back")
        found.limits += [
            measure(device, slot_bytes, pinned, seconds)
            for measure in (limits.host_to_device, limits.device_to_host)
            for pinned in (True, False)
        ]
    return found
