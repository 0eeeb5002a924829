"""A benchmark case: everything that decides a figure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from iobench.dataset.manifest import Manifest
from iobench.formats import Schema
from iobench.loading.loaders import Job, Loader
from iobench.loading.order import BLOCK_BYTES, WINDOW_BYTES, Batching, Order
from iobench.loading.stages import UNTIMED, Stages
from iobench.results.cases import OWN_DATA, key_of


@dataclass(frozen=True)
class Case:
    """A dataset's variant under a loader with all of its options, and how its batches are drawn.

    It can be pickled: a process of its own gets one, and never an open handle. Where the loader reads data
    of its own, `variant` is an artifact of the dataset that it is compared with.
    """

    dataset: str
    content: str  # the dataset's checksum, hexadecimal
    variant: str
    loader: Loader  # with what depends on the device decided
    device: str = "cpu"
    batch_size: int = 256
    order: str = "random"
    block_bytes: int = BLOCK_BYTES
    window_bytes: int = WINDOW_BYTES
    seed: int = 0
    cache: str = "warm"
    model: str = "none"
    step_s: float = 0.0  # that each batch keeps the device busy, in the place of a training step
    strict: bool = False  # the device is synchronised after each step
    profile: bool = False
    isolated: bool = False
    world_size: int = 1

    @property
    def facets(self) -> dict[str, Any]:
        """All of it as plain values, for records: see iobench.results.cases."""
        blocks = {"block_bytes": self.block_bytes, "window_bytes": self.window_bytes}
        return {
            "dataset": self.dataset,
            "content": self.content,
            "format": OWN_DATA if self.loader.own_data else self.variant,
            "loader": self.loader.called,
            "options": self.loader.options,
            "device": self.device,
            "batch_size": self.batch_size,
            "order": self.order,
            **(blocks if self.order == "block" else {}),
            "seed": self.seed,
            "cache": self.cache,
            "model": self.model,
            **({"step_s": self.step_s} if self.step_s else {}),
            "strict": self.strict,
            "profile": self.profile,
            "isolated": self.isolated,
            "world_size": self.world_size,
        }

    @cached_property
    def key(self) -> str:
        """What tells it apart from every other case of its run."""
        return key_of(self.facets)

    def batch_bytes(self, schema: Schema) -> int:
        """Logical bytes of a batch."""
        return min(self.batch_size, schema.samples) * schema.sample_bytes

    def row_order(self, schema: Schema, rank: int = 0) -> Order:
        """How an epoch of a rank over such samples goes."""
        batching = Batching(self.order, self.batch_size, self.seed, self.block_bytes, self.window_bytes)
        return batching.row_order(schema, rank, self.world_size)

    def job(self, manifest: Manifest, stages: Stages = UNTIMED, rank: int = 0) -> Job:
        """What its loader is opened over, in a rank.

        ManifestError or CorruptArtifact where the artifact is not there as it was prepared.
        """
        order = self.row_order(manifest.schema, rank)
        return Job(manifest.opener(self.variant), order, self.device, stages)
