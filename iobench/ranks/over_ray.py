"""A run over the hosts of a Ray cluster: Ray reaches them, and torchrun starts the ranks on each."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any, Protocol

import psutil

from iobench.base.errors import (
    RankLost,
)
from iobench.ranks.launch import Launch, torchrun
from iobench.ranks.ray_hosts import RemoteHost, hosts_of

POLL_S = 0.3
ENDING_S = 60.0  # for the ranks to say who has gone, and to end
TOLD_S = 5.0  # to end, once they have said it: torchrun waits for the one that is gone


class RankHost:
    """What an actor does: run torchrun on its host. When the actor ends, so do its ranks."""

    def __init__(self) -> None:
        self._lines = list[str]()
        self._code: int | None = None

    def node(self) -> str:
        """Ray's number of its host."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def port(self) -> int:
        """A port that is free now."""
        with socket.socket() as one:
            one.bind(("", 0))
            return int(one.getsockname()[1])

    def start(self, count: int, where: Sequence[str], arguments: Sequence[str], address: str) -> None:
        """Start so many ranks, which meet those of other hosts by the interface of that address."""
        interface = interface_of(address)
        environment = {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "TORCH_CPP_LOG_LEVEL": "ERROR",  # it warns of addresses without a name
            **({"GLOO_SOCKET_IFNAME": interface} if interface else {}),
        }
        if os.environ.get("CUDA_VISIBLE_DEVICES") == "":  # by which Ray hides devices that nobody reserved
            del os.environ["CUDA_VISIBLE_DEVICES"]

        def run() -> None:
            self._code = torchrun(count, arguments, self._lines.append, where, environment)

        threading.Thread(target=run, name="iobench-torchrun", daemon=True).start()

    def heard(self) -> tuple[list[str], int | None]:
        """What its ranks have said since it was last asked, and the exit code once they have ended."""
        code = self._code
        said, self._lines[:] = list(self._lines), []
        return said, code


class Asked(Protocol):
    """A host that is asked what its ranks say."""

    def ask(self, what: str, *arguments: Any, limit_s: float = ...) -> Any:
        """What it answers; RankLost where it does not."""


@contextmanager
def launcher(address: str) -> Iterator[tuple[int, Launch]]:
    """How many hosts a cluster has, and what runs iobench over so many ranks of all of them together."""
    with hosts_of(address, RankHost) as hosts:

        def launch(count: int, arguments: Sequence[str], say: Callable[[str], None]) -> int:
            with redirect_stdout(sys.stderr):  # where Ray tells of hosts that have gone
                started(hosts, count // len(hosts), arguments)
                return followed(hosts, say)

        yield len(hosts), launch


def started(hosts: Sequence[RemoteHost], each: int, arguments: Sequence[str]) -> None:
    """Start so many ranks on each host; rank 0 is on the first."""
    meet = hosts[0].address, str(hosts[0].ask("port"))
    for number, host in enumerate(hosts):
        where = [f"--nnodes={len(hosts)}", f"--node-rank={number}"]
        where += [f"--master-addr={meet[0]}", f"--master-port={meet[1]}"]
        host.ask("start", each, where, list(arguments), host.address)


def followed(hosts: Sequence[Asked], say: Callable[[str], None]) -> int:
    """Pass on what the first host's ranks say, and what others complain of, until all ended; exit code.

    Where a host is lost its ranks are, and the others have `ENDING_S` to say so, and then `TOLD_S` to end.
    """
    running, codes, complaints = list(hosts), list[int](), list[str]()
    lost: list[RankLost] = []
    until = float("inf")
    while running and time.monotonic() < until:
        for host in list(running):
            try:
                lines, code = host.ask("heard", limit_s=ENDING_S / 2)
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
                until = min(until, time.monotonic() + TOLD_S)
            if code is not None:
                running.remove(host)
                codes.append(code)
        time.sleep(POLL_S)
    if lost and not complaints:
        say(f"iobench: {lost[0]}")
    return 1 if lost or running or any(codes) else 0


def interface_of(address: str) -> str | None:
    """The network interface that has an address; None where none has."""
    for name, addresses in psutil.net_if_addrs().items():
        if address in (one.address for one in addresses):
            return name
    return None
