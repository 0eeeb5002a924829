"""Ray on the simulated hosts, started as the README says."""

from __future__ import annotations

import subprocess
import sys
import threading

from _hosts.host import NAMES, NETWORK, Host, Hosts, environment, iobench

PORT = 6379
ADDRESS = f"{NETWORK}.1:{PORT}"
START_S = 90.0  # for a host to be in Ray's list, and to work
RAY = [sys.executable, "-m", "ray.scripts.scripts"]
_ANSWERS = """
import socket, sys, time
address, until, wanted = sys.argv[1], time.monotonic() + float(sys.argv[2]), set(sys.argv[3:])
host, _, port = address.partition(":")
while time.monotonic() < until:
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
        break
    except OSError:
        time.sleep(0.3)
if wanted:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On
    ray.init(address, log_to_driver=False, logging_level=40)
    name = ray.remote(lambda: socket.gethostname())
while wanted and time.monotonic() < until:
    nodes = {node["NodeManagerHostname"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}
    for one in wanted & set(nodes):
        there = On(nodes[one], soft=False)
        try:
            wanted.discard(ray.get(name.options(scheduling_strategy=there, num_cpus=1).remote(), timeout=20))
        except ray.exceptions.RayError:
            pass
    time.sleep(0.3)
print("missing", *sorted(wanted))
"""


def token() -> None:
    """Make the token that all hosts share, unless there is one."""
    subprocess.run([*RAY, "get-auth-token", "--generate"], env=environment(), capture_output=True)


def start(hosts: Hosts) -> None:
    """Ray on every host, until a function has run on each; the head first."""
    head, *others = hosts.all
    _join(head)
    _await(hosts)
    for host in others:
        _join(host)
    _await(hosts, *NAMES)


def again(hosts: Hosts) -> None:
    """All hosts anew, with the data that they had, and Ray on them."""
    hosts.again()
    start(hosts)


def over_ray(command: str, *words: str) -> list[str]:
    """A command of iobench over all hosts."""
    return iobench(command, "--data-dir", "/data", "--ray", ADDRESS, *words)


def _join(host: Host) -> None:
    where = ["--head", f"--port={PORT}"] if host.number == 0 else [f"--address={ADDRESS}"]
    quiet = ["--disable-usage-stats", "--object-store-memory=100000000", "--num-cpus=2", "--block"]
    dashboard = ["--include-dashboard=false"] if host.number == 0 else []
    ray = host.call(*RAY, "start", *where, f"--node-ip-address={host.address}", *dashboard, *quiet)
    threading.Thread(target=ray.stdout.read, daemon=True).start()  # type: ignore[union-attr]


def _await(hosts: Hosts, *names: str) -> None:
    """Wait until Ray's address answers, and a function has run on each of these hosts."""
    process = hosts[0].call(sys.executable, "-c", _ANSWERS, ADDRESS, str(START_S), *names)
    said, _ = process.communicate(timeout=2 * START_S)
    missing = [line for line in said.splitlines() if line.startswith("missing")]
    if missing != ["missing"]:
        raise SystemExit(f"Ray has not come up within {START_S:g} s: {(missing or [said])[-1][-300:]}")
