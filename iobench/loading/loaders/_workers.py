"""What loaders with workers have in common: how many there are, how far they read ahead, what they fetch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from iobench.base.errors import (
    InvalidSettings,
)
from iobench.formats import declared, option
from iobench.loading.loaders._loader import CopyingLoader

MOST_WORKERS, MOST_AHEAD = 1024, 65536


def fetch_option() -> Any:
    """The option of what a loader asks its dataset for: samples, which are collated, or whole batches."""
    return option(
        "sample",
        "sample: one __getitem__ per sample, collated; batch: whole batches by __getitems__",
        choices=("sample", "batch"),
    )


@dataclass(frozen=True)
class WorkerLoader(CopyingLoader):
    """A loader that has workers, as torch's DataLoader has them."""

    need_workers: ClassVar[tuple[str, ...]] = ("prefetch_factor",)  # options that mean nothing without them

    num_workers: int = option(0, "worker processes", minimum=0, maximum=MOST_WORKERS)
    prefetch_factor: int | None = option(
        None,
        "batches that each worker reads ahead; by default the library's own number",
        minimum=1,
        maximum=MOST_AHEAD,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        defaults = {spec.name: spec.default for spec in declared(type(self))}
        given = [name for name in self.need_workers if getattr(self, name) != defaults[name]]
        if given and not self.num_workers:
            raise InvalidSettings(f"{self.name}: {', '.join(given)} needs workers: set num_workers")

    @property
    def workers(self) -> int:
        """As many as its option says."""
        return self.num_workers
