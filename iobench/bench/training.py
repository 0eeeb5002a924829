"""Training steps of a case, and its headroom: the same loop over batches that are already on the device."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import fields
from itertools import cycle
from typing import Any

import torch
from torch import nn

from iobench.base import thresholds
from iobench.base.errors import InvalidSettings
from iobench.bench.case import Case, CaseSettings
from iobench.dataset.manifest import Manifest
from iobench.formats import Field, Schema
from iobench.host.device import device_of, pick_device
from iobench.loading.host_to_device import DeviceBatch, HostToDevice
from iobench.loading.inspection import MAX_HELD, MAX_HELD_BYTES, Replay
from iobench.loading.tensors import silence_read_only_warning, tensors_of

CLASSES = 1000
HIDDEN = 256
LEARNING_RATE = 0.01
PRODUCT, PRODUCTS = 1024, 50  # `SimulatedStep`: matrix side, and products per calibration


class Trainer:
    """A small network with the same weights for the same seed, and one SGD step per batch.

    The input is the field with the most elements, scaled to 0..1 if it holds integers. The target
    is the first scalar integer field, modulo 1000 classes; without one, the mean of the input.
    """

    def __init__(self, model: str, schema: Schema, device: torch.device, seed: int) -> None:
        self._input = max(schema.fields, key=lambda field: field.elements)
        labels = [f for f in schema.fields if not f.shape and "int" in f.dtype and f != self._input]
        self._label = labels[0].name if labels else None
        outputs = CLASSES if self._label else 1
        with torch.random.fork_rng(devices=[]):  # drawn on the CPU, so that every device starts alike
            torch.manual_seed(seed)
            if model == "mlp":
                layers = nn.Linear(self._input.elements, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, outputs)
                network: nn.Module = nn.Sequential(nn.Flatten(), *layers)
            else:
                network = _cnn(self._input, outputs)
        self.network = network.to(device)
        self._optimiser = torch.optim.SGD(self.network.parameters(), LEARNING_RATE)
        self._loss = torch.zeros((), device=device)

    @property
    def loss(self) -> float:
        """Loss of the last step."""
        return float(self._loss)

    def step(self, batch: dict[str, torch.Tensor]) -> None:
        """Train on one batch on the device."""
        self.backward(self.forward(batch))

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the loss of a batch on the device."""
        inputs = _as_input(batch[self._input.name], self._input)
        with _repeatable():
            outputs = self.network(inputs)
        if self._label is not None:
            return nn.functional.cross_entropy(outputs, batch[self._label].long().remainder(CLASSES))
        return nn.functional.mse_loss(outputs[:, 0], inputs.flatten(1).mean(1))

    def backward(self, loss: torch.Tensor) -> None:
        """Backpropagate a loss of `forward` and update the weights."""
        self._optimiser.zero_grad(set_to_none=True)
        with _repeatable():
            torch.autograd.backward(loss)
        self._optimiser.step()
        self._loss = loss.detach()


class SimulatedStep:
    """Keeps a device busy for a fixed time per batch, instead of a training step.

    On the CPU the thread sleeps, like a training loop that waits for its accelerator. On an accelerator
    as many matrix products are queued as take that long; the host does not wait for them.
    """

    def __init__(self, device: torch.device, seconds: float) -> None:
        self._seconds, self._count = seconds, 0
        if device.type != "cpu":
            self._factor = torch.ones(PRODUCT, PRODUCT, device=device)
            self._count = max(1, round(seconds / self._product_s()))

    def __call__(self) -> None:
        """Occupy the device once."""
        if not self._count:
            time.sleep(self._seconds)
        for _ in range(self._count):
            torch.mm(self._factor, self._factor)

    def _product_s(self) -> float:
        for _ in range(2):
            began = time.monotonic()
            for _ in range(PRODUCTS):
                torch.mm(self._factor, self._factor)
            device_of(self._factor.device).synchronize()
        return (time.monotonic() - began) / PRODUCTS


class TrainingStep:
    """Work of a case on each batch: none, a training step, or simulated device work of fixed length.

    Training always starts from the same weights.
    """

    def __init__(
        self, transfer: HostToDevice, trainer: Trainer | None = None, busy: SimulatedStep | None = None
    ) -> None:
        self.transfer, self._trainer, self._busy = transfer, trainer, busy
        self.loss: float | None = None

    @classmethod
    def of(cls, case: Case, schema: Schema) -> TrainingStep:
        """Create the step of a case."""
        transfer = HostToDevice(pick_device(case.device), case.loader.copies_without_blocking)
        if case.step_s:
            return cls(transfer, busy=SimulatedStep(transfer.device, case.step_s))
        if case.model == "none":
            return cls(transfer)
        return cls(transfer, Trainer(case.model, schema, transfer.device, case.seed))

    @property
    def trains(self) -> bool:
        """True if there is a real or simulated training step."""
        return self._trainer is not None or self._busy is not None

    def __call__(self, batch: DeviceBatch) -> None:
        """Train on a batch without waiting for the device, as a training loop does."""
        if self._trainer is not None:
            self._trainer.step(batch)
        if self._busy is not None:
            self._busy()

    def note_loss(self) -> None:
        """Store the loss after the first epoch, because the number of epochs in a round varies by case."""
        if self._trainer is not None and self.loss is None:
            self.loss = self._trainer.loss


def _repeatable() -> AbstractContextManager[None]:
    """Enable deterministic cuDNN; `flags` would otherwise switch it off."""
    return torch.backends.cudnn.flags(enabled=True, deterministic=True, benchmark=False)


def _as_input(tensor: torch.Tensor, field: Field) -> torch.Tensor:
    # a copy, because matrix products may round by how their input is aligned in memory
    real = tensor.abs() if tensor.is_complex() else tensor
    values = real.to(torch.float32, copy=True)
    if "int" in field.dtype:
        values = values / torch.iinfo(tensor.dtype).max
    if not field.shape:
        return values[:, None]
    return values if _channels_first(field) or len(field.shape) < 3 else values.movedim(-1, 1)


def _channels_first(field: Field) -> bool:
    return len(field.shape) == 3 and field.shape[-1] not in (1, 3)


def _cnn(field: Field, outputs: int) -> nn.Module:
    if len(field.shape) not in (2, 3):
        expected, found = f"a field {field.name} of 2 or 3 dimensions", f"shape {field.shape}"
        problem, hint = "--model cnn needs images", "use --model mlp"
        raise InvalidSettings(problem, kind="model-needs-images", expected=expected, found=found, hint=hint)
    grey = len(field.shape) == 2
    channels = 1 if grey else field.shape[0] if _channels_first(field) else field.shape[-1]
    return nn.Sequential(
        nn.Unflatten(1, (1, field.shape[0])) if grey else nn.Identity(),
        nn.Conv2d(channels, 16, 7, stride=4, padding=3),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, outputs),
    )


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
