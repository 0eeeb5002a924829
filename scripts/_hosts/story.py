"""The chapter "More than one device" of the README: tables over several hosts, the slowest rank named."""

from __future__ import annotations

import subprocess
import sys

from _hosts import cluster, throttle
from _hosts.heard import Heard, Promises, listen
from _hosts.host import Hosts, iobench

TABLE = "--format npy --loader dataloader --loader native --rounds 7".split()
WAITS = 50  # per cent of the time that the others wait for it, at least


def prepared(hosts: Hosts, promises: Promises) -> None:
    """The same data prepared on every host."""
    words = "prepare --size 4e6 --name mine --format npy --data-dir /data".split()
    for host in hosts.all:
        heard = listen(f"{host.name}$ iobench {' '.join(words)}", host.call(*iobench(*words)))
        promises.step(f"prepare on {host.name}", ["it failed"] * heard.code)


def copied(hosts: Hosts, promises: Promises) -> None:
    """A dataset on every host, from the first one."""
    words = "--size 4e6 --seed 1 --name ours --format npy".split()
    heard = listen("alpha$ iobench prepare --ray", hosts[0].call(*cluster.over_ray("prepare", *words)))
    proved = [line for line in heard.lines if "verified by checksum" in line]
    promises.step("prepare --ray", ["not on all hosts"] * (len(proved) != 2), f"{len(proved)} copies proved")


def torchrun(
    hosts: Hosts, words: list[str], ranks: int = 2, user: bool = False
) -> list[subprocess.Popen[str]]:
    """The README's two lines for two machines, begun: alpha's and beta's, beta's perhaps not by root."""
    begun = []
    for number in (0, 1):
        where = ["--nnodes", "2", "--node-rank", str(number), "--nproc-per-node", str(ranks)]
        meet = ["--master-addr", "alpha", "--master-port", "29500", "-m", "iobench", "run"]
        command = [sys.executable, "-m", "torch.distributed.run", *where, *meet, "--data-dir", "/data"]
        begun.append(hosts[number].call(*command, "--name", "mine", *words, user=user and number == 1))
    return begun


def by_torchrun(hosts: Hosts, promises: Promises) -> None:
    """Two hosts with two ranks each, one of which is slow, and then none."""
    for title, slow in (("torchrun, rank 3 is slow", hosts[1]), ("torchrun, none is slow", None)):
        with throttle.slow() as hurt:
            alpha, beta = torchrun(hosts, TABLE)
            heard = listen(title, alpha, slow and (lambda slow=slow: hurt(slow.ranks()[-1])), "verifying ")
            beta.communicate(timeout=60)
        _named(title, promises, hosts, heard, "rank 3 on beta" if slow else None)


def by_ray(hosts: Hosts, promises: Promises) -> None:
    """Three hosts, one of which is slow, and then none."""
    for title, slow in (("Ray, gamma is slow", hosts[2]), ("Ray, none is slow", None)):
        words = cluster.over_ray("run", "--name", "ours", *TABLE)
        with throttle.slow() as hurt:
            strike = slow and (lambda slow=slow: hurt(slow.ranks()[0]))
            heard = listen(title, hosts[0].call(*words), strike, "verifying ")
        _named(title, promises, hosts, heard, "rank 2 on gamma" if slow else None)


def _named(title: str, promises: Promises, hosts: Hosts, heard: Heard, slow: str | None) -> None:
    """Whether each case's line names the slow rank, and how long others wait; or nobody, where none is."""
    found = heard.slowest()
    broken = ["it failed"] * (heard.code != 0)
    broken += [] if len(found) == 2 else [f"{len(found)} of 2 cases in its table"]
    broken += [f"{case}: {who}" for case, _, who in found if who != (slow or "no clear straggler")]
    broken += [f"{case}: others wait {part}%" for case, part, _ in found if slow and part < WAITS]
    broken += hosts.left(15)
    promises.step(title, broken, "; ".join(f"{case}: {who}, others wait {p}%" for case, p, who in found))
