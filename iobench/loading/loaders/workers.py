"""Options that loaders with worker processes share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from iobench.base.errors import InvalidSettings
from iobench.base.options import declared, option
from iobench.loading.loaders._copying_loader import CopyingLoader
from iobench.loading.loaders._loader import AHEAD

MAX_WORKERS, MAX_PREFETCH = 1024, 65536


def fetch_option() -> Any:
    """Return the option `fetch`: single samples that are collated, or whole batches."""
    return option(
        "sample",
        "sample: one __getitem__ per sample, collated; batch: whole batches by __getitems__",
        choices=("sample", "batch"),
    )


@dataclass(frozen=True)
class WorkerLoader(CopyingLoader):
    """A loader with worker processes, as torch's DataLoader has them."""

    need_workers: ClassVar[tuple[str, ...]] = ("prefetch_factor",)  # options without effect if there are none

    num_workers: int = option(0, "worker processes", minimum=0, maximum=MAX_WORKERS)
    prefetch_factor: int | None = option(
        None,
        "batches that each worker reads ahead; by default the library's own number",
        minimum=1,
        maximum=MAX_PREFETCH,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        defaults = {spec.name: spec.default for spec in declared(type(self))}
        given = [name for name in self.need_workers if getattr(self, name) != defaults[name]]
        if given and not self.num_workers:
            raise InvalidSettings(
                f"{self.name}: {', '.join(given)} needs workers", kind="needs-workers", hint="set num_workers"
            )

    @property
    def workers(self) -> int:
        """The option `num_workers`."""
        return self.num_workers

    @property
    def read_ahead(self) -> int:
        """The batches that all workers read ahead."""
        return max(1, self.num_workers) * (self.prefetch_factor or AHEAD)
