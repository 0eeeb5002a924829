"""Which on-disk format feeds your training fastest, and how far that is from the hardware.

The command line is a thin face over these functions, which return data and print nothing. Each is
imported when it is first asked for, so that `import iobench` loads no torch and no format library.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from iobench.advise.recommend import recommend
    from iobench.advise.requirements import Requirements
    from iobench.advise.tune import tune
    from iobench.bench.options import RunOptions
    from iobench.bench.outcome import Run
    from iobench.bench.run import run
    from iobench.contrib.ray.loader import RayLoader
    from iobench.dataset.add import AddedSource, add
    from iobench.dataset.manifest import Manifest, find_dataset
    from iobench.dataset.prepare import prepare
    from iobench.dataset.sources import Source, Synthetic, open_source
    from iobench.dataset.verify import verify
    from iobench.formats import Ragged
    from iobench.loading.batches import batches
    from iobench.results.summary import Summary, summarise
    from iobench.stream.options import StreamOptions
    from iobench.stream.stream_loader import StreamLoader
    from iobench.terminal.watch import watch

_HOMES = {
    "AddedSource": "iobench.dataset.add",
    "Manifest": "iobench.dataset.manifest",
    "Ragged": "iobench.formats",
    "Requirements": "iobench.advise.requirements",
    "RayLoader": "iobench.contrib.ray.loader",
    "Run": "iobench.bench.outcome",
    "RunOptions": "iobench.bench.options",
    "Source": "iobench.dataset.sources",
    "StreamLoader": "iobench.stream.stream_loader",
    "StreamOptions": "iobench.stream.options",
    "Summary": "iobench.results.summary",
    "Synthetic": "iobench.dataset.sources",
    "add": "iobench.dataset.add",
    "batches": "iobench.loading.batches",
    "find_dataset": "iobench.dataset.manifest",
    "open_source": "iobench.dataset.sources",
    "prepare": "iobench.dataset.prepare",
    "recommend": "iobench.advise.recommend",
    "run": "iobench.bench.run",
    "summarise": "iobench.results.summary",
    "tune": "iobench.advise.tune",
    "verify": "iobench.dataset.verify",
    "watch": "iobench.terminal.watch",
}

__all__ = [
    "AddedSource",
    "Manifest",
    "Ragged",
    "RayLoader",
    "Requirements",
    "Run",
    "RunOptions",
    "Source",
    "StreamLoader",
    "StreamOptions",
    "Summary",
    "Synthetic",
    "add",
    "batches",
    "find_dataset",
    "open_source",
    "prepare",
    "recommend",
    "run",
    "summarise",
    "tune",
    "verify",
    "watch",
]


def __getattr__(name: str) -> Any:
    """One of the names above, out of the room where it lives."""
    if name not in _HOMES:
        raise AttributeError(f"module 'iobench' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def renderer() -> Any:
    """Return the module that draws results in a notebook, which is in a room above those that make them."""
    return importlib.import_module("iobench.report.display")
