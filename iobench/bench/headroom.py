"""Headroom: speed of the training loop over batches that are on the device already, an upper bound."""

from __future__ import annotations

import time
from typing import Any

import torch

from iobench.base import thresholds
from iobench.bench.case import Case
from iobench.bench.executor import TrainingStep
from iobench.dataset.manifest import Manifest
from iobench.loading.host_to_device import DeviceBatch

HELD_BYTES, MOST_HELD = 256 << 20, 16  # of batches that are replayed in turn
FACETS = ("device", "batch_size", "order", "model", "step_s", "strict", "seed")


class Headroom:
    """Replays the first batches of a dataset through the training steps of a run's cases, once a round."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._rates: dict[tuple[Any, ...], tuple[int, float]] = {}  # the last round, and samples/s

    def rate(self, case: Case, number: int) -> float:
        """Return samples per second of the loop in this round; cases with the same step share it."""
        context = tuple(getattr(case, name) for name in FACETS)
        if self._rates.get(context, (None,))[0] != number:
            self._rates[context] = number, self._measured(case)
        return self._rates[context][1]

    def _measured(self, case: Case) -> float:
        step = TrainingStep.of(case, self._manifest.schema)
        held = self._held(case, step)
        done = samples = 0
        step(held[0])  # allocates what the later steps reuse
        step.transfer.synchronize()
        began = time.perf_counter()
        while time.perf_counter() - began < thresholds.ROUND_S:
            batch = held[done % len(held)]
            step(batch)
            if case.strict:
                step.transfer.synchronize()
            done, samples = done + 1, samples + len(next(iter(batch.values())))
        step.transfer.synchronize()
        return samples / (time.perf_counter() - began)

    def _held(self, case: Case, step: TrainingStep) -> list[DeviceBatch]:
        """Return whole batches of the case's order on the device, up to HELD_BYTES."""
        schema = self._manifest.schema
        most = max(1, min(MOST_HELD, HELD_BYTES // case.batch_bytes(schema)))
        rows = case.row_order(schema).batches(schema.samples, 0)[:most]
        reader = self._manifest.opener(case.variant)()
        try:
            host = [{n: torch.from_numpy(a.copy()) for n, a in reader.batch(one).items()} for one in rows]
        finally:
            reader.close()
        return [step.transfer.move(batch) for batch in host]
