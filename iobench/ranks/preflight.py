"""Preflight check of a distributed run: all ranks must run the same software."""

from __future__ import annotations

import hashlib
import os
import platform
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from iobench.base import errors
from iobench.base.errors import RanksDiffer
from iobench.base.finding import Finding
from iobench.host import machine_load
from iobench.ranks.group import RankGroup

CLOCKS_S = 1.0  # greatest difference between clocks that is not noted


def check_environments(group: RankGroup) -> list[Finding]:
    """Compare the software and clocks of all ranks, and return a note (`clock-skew`) if clocks differ.

    From now on the ranks of this host do not count as background load.

    RanksDiffer on every rank if one has other software than rank 0.
    """
    own = {"software": software(), "process": os.getpid(), "clock": time.time()}
    environments: list[dict[str, Any]] = group.all_gather(own)  # plain values, which any version can read
    for rank, environment in zip(group.ranks, environments, strict=True):
        for name, value in environment["software"].items():
            if (first := environments[0]["software"].get(name)) != value:
                raise RanksDiffer(
                    f"{rank} has another version of {name}",
                    kind="other-software",
                    expected=f"{first} as on {group.ranks[0]}",
                    found=value,
                    hint="install the same everywhere",
                )
    here = (group.info.node, group.info.host)
    pairs = list(zip(group.ranks, environments, strict=True))
    machine_load.exclude_processes(
        environment["process"] for rank, environment in pairs if (rank.node, rank.host) == here
    )
    first_clock = environments[0]["clock"]
    skew_s, worst = max((abs(environment["clock"] - first_clock), str(rank)) for rank, environment in pairs)
    if skew_s < CLOCKS_S:
        return []
    return [
        Finding(
            "clock-skew",
            f"the clock of {worst} differs by {skew_s:.0f} s from that of rank 0, or it started late; this "
            "affects times in records, but no figure",
            "synchronize the clocks of all hosts",
            {"rank": worst, "skew_s": skew_s},
        )
    ]


def software() -> dict[str, str]:
    """Return the versions that figures depend on, and a digest of iobench: checkouts of a version differ."""
    versions = {name: metadata.version(name) for name in ("iobench", "torch", "numpy")}
    return {**versions, "iobench's code": _code(), "Python": platform.python_version()}


def _code() -> str:
    """Return a digest of iobench's modules."""
    digest = hashlib.sha256()
    root = Path(errors.__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]
