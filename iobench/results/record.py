"""Record: one round as data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from iobench.base.finding import Finding
from iobench.base.machine import Machine, Snapshot
from iobench.base.units import shape_text
from iobench.results.parts import CachePart, ContentCheckPart, DatasetPart, LimitPart, Measured, Prices

Facets = Mapping[str, Any]
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Record(Measured):
    """One timed round of one case, with the circumstances of its measurement."""

    run: str  # identifier that all rounds of a run share
    time: str  # ISO 8601, UTC, end of the round
    round: int  # from 1
    case: dict[str, Any]  # format, loader, options and the other settings: see results.cases
    dataset: DatasetPart
    cache: CachePart
    machine: Machine
    limit: LimitPart | None = None
    shuffle_quality: float | None = None  # of block order or a loader's: see iobench.loading.order
    content_check: ContentCheckPart | None = None  # of the case, where there is something to report
    prices: Prices | None = None  # of the object store, as stated by --prices
    headroom_samples_per_s: float | None = None  # rate of the same loop over batches already on the device
    snapshots: list[Snapshot] | None = None  # of the machine since the last record
    plan: dict[str, Any] | None = None  # of the run, in its first record; `--resume` continues from it
    record_version: int = VERSION

    @cached_property
    def facets(self) -> dict[str, Any]:
        """All facets of the case, including the machine, as plain values."""
        dataset, machine, disk = self.dataset, self.machine, self.machine.disk
        options = [disk.mount_options] if disk.remote else []
        return {
            "processor": [machine.cpu, machine.usable_cores],
            "memory": round(machine.memory_bytes / 2**30),
            "disk": [disk.file_system, disk.model, disk.read_ahead_kib, *options],
            "gpu": machine.gpu.name if machine.gpu else None,
            "host": machine.host,
            "dataset": dataset.name,
            "content": dataset.content,
            "samples": dataset.samples,
            "fields": [f"{f.name} {f.dtype} {shape_text(f.shape) or 'scalar'}" for f in dataset.fields],
            **self.case,
        }

    @cached_property
    def key(self) -> str:
        """Key of the case, by which records are grouped; computed once, and never read from a file."""
        return key_of(self.facets)

    @cached_property
    def settings_key(self) -> str:
        """Key of `case` alone: that of the run's `Case`, on any machine."""
        return key_of(self.case)

    @property
    def unverified(self) -> list[Finding]:
        """Reasons why the content could not be verified; none where it was."""
        return self.content_check.unverified if self.content_check else []

    @property
    def verified(self) -> tuple[int, int] | None:
        """Number of verified samples, of how many; None for all."""
        samples = self.content_check.verified_samples if self.content_check else None
        return None if samples is None or self.dataset.samples is None else (samples, self.dataset.samples)

    @property
    def samples_per_s(self) -> float:
        """Samples on the device per second of the epochs, of which a partial one is extrapolated."""
        if (partial := self.timing.partial) is not None:
            return partial.epoch_samples / partial.epoch_s
        return self.timing.samples / self.timing.epochs_s

    @property
    def bytes_per_s(self) -> float:
        """Logical bytes on the device per second of the epochs."""
        if self.timing.partial is not None:
            return self.samples_per_s * self.timing.logical_bytes / self.timing.samples
        return self.timing.logical_bytes / self.timing.epochs_s

    @property
    def epoch_s(self) -> float:
        """Mean seconds of an epoch of the round."""
        if self.timing.partial is not None:
            return self.timing.partial.epoch_s
        return self.timing.epochs_s / self.timing.epochs

    @property
    def epochs(self) -> float:
        """Number of epochs of the round, of which a partial one is a fraction."""
        if self.timing.partial is not None:
            return self.timing.samples / self.timing.partial.epoch_samples
        return self.timing.epochs

    @property
    def epoch_cost(self) -> float | None:
        """Price of the requests of an epoch; None without stated prices, or without requests."""
        if self.prices is None or self.requests is None:
            return None
        return self.prices.cost(self.requests.count, self.requests.fetched_bytes) / self.epochs


Rounds = Sequence[Record]  # of one case


def key_of(facets: Facets) -> str:
    """Return the key of these facets: 16 hexadecimal digits, a hash of them."""
    text = json.dumps(facets, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
