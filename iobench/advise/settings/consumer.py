"""The training side of a loop: transfer and step for each batch, and batches replayed from the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from iobench.base.errors import InvalidSettings
from iobench.bench.executor import TrainingStep
from iobench.bench.options import MODELS, check_steps
from iobench.bench.training import SimulatedStep, Trainer
from iobench.formats import Field, Schema
from iobench.host.device import pick_device
from iobench.loading.host_to_device import HostToDevice

MAX_HELD_BYTES = 256 << 20  # of batches that are replayed
MAX_HELD = 16


class Consumer:
    """Moves a batch's tensors to the device and runs a training step, or a wait of its length, on them.

    Parameters
    ----------
    device : str
        Device name, such as ``cpu``, ``cuda:0`` or ``auto``.
    step_ms : float
        Length of a simulated step in milliseconds; 0 for none.
    model : str
        Model to train on each batch, one of `MODELS`.
    seed : int
        Seed of the model's weights.

    Raises
    ------
    InvalidSettings
        Both `step_ms` and `model` are given, or the model has no field to train on.
    """

    def __init__(self, device: str, step_ms: float = 0.0, model: str = "none", seed: int = 0) -> None:
        if model not in MODELS:
            raise InvalidSettings(
                "--model", kind="unknown-choice", expected=f"one of {', '.join(MODELS)}", found=repr(model)
            )
        check_steps((step_ms,), (model,))
        self.device, self.model, self.step_s, self._seed = pick_device(device), model, step_ms / 1000, seed
        self.transfer = HostToDevice(self.device, non_blocking=False)
        busy = SimulatedStep(self.device, self.step_s) if self.step_s else None
        self._step = TrainingStep(self.transfer, busy=busy)

    @property
    def trains(self) -> bool:
        """True if there is a training step."""
        return bool(self.step_s) or self.model != "none"

    def __call__(self, tensors: Sequence[Any]) -> None:
        """Train on one batch."""
        if self.model == "none" and self.transfer.device_api.is_host:
            self._step({})
            return
        batch = self.moved(tensors)
        if self.model != "none" and not self._step.trains:
            trainer = Trainer(self.model, _schema(batch), self.device, self._seed)
            self._step = TrainingStep(self.transfer, trainer)
        self._step(batch)

    def moved(self, tensors: Sequence[Any]) -> dict[str, torch.Tensor]:
        """Return the tensors of a batch on the device, named ``f0``, ``f1`` and so on."""
        named = {f"f{number}": _tensor(one) for number, one in enumerate(tensors)}
        return self.transfer.move(named)

    def synchronize(self) -> None:
        """Block until the device has finished all of it."""
        self.transfer.synchronize()


class HeadroomLoader:
    """The first batches of a loader, copied to the device and replayed for one epoch.

    `batches` is the length of an epoch; while it is 0, `hold` stores batches.
    """

    def __init__(self, consumer: Consumer) -> None:
        self._consumer, self._held, self._bytes = consumer, list[list[torch.Tensor]](), 0
        self.batches = 0

    def hold(self, tensors: Sequence[Any]) -> None:
        """Store a copy of a batch, up to 16 batches or 256 MiB."""
        if self.batches or not tensors:
            return
        if len(self._held) < MAX_HELD and (not self._held or self._bytes < MAX_HELD_BYTES):
            moved = [one.clone() for one in self._consumer.moved(tensors).values()]
            self._held.append(moved)
            self._bytes += sum(one.nbytes for one in moved)

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        for number in range(self.batches if self._held else 0):
            yield self._held[number % len(self._held)]


def _tensor(one: Any) -> torch.Tensor:
    return torch.from_numpy(one) if isinstance(one, np.ndarray) else one


def _schema(batch: dict[str, torch.Tensor]) -> Schema:
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
