"""Headroom of a case: the same loop over batches that are already on the device."""

from __future__ import annotations

import time
from dataclasses import fields
from itertools import cycle
from typing import Any

from iobench.base import thresholds
from iobench.bench.case import Case, CaseSettings
from iobench.bench.training import TrainingStep
from iobench.dataset.manifest import Manifest
from iobench.loading.host_to_device import DeviceBatch
from iobench.loading.replay import MAX_HELD, MAX_HELD_BYTES, Replay
from iobench.loading.tensors import silence_read_only_warning, tensors_of

# settings that change how batches are read, and not what the step does with them
READING = {"cache", "object_cache", "max_batches", "round_seconds", "profile", "isolated", "world_size"}
STEP = tuple(spec.name for spec in fields(CaseSettings) if spec.name not in READING)


class Headroom:
    """Replays the first batches of a dataset through the training steps of a run's cases, once a round."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._rates: dict[tuple[Any, ...], tuple[int, float]] = {}  # the last round, and samples/s

    def rate(self, case: Case, number: int) -> float:
        """Return samples per second of the loop in this round; cases with the same step share it."""
        context = tuple(getattr(case, name) for name in STEP)
        if self._rates.get(context, (None,))[0] != number:
            self._rates[context] = number, self._measured(case)
        return self._rates[context][1]

    def _measured(self, case: Case) -> float:
        step = TrainingStep.of(case, self._manifest.schema)
        held, samples = self._held(case, step), 0
        step(held[0])  # allocates what the later steps reuse
        step.transfer.synchronize()
        began = time.perf_counter()
        for batch in cycle(held):
            step(batch)
            if case.strict:
                step.transfer.synchronize()
            samples += len(next(iter(batch.values())))
            if time.perf_counter() - began >= thresholds.ROUND_S:
                break
        step.transfer.synchronize()
        return samples / (time.perf_counter() - began)

    def _held(self, case: Case, step: TrainingStep) -> list[DeviceBatch]:
        """Return whole batches of the case's order on the device."""
        schema = self._manifest.schema
        most = max(1, min(MAX_HELD, MAX_HELD_BYTES // case.batch_bytes(schema)))
        replay = Replay[DeviceBatch](step.transfer.device_api)
        reader = self._manifest.opener(case.variant)()
        silence_read_only_warning()
        try:
            for rows in case.row_order(schema).batches(schema.samples, 0)[:most]:
                replay.hold(tensors_of(reader.batch(rows)))
        finally:
            reader.close()
        return replay.held
