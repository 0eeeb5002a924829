"""What ranks must have alike to measure the same thing, and what they know of each other."""

from __future__ import annotations

import hashlib
import os
import platform
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from iobench.base import errors
from iobench.base.errors import (
    RanksDiffer,
)
from iobench.host import others
from iobench.ranks.group import Group

CLOCKS_S = 1.0  # that clocks may be apart


def check_alike(group: Group) -> list[str]:
    """What to be warned of; RanksDiffer, on every rank, where one has other software than rank 0.

    The ranks of this host count as one from now on, where other work is looked for.
    """
    own = {"software": _software(), "process": os.getpid(), "clock": time.time()}
    every: list[dict[str, Any]] = group.gather(own)  # plain values, which any version can read
    for place, hello in zip(group.places, every, strict=True):
        for name, value in hello["software"].items():
            if (first := every[0]["software"].get(name)) != value:
                raise RanksDiffer(
                    f"{place} has {name} {value}, {group.places[0]} has {first}; install the same everywhere"
                )
    here = (group.place.node, group.place.host)
    pairs = list(zip(group.places, every, strict=True))
    others.count_as_ours(hello["process"] for place, hello in pairs if (place.node, place.host) == here)
    apart_s, worst = max((abs(hello["clock"] - every[0]["clock"]), str(place)) for place, hello in pairs)
    if apart_s < CLOCKS_S:
        return []
    return [
        f"the clock of {worst} is {apart_s:.0f} s apart from that of rank 0, or it was slow to start; no "
        "figure depends on it, but times in records do: see that all hosts keep the same time"
    ]


def _software() -> dict[str, str]:
    """What a figure depends on; iobench's code, because checkouts of one version may differ."""
    versions = {name: metadata.version(name) for name in ("iobench", "torch", "numpy")}
    return {**versions, "iobench's code": _code(), "Python": platform.python_version()}


def _code() -> str:
    """A digest of iobench's own modules."""
    digest = hashlib.sha256()
    root = Path(errors.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]
