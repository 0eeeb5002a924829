"""RayLoader: a DataLoader whose workers are Ray actors, on this machine or on others."""

from iobench.loading.ray.loader import RayLoader

__all__ = ["RayLoader"]
