"""Launcher of ranks on the hosts of a Ray cluster: an actor on each host runs torchrun."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import psutil

from iobench.base.errors import RankLost
from iobench.ranks.launch import Launch, torchrun
from iobench.ranks.ray_hosts import HostActor, RemoteHost, hosts_of

POLL_S = 0.3
ENDING_S = 60.0  # for the ranks to report which one is gone, and to end
REPORTED_S = 5.0  # to end after they have reported it: torchrun waits for the one that is gone


class RankHost(HostActor):
    """Actor that runs torchrun on its host; when the actor ends, so do its ranks."""

    def __init__(self) -> None:
        self._lines = list[str]()
        self._code: int | None = None

    def port(self) -> int:
        """Return a port that is free now."""
        with socket.socket() as one:
            one.bind(("", 0))
            return int(one.getsockname()[1])

    def start(self, count: int, where: Sequence[str], arguments: Sequence[str], address: str) -> None:
        """Start `count` ranks, which reach those of other hosts by the interface of `address`."""
        interface = interface_of(address)
        environment = {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "TORCH_CPP_LOG_LEVEL": "ERROR",  # it warns of addresses without a name
            **({"GLOO_SOCKET_IFNAME": interface} if interface else {}),
        }
        if os.environ.get("CUDA_VISIBLE_DEVICES") == "":  # Ray hides devices that were not reserved
            del os.environ["CUDA_VISIBLE_DEVICES"]

        def run() -> None:
            self._code = torchrun(count, arguments, self._lines.append, where, environment)

        threading.Thread(target=run, name="iobench-torchrun", daemon=True).start()

    def poll(self) -> tuple[list[str], int | None]:
        """Return the lines of its ranks since the last call, and the exit code once they have ended."""
        code = self._code
        lines, self._lines[:] = list(self._lines), []
        return lines, code


class RemoteActor(Protocol):
    """Host with an actor that can be called."""

    def ask(self, method: str, *arguments: Any, limit_s: float = ...) -> Any:
        """Call a method of the actor and return its result; raises RankLost without an answer."""


@contextmanager
def launcher(address: str) -> Iterator[tuple[int, Launch]]:
    """Yield the number of a cluster's hosts, and a launcher of ranks on all of them together."""
    with hosts_of(address, RankHost) as hosts:

        def launch(count: int, arguments: Sequence[str], say: Callable[[str], None]) -> int:
            start_ranks(hosts, count // len(hosts), arguments)
            return follow(hosts, say)

        yield len(hosts), launch


def start_ranks(hosts: Sequence[RemoteHost], each: int, arguments: Sequence[str]) -> None:
    """Start `each` ranks on each host; rank 0 is on the first."""
    master = hosts[0].address, str(hosts[0].ask("port"))
    for number, host in enumerate(hosts):
        where = [f"--nnodes={len(hosts)}", f"--node-rank={number}"]
        where += [f"--master-addr={master[0]}", f"--master-port={master[1]}"]
        host.ask("start", each, where, list(arguments), host.address)


def follow(hosts: Sequence[RemoteActor], say: Callable[[str], None]) -> int:
    """Pass on the lines of the first host and the errors of all, until all ended; return the exit code.

    If a host is lost, the ranks of the others have `ENDING_S` to report it, and then `REPORTED_S` to end.
    """
    running, codes, complaints = list(hosts), list[int](), list[str]()
    lost: list[RankLost] = []
    until = float("inf")
    while running and time.monotonic() < until:
        for host in list(running):
            try:
                lines, code = host.ask("poll", limit_s=ENDING_S / 2)
            except RankLost as error:
                running.remove(host)
                lost.append(error)
                until = min(until, time.monotonic() + ENDING_S)
                continue
            for line in lines:
                complaint = line.startswith("iobench: ")
                if line not in complaints and (complaint or host is hosts[0]):
                    say(line)
                complaints += [line] * complaint
            if lost and complaints:
                until = min(until, time.monotonic() + REPORTED_S)
            if code is not None:
                running.remove(host)
                codes.append(code)
        time.sleep(POLL_S)
    if lost and not complaints:
        say(f"iobench: error[{lost[0].kind}]: {lost[0]}")
    return 1 if lost or running or any(codes) else 0


def interface_of(address: str) -> str | None:
    """Return the network interface that has an address; None if none has."""
    for name, addresses in psutil.net_if_addrs().items():
        if address in (one.address for one in addresses):
            return name
    return None
