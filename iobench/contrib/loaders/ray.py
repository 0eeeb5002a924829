"""RayLoader over a map-style Dataset: a DataLoader whose workers are Ray actors.

The actors read the artifact on their own hosts, so every host of a cluster needs it at the same path.
`RAY_ADDRESS` names the cluster. If it is not set, Ray is started for the duration of a case.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from iobench.base.options import option
from iobench.loading.loaders import MAX_WORKERS, Epochs, Job, WorkerLoader, fetch_option
from iobench.loading.loaders.dataloader import DataLoaderEpochs

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


@dataclass(frozen=True)
class Ray(WorkerLoader):
    """A map-style loader whose workers are Ray actors."""

    name: ClassVar[str] = "ray"
    summary: ClassVar[str] = "RayLoader: a DataLoader whose workers are Ray actors"
    library: ClassVar[str] = "ray"
    recommended_options: ClassVar[str] = "num_workers={cores},persistent_workers=yes"
    modules: ClassVar[tuple[str, ...]] = ("ray",)

    fetch: str = fetch_option()
    num_workers: int = option(2, "actors", minimum=1, maximum=MAX_WORKERS)
    persistent_workers: bool = option(False, "keep actors from epoch to epoch")

    def open(self, job: Job) -> Epochs:
        """Connect to Ray; each actor opens its own reader."""
        return RayEpochs(self, job)


class RayEpochs(DataLoaderEpochs):
    """DataLoader's epochs with RayLoader in its place."""

    def __init__(self, loader: Ray, job: Job) -> None:
        from iobench.contrib.ray.ray_runtime import connected

        super().__init__(loader, job)
        job.opener().close()  # reports damaged or missing files before actors start
        self._ray = ExitStack()
        self._ray.enter_context(connected(loader.num_workers))

    def _class(self) -> type[DataLoader[Any]]:
        from iobench.contrib.ray.loader import RayLoader

        return RayLoader

    def close(self) -> None:
        """End the actors, and shut Ray down if `open` started it."""
        super().close()
        self._ray.close()
