"""A Ray cluster on the simulated hosts, started as in the documentation."""

from __future__ import annotations

import subprocess
import sys
import threading

from eval.hosts.host import NAMES, NETWORK, Host, Hosts, environment, iobench
from eval.hosts.outcome import follow

PORT = 6379
ADDRESS = f"{NETWORK}.1:{PORT}"
START_S = 90.0  # for a host to join and to run a function
RAY = [sys.executable, "-m", "ray.scripts.scripts"]
_ANSWERS = """
import socket, sys, time
address, until, names = sys.argv[1], time.monotonic() + float(sys.argv[2]), set(sys.argv[3:])
host, _, port = address.partition(":")
while time.monotonic() < until:
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
        break
    except OSError:
        time.sleep(0.3)
if names:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On
    ray.init(address, log_to_driver=False, logging_level=40)
    hostname = ray.remote(lambda: socket.gethostname())
while names and time.monotonic() < until:
    nodes = {node["NodeManagerHostname"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}
    for one in names & set(nodes):
        on_node = On(nodes[one], soft=False)
        try:
            ask = hostname.options(scheduling_strategy=on_node, num_cpus=1)
            names.discard(ray.get(ask.remote(), timeout=20))
        except ray.exceptions.RayError:
            pass
    time.sleep(0.3)
print("missing", *sorted(names))
"""


def prepare(hosts: Hosts) -> None:
    """Generate the token that all hosts share, start Ray, and copy a dataset to all hosts."""
    subprocess.run([*RAY, "get-auth-token", "--generate"], env=environment(), capture_output=True)
    start(hosts)
    words = "--size 4e6 --seed 1 --name ours --format npy".split()
    output = follow("alpha$ iobench prepare --ray", hosts[0].call(*over_ray("prepare", *words)))
    copies = sum("verified by checksum" in line for line in output.lines)
    assert copies == len(NAMES) - 1, f"prepare --ray: {copies} copies verified"


def start(hosts: Hosts) -> None:
    """Start Ray on every host, the head first, and wait until a function has run on each."""
    head, *workers = hosts.all
    _join(head)
    _await(hosts)
    for host in workers:
        _join(host)
    _await(hosts, *NAMES)


def restart(hosts: Hosts) -> None:
    """Restart all hosts, which keep their data, and Ray on them."""
    hosts.restart()
    start(hosts)


def over_ray(command: str, *words: str) -> list[str]:
    """Return a command line of iobench that uses all hosts."""
    return iobench(command, "--data-dir", "/data", "--ray", ADDRESS, *words)


def _join(host: Host) -> None:
    where = ["--head", f"--port={PORT}"] if host.number == 0 else [f"--address={ADDRESS}"]
    quiet = ["--disable-usage-stats", "--object-store-memory=100000000", "--num-cpus=2", "--block"]
    dashboard = ["--include-dashboard=false"] if host.number == 0 else []
    ray = host.call(*RAY, "start", *where, f"--node-ip-address={host.address}", *dashboard, *quiet)
    threading.Thread(target=ray.stdout.read, daemon=True).start()  # type: ignore[union-attr]


def _await(hosts: Hosts, *names: str) -> None:
    """Wait until Ray's address accepts connections and a function has run on each named host."""
    process = hosts[0].call(sys.executable, "-c", _ANSWERS, ADDRESS, str(START_S), *names)
    text, _ = process.communicate(timeout=2 * START_S)
    missing = [line for line in text.splitlines() if line.startswith("missing")]
    if missing != ["missing"]:
        raise SystemExit(f"Ray did not start within {START_S:g} s: {(missing or [text])[-1][-300:]}")
