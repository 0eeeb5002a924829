"""A network link of limited bandwidth on one machine: a pair of interfaces; needs root and iproute2."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

QUEUE_MS = 50  # longer queues are dropped, as a switch does


@dataclass(frozen=True)
class Link:
    """Address of a server, and what to write before the command that starts it."""

    address: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()


@contextmanager
def narrow_link(megabits: int) -> Iterator[Link]:
    """Yield a link over which a server sends at most so many Mbit/s; raises OSError if it cannot be made."""
    number = os.getpid()
    space, near, far = f"iobench-{number}", f"ionear{number}", f"iofar{number}"
    network = f"10.213.{number >> 8 & 255}"
    host, address = (f"{network}.{(number & 63) * 4 + last}" for last in (1, 2))
    inside = ("ip", "netns", "exec", space)
    try:
        _do("ip", "netns", "add", space)
        _do("ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", space)
        _do("ip", "addr", "add", f"{host}/30", "dev", near)
        _do("ip", "link", "set", near, "up")
        _do("ip", "-n", space, "addr", "add", f"{address}/30", "dev", far)
        _do("ip", "-n", space, "link", "set", far, "up")
        bucket = ("rate", f"{megabits}mbit", "burst", "1mb", "latency", f"{QUEUE_MS}ms")
        _do(*inside, "tc", "qdisc", "add", "dev", far, "root", "tbf", *bucket)
        yield Link(address, inside)
    finally:
        subprocess.run(["ip", "netns", "del", space], capture_output=True)


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
