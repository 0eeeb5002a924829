"""Run iobench by torchrun and by Ray over three hosts of Linux namespaces, with and without faults.

A run has to end within a minute of a fault, with one error line that names the rank and no process left.
Needs root and iobench[ray]. Does not change the network of this machine and does not drop its page cache.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from functools import cache, partial

from eval.harness import Row, Trials
from eval.hosts import cluster, faults, scenarios
from eval.hosts.host import Hosts

OPTIONS: dict[str, tuple[object, str]] = {}
Step = Callable[[Hosts], Iterator[Row]]
TORCHRUN: dict[str, Step] = {
    "torchrun": scenarios.by_torchrun,
    **{f"torchrun-{name}": partial(faults.by_torchrun, fault) for name, fault in faults.FAULTS.items()},
    "not-root": faults.not_root,
}
RAY: dict[str, Step] = {
    "ray": scenarios.by_ray,
    "version": faults.version,
    "dataset": faults.dataset,
    **{f"ray-{name}": partial(faults.by_ray, fault) for name, fault in faults.FAULTS.items()},
    "ray-gone": partial(faults.by_ray, faults.GONE),
}


def trials(options: argparse.Namespace) -> Trials:
    if os.geteuid():
        raise SystemExit("creating namespaces needs root: sudo ./scripts/eval/run hosts")
    hosts = Hosts(options.folder)
    options.ends.callback(hosts.close)
    setups = ((TORCHRUN, cache(scenarios.prepare)), (RAY, cache(cluster.prepare)))
    return {
        name: partial(after, setup, step, hosts) for steps, setup in setups for name, step in steps.items()
    }


def after(setup: Callable[[Hosts], None], step: Step, hosts: Hosts) -> Iterator[Row]:
    """Set the hosts up, once for all steps of a launcher, and run a step."""
    setup(hosts)
    yield from step(hosts)
