"""Runs over several hosts as in the documentation: the table must name the slowest rank."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from eval.harness import Row
from eval.hosts import cluster, throttle
from eval.hosts.host import Hosts, iobench
from eval.hosts.outcome import CommandOutput, checked, follow

TABLE = "--format npy --loader dataloader --loader native --rounds 7".split()
MIN_WAIT = 50  # percent straggler wait that a slow rank causes, at least


def prepare(hosts: Hosts) -> None:
    """Prepare the same data on every host."""
    words = "prepare --size 4e6 --name mine --format npy --data-dir /data".split()
    for host in hosts.all:
        output = follow(f"{host.name}$ iobench {' '.join(words)}", host.call(*iobench(*words)))
        assert output.code == 0, f"prepare on {host.name}: {output.lines[-1:]}"


def torchrun(
    hosts: Hosts, words: list[str], ranks: int = 2, user: bool = False
) -> list[subprocess.Popen[str]]:
    """Start torchrun on alpha and beta, on beta optionally without root."""
    processes = []
    for number in (0, 1):
        where = ["--nnodes", "2", "--node-rank", str(number), "--nproc-per-node", str(ranks)]
        meet = ["--master-addr", "alpha", "--master-port", "29500", "-m", "iobench", "run"]
        command = [sys.executable, "-m", "torch.distributed.run", *where, *meet, "--data-dir", "/data"]
        processes.append(hosts[number].call(*command, "--name", "mine", *words, user=user and number == 1))
    return processes


def by_torchrun(hosts: Hosts) -> Iterator[Row]:
    """Run on two hosts with two ranks each, first with one slow rank, then without."""
    for title, slow in (("torchrun, rank 3 is slow", hosts[1]), ("torchrun, none is slow", None)):
        with throttle.slow() as slow_down:
            alpha, beta = torchrun(hosts, TABLE)
            output = follow(
                title, alpha, slow and (lambda slow=slow: slow_down(slow.ranks()[-1])), "verifying "
            )
            beta.communicate(timeout=60)
        yield slowest_row(title, hosts, output, "rank 3 on beta" if slow else None)


def by_ray(hosts: Hosts) -> Iterator[Row]:
    """Run on three hosts, first with one slow host, then without."""
    for title, slow in (("Ray, gamma is slow", hosts[2]), ("Ray, none is slow", None)):
        words = cluster.over_ray("run", "--name", "ours", *TABLE)
        with throttle.slow() as slow_down:
            inject = slow and (lambda slow=slow: slow_down(slow.ranks()[0]))
            output = follow(title, hosts[0].call(*words), inject, "verifying ")
        yield slowest_row(title, hosts, output, "rank 2 on gamma" if slow else None)


def slowest_row(title: str, hosts: Hosts, output: CommandOutput, slow: str | None) -> Row:
    """Check that each case names the slow rank and its straggler wait, or no rank if none is slow."""
    slowest = output.slowest()
    violations = ["failed"] * (output.code != 0)
    violations += [] if len(slowest) == 2 else [f"{len(slowest)} of 2 cases in the table"]
    violations += [f"{case}: {who}" for case, _, who in slowest if who != (slow or "no clear straggler")]
    violations += [f"{case}: straggler wait {part}%" for case, part, _ in slowest if slow and part < MIN_WAIT]
    violations += hosts.left(15)
    evidence = "; ".join(f"{case}: {who}, straggler wait {part}%" for case, part, who in slowest)
    return checked(title, violations, evidence)
