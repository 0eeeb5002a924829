"""Which on-disk format feeds your training fastest, and how far that is from the hardware.

The command line is a thin face over these functions, which return data and print nothing.
"""

from typing import TYPE_CHECKING, Any

from iobench.arms import Settings
from iobench.manifest import Manifest, find_dataset
from iobench.prepare import prepare
from iobench.run import Run, run
from iobench.sources import Source, Synthetic, open_source
from iobench.summary import Summary, summarise
from iobench.verify import verify

if TYPE_CHECKING:
    from iobench.stream import StreamLoader
    from iobench.watching import watch

__all__ = [
    "Manifest",
    "Run",
    "Settings",
    "Source",
    "StreamLoader",
    "Summary",
    "Synthetic",
    "find_dataset",
    "open_source",
    "prepare",
    "run",
    "summarise",
    "verify",
    "watch",
]


def __getattr__(name: str) -> Any:
    """StreamLoader and watch, imported when they are asked for, because they bring others along."""
    if name == "StreamLoader":
        from iobench.stream import StreamLoader

        return StreamLoader
    if name == "watch":
        from iobench.watching import watch

        return watch
    raise AttributeError(f"module 'iobench' has no attribute {name!r}")
