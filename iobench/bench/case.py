"""Benchmark case: everything that determines a figure."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, fields
from functools import cached_property
from typing import Any

from iobench.dataset.manifest import Manifest
from iobench.formats import Schema
from iobench.loading.batching import BLOCK_BYTES, WINDOW_BYTES, Batching
from iobench.loading.collate import JAGGED, Collate
from iobench.loading.loaders import Job, Loader
from iobench.loading.order import Order
from iobench.objects.cache import ObjectCache
from iobench.results.cases import OWN_DATA
from iobench.results.record import key_of

ROUND_SECONDS = 3.0  # an epoch of 40 MB is shorter with every loader here, so that it is measured as a whole

# facets of cases that use them only, so that the keys of all others are as they were without the option
IF_USED = ("collate", "batch_tokens", "step_s", "object_cache", "max_batches")

# cache states of a dataset in an object store, of which there is no page cache
REMOTE = "remote"  # nothing is kept
COLD_OBJECTS = "cold object"  # an object cache that is emptied before each round
WARM_OBJECTS = "warm object"  # one that a whole epoch has filled


def content_of(manifest: Manifest) -> str:
    """Return the checksum of a dataset, hexadecimal; all cases of it have the same."""
    return f"{manifest.content or 0:016x}"


@dataclass(frozen=True)
class CaseSettings:
    """Settings of a case besides its format and loader: data, device, and how batches are drawn.

    Every field is a facet; one that has the name of an option of RunOptions gets that option's values.
    """

    dataset: str
    content: str  # see `content_of`
    _: KW_ONLY
    device: str = "cpu"
    batch_size: int = 256  # with `batch_tokens` the mean
    batch_tokens: int | None = None  # most elements of a batch of samples that differ in length
    order: str = "random"
    block_bytes: int = BLOCK_BYTES
    window_bytes: int = WINDOW_BYTES
    collate: str | None = None  # of samples that differ in length; None for data of one shape
    seed: int = 0
    object_cache: int = 0  # most bytes that are kept of objects in a store
    max_batches: int | None = None  # of a round's window; None for as many as `round_seconds` allows
    round_seconds: float = ROUND_SECONDS  # rounds are parts of an epoch that takes longer
    cache: str = "warm"
    model: str = "none"
    step_s: float = 0.0  # seconds per batch of simulated device work, instead of a training step
    strict: bool = False  # synchronize the device after each step
    profile: bool = False
    isolated: bool = False
    world_size: int = 1


@dataclass(frozen=True)
class Case(CaseSettings):
    """One variant of a dataset under one loader with all options, and how its batches are drawn.

    A case is picklable and holds no open handle, so that it can be sent to another process. If the loader
    reads data of its own, `variant` names the artifact that it is compared with, if there is one.
    """

    variant: str
    loader: Loader  # with all device-dependent options resolved

    @property
    def facets(self) -> dict[str, Any]:
        """All of the case as plain values, for records: see iobench.results.cases."""
        others = {spec.name: getattr(self, spec.name) for spec in fields(CaseSettings)}
        if self.order != "block":
            del others["block_bytes"], others["window_bytes"]
        if self.max_batches is not None or self.round_seconds == ROUND_SECONDS:
            del others["round_seconds"]
        return {
            "dataset": self.dataset,
            "content": self.content,
            "format": OWN_DATA if self.loader.own_data else self.variant,
            "loader": self.loader.display_name,
            "options": dict(self.loader.options),
            **{name: value for name, value in others.items() if value or name not in IF_USED},
        }

    @cached_property
    def key(self) -> str:
        """Identifier that is unique within a run, made of all facets."""
        return key_of(self.facets)

    @property
    def is_cold(self) -> bool:
        """True if its cache is emptied before each round, which then is one epoch."""
        return self.cache in ("cold", COLD_OBJECTS)

    def object_cache_of(self, manifest: Manifest) -> ObjectCache:
        """Return the case's own cache of objects, which the ranks of a host share."""
        device = self.device.partition(":")[0] if self.world_size > 1 else self.device
        key = key_of({**self.facets, "device": device})
        return ObjectCache(manifest.case_caches / key, self.object_cache, warns=False)

    def batch_bytes(self, schema: Schema) -> int:
        """Return the logical bytes of one batch."""
        return min(self.batch_size, schema.samples) * schema.sample_bytes

    def row_order(self, schema: Schema, rank: int = 0) -> Order:
        """Return the order of one rank's epoch over such samples, in batches of one size."""
        return self._batching.row_order(schema, rank, self.world_size)

    @property
    def _batching(self) -> Batching:
        sizes = self.block_bytes, self.window_bytes
        return Batching(self.order, self.batch_size, self.seed, *sizes, batch_tokens=self.batch_tokens)

    def job(self, manifest: Manifest, rank: int = 0) -> Job:
        """Return what the loader of one rank is opened over.

        Raises ManifestError or CorruptArtifact if the artifact is not as it was prepared.
        """
        opener = manifest.opener(self.variant)
        collate = Collate.parse(self.collate or JAGGED).over(manifest.schema)
        if self.object_cache:
            opener = opener.caching(self.object_cache_of(manifest))
        order = self._batching.order_over(opener, rank, self.world_size)
        return Job(opener, order, self.device, collate=collate)
