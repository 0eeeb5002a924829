"""Cases: the combinations under test, variant × loader × settings."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from typing import Any

from iobench.errors import InvalidSettings
from iobench.formats import Schema
from iobench.loading.order import BLOCK_BYTES, ORDERS, WINDOW_BYTES, Order, blocks_of

LOADERS = ("dataloader", "native", "stream")
FETCHES = ("sample", "batch")
MOST_SEED = 2**63 - 1
START_METHODS = ("fork", "spawn", "forkserver")

_READ_BY = {  # settings that one loader alone can use
    "fetch": "dataloader",
    "num_workers": "dataloader",
    "prefetch_factor": "dataloader",
    "start_method": "dataloader",
    "threads": "stream",
    "direct": "stream",
}

_LEAST = {
    "batch_size": 1,
    "num_workers": 0,
    "prefetch_factor": 1,
    "threads": 1,
    "block_bytes": 1,
    "window_bytes": 1,
    "seed": 0,
}


@dataclass(frozen=True)
class Settings:
    """How batches are drawn and carried; what a loader cannot use does not enter its case."""

    batch_size: int = 256
    order: str = "sequential"
    fetch: str = "sample"
    num_workers: int = 0
    prefetch_factor: int | None = None  # torch's default: 2 batches a worker
    start_method: str | None = None  # Python's default on this platform
    pin_memory: bool | None = None  # on where the device is CUDA
    non_blocking: bool | None = None  # follows pin_memory
    threads: int | None = None  # of stream: as many as the way of reading is worth
    direct: bool | None = None  # of stream: past the page cache, where data would not stay in it
    block_bytes: int = BLOCK_BYTES
    window_bytes: int = WINDOW_BYTES
    seed: int = 0

    def __post_init__(self) -> None:
        for name, known in (("order", ORDERS), ("fetch", FETCHES), ("start_method", (None, *START_METHODS))):
            if getattr(self, name) not in known:
                shown = ", ".join(word for word in known if word)
                raise InvalidSettings(f"{name} {getattr(self, name)!r} is not one of {shown}")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise InvalidSettings(f"{name} {value} is below {least}")
        if self.seed > MOST_SEED:
            raise InvalidSettings(f"seed {self.seed} is above {MOST_SEED}, the most that torch takes")
        if self.num_workers == 0 and (self.prefetch_factor, self.start_method) != (None, None):
            raise InvalidSettings("prefetch_factor and start_method need workers: give --num-workers")
        if self.order != "block" and (self.block_bytes, self.window_bytes) != (BLOCK_BYTES, WINDOW_BYTES):
            raise InvalidSettings(f"sizes of blocks and windows are for order block, not {self.order}")

    def row_order(self, schema: Schema) -> Order:
        """How an epoch over such samples goes."""
        block_rows, window = blocks_of(schema, self.batch_size, self.block_bytes, self.window_bytes)
        return Order(self.order, self.batch_size, self.seed, block_rows, window)

    def on(self, device: str) -> Settings:
        """The same with pinning and non-blocking copies decided for a device."""
        cuda = device.startswith("cuda")
        if not cuda and (self.pin_memory or self.non_blocking):
            raise InvalidSettings(f"pinned memory and non-blocking copies need CUDA, not --device {device}")
        pin = cuda if self.pin_memory is None else self.pin_memory
        non_blocking = pin if self.non_blocking is None else self.non_blocking
        return replace(self, pin_memory=pin, non_blocking=non_blocking)


@dataclass(frozen=True)
class Case:
    """One combination under test."""

    variant: str
    loader: str
    settings: Settings

    @property
    def label(self) -> str:
        """The case in a few words: what sets it apart from the others of its run."""
        return f"{self.variant} · {self.loader_label}"

    @property
    def loader_label(self) -> str:
        """The loader with the settings that only it has."""
        if self.loader == "stream" and self.settings.direct:
            return "stream, direct"
        if self.loader != "dataloader":
            return self.loader
        workers = self.settings.num_workers
        return f"{self.loader}, {self.settings.fetch} fetch" + (f", {workers} workers" if workers else "")

    def as_dict(self) -> dict[str, Any]:
        """For records: variant, loader and settings side by side."""
        return {"variant": self.variant, "loader": self.loader, "label": self.label, **asdict(self.settings)}


def check_read(settings: Settings, loaders: Collection[str]) -> None:
    """InvalidSettings where a setting was changed that none of the loaders reads."""
    for name, loader in _READ_BY.items():
        value = getattr(settings, name)
        if value != getattr(Settings, name) and loader not in loaders:
            raise InvalidSettings(
                f"{name} {value} is for loader {loader}, which is not among {', '.join(loaders)}"
            )


def case(variant: str, loader: str, settings: Settings) -> Case:
    """The case of a variant and a loader, without the settings it has no use for."""
    if loader not in LOADERS:
        raise InvalidSettings(f"unknown loader {loader!r}; known: {', '.join(LOADERS)}, all")
    if loader != "dataloader":
        settings = replace(settings, fetch="batch", num_workers=0, prefetch_factor=None, start_method=None)
    if loader != "stream":
        settings = replace(settings, threads=None, direct=None)
    return Case(variant, loader, settings)
