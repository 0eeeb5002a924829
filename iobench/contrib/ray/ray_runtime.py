"""Connection to Ray: a running cluster, or a Ray that this process starts."""

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
    """Return whether Ray can be imported."""
    return importlib.util.find_spec("ray") is not None


def connect(workers: int) -> bool:
    """Connect this process to Ray, and return whether Ray was started for it.

    Does nothing if `ray.init` was called before. Otherwise `RAY_ADDRESS` names the cluster. If it is not set,
    Ray is started for this process, with `workers` cores, without its dashboard and usage statistics. Access
    to it needs the token that Ray stores in ~/.ray. It ends with the process.

    Raises LoaderFailed if Ray does not start, or no cluster answers.
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
    except Exception as error:  # Ray raises many classes
        if address:
            problem, kind = f"no Ray cluster answers at RAY_ADDRESS={address}", "no-cluster"
        else:
            problem, kind = "Ray cannot start", "cannot-start"
        raise LoaderFailed(f"{problem}: {reason(error)}", kind=kind) from error
    return not address


@contextmanager
def connected(workers: int) -> Iterator[None]:
    """Connect to Ray; a Ray that was started for it ends with the block."""
    import ray

    started = connect(workers)
    try:
        yield
    finally:
        if started:
            ray.shutdown()
