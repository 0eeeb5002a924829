"""Command line of `scripts/hosts`: the steps, one after another, and their results."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from _hosts import cluster, faults, scenarios
from _hosts.expectations import Expectations
from _hosts.host import Hosts

Step = Callable[[Hosts, Expectations], None]
TORCHRUN: Mapping[str, Step] = {
    "torchrun": scenarios.by_torchrun,
    "kill": faults.kill,
    "stop": faults.stop,
    "freeze": faults.freeze,
    "death": faults.death,
    "cable": faults.cable,
    "not-root": faults.not_root,
}
RAY: Mapping[str, Step] = {
    "ray": scenarios.by_ray,
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
    """Create the hosts, run the steps and remove the hosts; return the exit code."""
    every = [*TORCHRUN, *RAY]
    parser = argparse.ArgumentParser(
        description="Run iobench by torchrun and by Ray over three simulated hosts made of Linux namespaces, "
        "with and without faults. A step takes one to three minutes: a run has to end within a minute of a "
        "fault. Needs root and iobench[ray]. Does not change the network of this machine and does not drop "
        "its page cache. Exit code 1 if a step fails."
    )
    parser.add_argument("--steps", default=",".join(every), help="comma-separated, of: " + ", ".join(every))
    steps = parser.parse_args().steps.split(",")
    if unknown := set(steps) - set(every):
        parser.error(f"unknown step: {', '.join(sorted(unknown))}")
    if os.geteuid():
        parser.error("creating namespaces needs root: sudo .venv/bin/python scripts/hosts")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # so that the hosts are removed
    began, expectations = time.monotonic(), Expectations()
    with tempfile.TemporaryDirectory(prefix="iobench-hosts-") as folder:
        hosts = Hosts(Path(folder))
        try:
            _run(steps, hosts, expectations)
        finally:
            hosts.close()
            print(f"\n{expectations.table()}\ntotal {time.monotonic() - began:.0f} s", flush=True)
    return 0 if expectations.all_met else 1


def _run(steps: list[str], hosts: Hosts, expectations: Expectations) -> None:
    by_torchrun, by_ray = ([step for step in group if step in steps] for group in (TORCHRUN, RAY))
    if by_torchrun:
        scenarios.prepared(hosts, expectations)
    for step in by_torchrun:
        TORCHRUN[step](hosts, expectations)
    if by_ray:
        cluster.token()
        cluster.start(hosts)
        scenarios.copied(hosts, expectations)
    for step in by_ray:
        RAY[step](hosts, expectations)
