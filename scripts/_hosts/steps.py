"""The steps that are taken, one after the other, and how they end."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from _hosts import cluster, faults, story
from _hosts.heard import Promises
from _hosts.host import Hosts

Step = Callable[[Hosts, Promises], None]
TORCHRUN: Mapping[str, Step] = {
    "torchrun": story.by_torchrun,
    "kill": faults.kill,
    "stop": faults.stop,
    "freeze": faults.freeze,
    "death": faults.death,
    "cable": faults.cable,
    "not-root": faults.not_root,
}
RAY: Mapping[str, Step] = {
    "ray": story.by_ray,
    "version": faults.version,
    "dataset": faults.dataset,
    "ray-kill": faults.ray_kill,
    "ray-stop": faults.ray_stop,
    "ray-freeze": faults.ray_freeze,
    "ray-death": faults.ray_death,
    "ray-cable": faults.ray_cable,
    "ray-gone": faults.ray_gone,
}


def main() -> int:
    """Build the hosts, take the steps, and take everything down; exit code."""
    every = [*TORCHRUN, *RAY]
    parser = argparse.ArgumentParser(
        description="The README's chapters about several devices and hosts, and what can go wrong there, "
        "over three hosts made of Linux namespaces. Needs root, and iobench[ray]. This machine's own network "
        "is not touched, and its page cache never dropped."
    )
    parser.add_argument("--steps", default=",".join(every), help="a list of: " + ", ".join(every))
    steps = parser.parse_args().steps.split(",")
    if unknown := set(steps) - set(every):
        parser.error(f"no such step: {', '.join(sorted(unknown))}")
    if os.geteuid():
        parser.error("it makes namespaces, for which it needs root: sudo .venv/bin/python scripts/hosts")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # by way of taking the hosts down
    began, promises = time.monotonic(), Promises()
    with tempfile.TemporaryDirectory(prefix="iobench-hosts-") as folder:
        hosts = Hosts(Path(folder))
        try:
            _take(steps, hosts, promises)
        finally:
            hosts.close()
            print(f"\n{promises.table()}\n{time.monotonic() - began:.0f} s in all", flush=True)
    return 0 if promises.all_kept else 1


def _take(steps: list[str], hosts: Hosts, promises: Promises) -> None:
    by_torchrun, by_ray = ([step for step in each if step in steps] for each in (TORCHRUN, RAY))
    if by_torchrun:
        story.prepared(hosts, promises)
    for step in by_torchrun:
        TORCHRUN[step](hosts, promises)
    if by_ray:
        cluster.token()
        cluster.start(hosts)
        story.copied(hosts, promises)
    for step in by_ray:
        RAY[step](hosts, promises)
