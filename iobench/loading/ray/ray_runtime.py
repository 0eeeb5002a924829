"""The Ray that actors run on: one that is there, or one of this process's own."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from iobench.base.errors import LoaderFailed
from iobench.base.text import reason

_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}


def installed() -> bool:
    """Whether Ray can be imported."""
    return importlib.util.find_spec("ray") is not None


def connect(workers: int) -> bool:
    """Connect this process to Ray, and say whether Ray was started for that.

    Nothing is done where `ray.init` was called before, and `RAY_ADDRESS` names the cluster if it is set.
    Otherwise Ray is started for this process alone, without its dashboard and its usage statistics, for
    whoever has the token that Ray keeps in ~/.ray; it ends with the process. LoaderFailed if none answers.
    """
    import ray

    if ray.is_initialized():
        return False
    address = os.environ.get("RAY_ADDRESS")
    try:
        if address:
            ray.init(address, **_QUIET)
        else:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            ray.init("local", num_cpus=workers, include_dashboard=False, **_QUIET)
    except Exception as error:  # Ray raises many kinds
        asked = f"no Ray cluster answers at RAY_ADDRESS={address}" if address else "Ray cannot start"
        raise LoaderFailed(f"{asked}: {reason(error)}") from error
    return not address


@contextmanager
def connected(workers: int) -> Iterator[None]:
    """As connect; what was started for it ends with the block."""
    import ray

    started = connect(workers)
    try:
        yield
    finally:
        if started:
            ray.shutdown()
