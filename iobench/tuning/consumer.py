"""What a training loop does with each batch, and the best that any loader could do for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from iobench.base.errors import (
    InvalidSettings,
)
from iobench.bench.executor import TrainingStep
from iobench.bench.options import MODELS, check_steps
from iobench.bench.training import SimulatedStep, Trainer
from iobench.formats import Field, Schema
from iobench.host.device import pick_device
from iobench.loading.host_to_device import HostToDevice

HELD_BYTES = 256 << 20  # of batches that are replayed
MOST_HELD = 16


class Consumer:
    """Brings a batch's tensors to the device, and keeps it busy with a training step or what stands for one.

    InvalidSettings where step and model are both given, or a model finds nothing to train on.
    """

    def __init__(self, device: str, step_ms: float = 0.0, model: str = "none", seed: int = 0) -> None:
        if model not in MODELS:
            raise InvalidSettings(f"model {model!r} is not one of {', '.join(MODELS)}")
        check_steps((step_ms,), (model,))
        self.device, self.model, self.step_s, self._seed = pick_device(device), model, step_ms / 1000, seed
        self.transfer = HostToDevice(self.device, non_blocking=False)
        self._step = TrainingStep(self.transfer, busy=SimulatedStep(self.device, self.step_s) if self.step_s else None)

    @property
    def trains(self) -> bool:
        """Whether the device has anything to do with a batch."""
        return bool(self.step_s) or self.model != "none"

    def __call__(self, tensors: Sequence[Any]) -> None:
        """Have one batch trained on."""
        if self.model == "none" and self.transfer.device_api.is_host:
            self._step({})
            return
        batch = self.moved(tensors)
        if self.model != "none" and not self._step.trains:
            self._step = TrainingStep(self.transfer, Trainer(self.model, _schema(batch), self.device, self._seed))
        self._step(batch)

    def moved(self, tensors: Sequence[Any]) -> dict[str, torch.Tensor]:
        """The tensors of a batch on the device, by names of ours."""
        named = {f"f{number}": _tensor(one) for number, one in enumerate(tensors)}
        moved = self.transfer.move(named)
        return moved

    def synchronize(self) -> None:
        """Wait until the device has done all of it."""
        self.transfer.synchronize()


class HeadroomLoader:
    """The first batches of a loader, held on the device, over and over for as long as an epoch."""

    def __init__(self, use: Consumer) -> None:
        self._use, self._held, self._bytes = use, list[list[torch.Tensor]](), 0
        self.batches = 0  # of an epoch; until it is said, batches are held

    def hold(self, tensors: Sequence[Any]) -> None:
        """Keep a copy of a batch, unless enough is held."""
        if self.batches or not tensors:
            return
        if len(self._held) < MOST_HELD and (not self._held or self._bytes < HELD_BYTES):
            moved = [one.clone() for one in self._use.moved(tensors).values()]
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
    """The fields of a batch, for a model to train on."""
    try:
        fields = [
            Field(name, tuple(one.shape[1:]), str(one.dtype).removeprefix("torch."))
            for name, one in batch.items()
            if one.ndim
        ]
    except ValueError as error:
        raise InvalidSettings(f"--model: no batch to train on: {error}; give --step-ms") from error
    if not fields:
        raise InvalidSettings("--model: its batches hold no tensors to train on; give --step-ms")
    return Schema(1, tuple(fields))
