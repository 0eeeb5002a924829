"""StreamLoader: threads read batches into reused memory and keep disk, memory and device busy."""

from iobench.loading.stream.stream_loader import StreamLoader

__all__ = ["StreamLoader"]
