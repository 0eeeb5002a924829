"""RayLoader over a map-style Dataset: DataLoader with actors of Ray in the place of worker processes.

It reads where the actors run: on a cluster of several hosts each of them needs the artifact at the same
path. `RAY_ADDRESS` names the cluster; where it is not set Ray is started for as long as a case lasts.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from iobench.formats import option
from iobench.loading.loaders._loader import Epochs, Job
from iobench.loading.loaders._workers import MOST_WORKERS, WorkerLoader, fetch_option
from iobench.loading.loaders.dataloader import DataLoaderEpochs, TorchDataLoader

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


@dataclass(frozen=True)
class Ray(WorkerLoader):
    """Told the rows of each batch."""

    name: ClassVar[str] = "ray"
    summary: ClassVar[str] = "RayLoader: DataLoader with actors of Ray as its workers"
    library: ClassVar[str] = "ray"
    advised: ClassVar[str] = "num_workers={cores},persistent_workers=yes"
    modules: ClassVar[tuple[str, ...]] = ("ray",)
    extra: ClassVar[str] = "ray"
    isolated: ClassVar[bool] = True

    fetch: str = fetch_option()
    num_workers: int = option(2, "actors", minimum=1, maximum=MOST_WORKERS)
    persistent_workers: bool = option(False, "keep actors from epoch to epoch")

    def open(self, job: Job) -> Epochs:
        """Ray, and a dataset whose reader is opened by each actor."""
        return RayEpochs(self, job)


class RayEpochs(DataLoaderEpochs):
    """As DataLoader's, with RayLoader in its place."""

    def __init__(self, loader: Ray, job: Job) -> None:
        from iobench.loading.ray.cluster import connected

        same = TorchDataLoader(
            fetch=loader.fetch,
            num_workers=loader.num_workers,
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.persistent_workers,
            pin_memory=loader.pin_memory,
        )
        super().__init__(same, job)
        self.loader = loader
        with job.opener():  # what is damaged or missing is told here, before actors start
            pass
        self._ray = ExitStack()
        self._ray.enter_context(connected(loader.num_workers))

    def _class(self) -> type[DataLoader[Any]]:
        from iobench.loading.ray import RayLoader

        return RayLoader

    def close(self) -> None:
        """End the actors, and Ray where it was started for them."""
        super().close()
        self._ray.close()
