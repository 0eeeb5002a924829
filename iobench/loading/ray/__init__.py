"""RayLoader: torch's DataLoader whose workers are actors of Ray, on this machine or on others."""

from iobench.loading.ray.loader import RayLoader

__all__ = ["RayLoader"]
