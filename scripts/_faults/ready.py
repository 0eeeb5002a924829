"""What makes a trial quick: what it would import is there before it is forked, and its rounds are short."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import pkgutil
import warnings

import torch

import iobench
from iobench.base import thresholds
from iobench.bench import case_limits
from iobench.report import html
from iobench.terminal import cli

LATE = ("scipy.stats", "narwhals")  # what else is imported only where it is used, and takes its time
SHORT_S = 0.002  # of a round, and of a limit: nobody looks at how good they are


def load() -> None:
    """Import all of iobench, and what its command line brings in when it is first used."""
    for found in pkgutil.walk_packages(iobench.__path__, "iobench."):
        if not found.name.startswith("iobench.testing"):  # which wants pytest
            importlib.import_module(found.name)
    for name in LATE:
        importlib.import_module(name)
    with contextlib.redirect_stdout(io.StringIO()):
        cli.app(["formats"], standalone_mode=False)
    warnings.filterwarnings("ignore", "lance is not fork-safe")  # nor used before one: by trials alone
    gc.collect()
    gc.freeze()  # or each collection in a child copies the pages of whatever there is
    atexit.register(gc.unfreeze)  # what is never collected, libraries in C++ complain of as they end


def hasten() -> None:
    """Let rounds and limits of this process and its children be short, and torch take one core.

    Pages go without their script: it is always the same, and V8 takes each child seconds to start.
    """
    html._script = lambda: ""  # type: ignore[assignment]
    case_limits.SECONDS = thresholds.ROUND_S = SHORT_S
    torch.set_num_threads(1)  # more threads wait for each other where several trials share the cores
