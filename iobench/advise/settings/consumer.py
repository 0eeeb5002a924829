"""The training side of a loop: the device of its batches, and the step on each."""

from __future__ import annotations

from typing import Any

import numpy as np

from iobench.base.errors import InvalidSettings
from iobench.bench.options import MODELS, check_steps
from iobench.bench.training import SimulatedStep, Trainer, TrainingStep
from iobench.formats import Field, Schema
from iobench.host.device import pick_device
from iobench.loading.host_to_device import DeviceBatch, HostToDevice
from iobench.loading.replay import Replay
from iobench.loading.tensors import tensor_of


class Consumer:
    """Runs a model's training step, or a simulated one of `step_ms`, on each batch that a device received.

    InvalidSettings if both are given, or if the model has no field to train on.
    """

    def __init__(self, device: str = "cpu", step_ms: float = 0.0, model: str = "none", seed: int = 0) -> None:
        if model not in MODELS:
            raise InvalidSettings(
                "--model", kind="unknown-choice", expected=f"one of {', '.join(MODELS)}", found=repr(model)
            )
        check_steps((step_ms,), (model,))
        self.device, self.model, self.step_s, self.seed = pick_device(device), model, step_ms / 1000, seed
        self.transfer = HostToDevice(self.device, non_blocking=False)
        busy = SimulatedStep(self.device, self.step_s) if self.step_s else None
        self._step = TrainingStep(self.transfer, busy=busy)
        self.replay: Replay[DeviceBatch] | None = None  # holds the first batches, for the headroom

    @property
    def trains(self) -> bool:
        """True if there is a training step."""
        return bool(self.step_s) or self.model != "none"

    def taken(self, one: Any) -> Any:
        """Return an array of a batch as a tensor, where that is needed."""
        needed = self.trains or not self.transfer.device_api.is_host
        return tensor_of(one) if needed and isinstance(one, np.ndarray) else one

    def __call__(self, batch: DeviceBatch) -> None:
        """Train on one batch on the device."""
        if self.replay is not None and batch:
            self.replay.hold(batch)
        if self.model != "none" and not self._step.trains:
            trainer = Trainer(self.model, _schema(batch), self.device, self.seed)
            self._step = TrainingStep(self.transfer, trainer)
        self._step(batch)


def _schema(batch: DeviceBatch) -> Schema:
    """Return the schema of a batch for a model to train on."""
    hint = "give --step-ms"
    try:
        fields = [
            Field(name, tuple(one.shape[1:]), str(one.dtype).removeprefix("torch."))
            for name, one in batch.items()
            if one.ndim
        ]
    except ValueError as error:
        problem = f"--model cannot train on its batches: {error}"
        raise InvalidSettings(problem, kind="untrainable-batches", hint=hint) from error
    if not fields:
        raise InvalidSettings(
            "--model cannot train on its batches",
            kind="untrainable-batches",
            expected="tensors with a batch dimension",
            found="none",
            hint=hint,
        )
    return Schema(1, tuple(fields))
