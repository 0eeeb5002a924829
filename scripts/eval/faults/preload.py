"""Everything imported before children are forked, and short rounds: both make a trial quick."""

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
from iobench.bench import limits
from iobench.report import page
from iobench.terminal import cli

LAZY_IMPORTS = ("scipy.stats", "narwhals")  # slow imports that iobench makes on first use
SHORT_S = 0.002  # of a round and of a limit: their precision does not matter here


def load() -> None:
    """Import all of iobench, and what its command line imports on first use."""
    for module in pkgutil.walk_packages(iobench.__path__, "iobench."):
        if not module.name.startswith("iobench.testing"):  # needs pytest
            with contextlib.suppress(ModuleNotFoundError):  # of an extra that is not installed
                importlib.import_module(module.name)
    for name in LAZY_IMPORTS:
        importlib.import_module(name)
    with contextlib.redirect_stdout(io.StringIO()):
        cli.app(["formats"], standalone_mode=False)
    warnings.filterwarnings(
        "ignore", "lance is not fork-safe"
    )  # and it is first used after a fork, in trials
    gc.collect()
    gc.freeze()  # or each collection in a child would copy all pages
    atexit.register(gc.unfreeze)  # C++ libraries complain at exit of objects that were not collected


def shorten_rounds() -> None:
    """Shorten rounds and limits in this process and its children, and limit torch to one thread.

    Reports go without their script: it never changes, and V8 needs seconds to start in each child.
    """
    page._script = lambda: ""  # type: ignore[assignment]
    limits.SECONDS = thresholds.ROUND_S = SHORT_S
    torch.set_num_threads(1)  # several trials share the cores
