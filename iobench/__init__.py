"""Which on-disk format feeds your training fastest, and how far that is from the hardware.

The command line is a thin face over these functions, which return data and print nothing.
"""

from iobench.arms import Settings
from iobench.manifest import Manifest, find_dataset
from iobench.prepare import prepare
from iobench.run import Run, run
from iobench.sources import Source, Synthetic, open_source
from iobench.summary import Summary, summarise
from iobench.verify import verify

__all__ = [
    "Manifest",
    "Run",
    "Settings",
    "Source",
    "Summary",
    "Synthetic",
    "find_dataset",
    "open_source",
    "prepare",
    "run",
    "summarise",
    "verify",
]
