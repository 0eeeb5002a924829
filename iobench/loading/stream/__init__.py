"""A loader that keeps disk, memory and device busy: batches read by threads into reused memory."""

from iobench.loading.stream.stream_loader import StreamLoader

__all__ = ["StreamLoader"]
