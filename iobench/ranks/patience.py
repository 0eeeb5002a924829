"""Patience of the ranks with one that is silent or hangs: the defaults, and the limit in the environment."""

from __future__ import annotations

import os

from iobench.base.errors import InvalidSettings

SILENT_S = 30.0  # without a heartbeat: a stopped process, or a host or network that is gone
SUSPECT_S = 3.0  # the same after a connection has broken
TIMEOUT = "IOBENCH_RANK_TIMEOUT"  # seconds, instead of any patience; half of them instead of SILENT_S


def own_timeout() -> float | None:
    """Return the seconds in IOBENCH_RANK_TIMEOUT, or None; raises InvalidSettings for an invalid number."""
    text = os.environ.get(TIMEOUT)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise InvalidSettings(
            f"environment variable {TIMEOUT}",
            kind="out-of-range",
            expected="a number of seconds above 0",
            found=repr(text),
        )
    return seconds


def silent_s() -> float:
    """Return the seconds without a heartbeat after which a rank is marked dead."""
    return min(SILENT_S, (own_timeout() or 2 * SILENT_S) / 2)
