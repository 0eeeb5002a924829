"""Simulated hosts: sets of Linux namespaces with network links to a switch, and faults of hosts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[3]
NAMES = ("alpha", "beta", "gamma")
NETWORK = "10.77.0"
SWITCH = f"iob{os.getpid()}"
USER = 65534  # an unprivileged user
# may read all files, because Python may be installed where only root can read
_AS_USER = (f"--reuid={USER}", f"--regid={USER}", "--clear-groups")
_READING = ("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search")
RANK = "^[^ ]*python[^ ]* -u -m iobench"  # as torchrun starts one


class Host:
    """A simulated host: process 1 of its namespaces, its data folder and its address."""

    def __init__(self, number: int, root: Path) -> None:
        self.number, self.name = number, NAMES[number]
        self.address, self.data = f"{NETWORK}.{number + 1}", root / NAMES[number]
        self.root, self.starts = root, 0
        self.data.mkdir(exist_ok=True)
        self.start()

    def start(self) -> None:
        """Create the namespaces, connect the network, and mount the host's own folders.

        drop_caches is an ordinary file here, because the page cache belongs to the whole machine.
        """
        self.starts += 1
        self._begun = list[subprocess.Popen[str]]()
        kinds = ["--net", "--mount", "--pid", "--uts", "--ipc", "--mount-proc", "--fork", "--kill-child"]
        self.init = subprocess.Popen(["unshare", *kinds, "sleep", "infinity"], stderr=subprocess.DEVNULL)
        self.one = _child_of(self.init.pid)
        own, far = f"v{self.port}", self.port
        do("ip", "link", "add", own, "type", "veth", "peer", "name", far, "netns", SWITCH)
        do("ip", "link", "set", own, "netns", str(self.one), "name", "eth0")
        do("ip", "-n", SWITCH, "link", "set", far, "master", "br0", "up")
        script = f"""
            hostname {self.name}
            ip link set lo up; ip addr add {self.address}/24 dev eth0; ip link set eth0 up
            mkdir -p {self.root}/place /data
            mount -t tmpfs tmpfs /dev/shm; mkdir -p /tmp/ray; mount -t tmpfs tmpfs /tmp/ray
            mount --bind {self.data} /data; mount --bind {self.root}/hosts /etc/hosts
            mount --bind {self.root}/drop_caches /proc/sys/vm/drop_caches
        """
        do(*self.enter("sh", "-ec", script))

    @property
    def port(self) -> str:
        """The interface at the switch."""
        return (
            f"p{self.number}x{self.starts}"  # a new name for each start: the last interface is removed late
        )

    def enter(self, *command: str) -> list[str]:
        """Return the command line that runs a command on this host."""
        return ["nsenter", "-t", str(self.one), "-n", "-m", "-p", "-u", "-i", *command]

    def call(self, *command: str, user: bool = False) -> subprocess.Popen[str]:
        """Start a command on this host, as root or not; stdout and stderr are one stream."""
        credentials = ["setpriv", *_AS_USER, *_READING] if user else []
        process = subprocess.Popen(
            self.enter(*credentials, *command),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd="/",
            env=environment(),
        )
        self._begun.append(process)
        return process

    def running(self) -> list[str]:
        """Return the command lines of iobench that run on this host."""
        if self.init.poll() is not None:
            return []
        done = subprocess.run(self.enter("ps", "-eo", "args"), capture_output=True, text=True)
        return [line for line in done.stdout.splitlines() if "-m iobench" in line]

    def ranks(self) -> list[int]:
        """Return the process ids of its ranks, as seen by this machine, in order."""
        namespace, processes = Path(f"/proc/{self.one}/ns/pid").readlink(), dict[int, int]()
        for name in subprocess.run(["pgrep", "-f", RANK], capture_output=True, text=True).stdout.split():
            process = Path("/proc") / name
            if (process / "ns/pid").readlink() == namespace:
                variables = (process / "environ").read_bytes().split(b"\0")
                rank = next(one for one in variables if one.startswith(b"RANK="))
                processes[int(rank.removeprefix(b"RANK="))] = int(name)
        return [processes[rank] for rank in sorted(processes)]

    def freeze(self) -> None:
        """Stop process 1 and all others, as on a host that hangs."""
        os.kill(self.one, signal.SIGSTOP)
        do(*self.enter("sh", "-c", "kill -STOP -1"))

    def thaw(self) -> None:
        """Continue all processes, and those outside that stopped together with their children."""
        do(*self.enter("sh", "-c", "kill -CONT -1"))
        os.kill(self.one, signal.SIGCONT)
        for outside in (self.init, *self._begun):
            outside.send_signal(signal.SIGCONT)  # no effect on an ended process

    def cut(self) -> None:
        """Disconnect the host from the network."""
        do("ip", "-n", SWITCH, "link", "set", self.port, "down")

    def die(self) -> None:
        """Kill process 1, and with it the host."""
        os.kill(self.one, signal.SIGKILL)
        self.init.wait()


class Hosts:
    """The simulated hosts and the switch between them."""

    def __init__(self, root: Path) -> None:
        (root / "hosts").write_text("".join(f"{NETWORK}.{n + 1} {name}\n" for n, name in enumerate(NAMES)))
        (root / "drop_caches").touch(mode=0o644)
        root.chmod(0o755)
        do("ip", "netns", "add", SWITCH)
        do("ip", "-n", SWITCH, "link", "add", "br0", "type", "bridge")
        do("ip", "-n", SWITCH, "link", "set", "br0", "up")
        self.all = [Host(number, root) for number in range(len(NAMES))]

    def __getitem__(self, number: int) -> Host:
        return self.all[number]

    def restart(self) -> None:
        """Restart all hosts, which keep their data."""
        self.end()
        for host in self.all:
            host.start()

    def left(self, seconds: float) -> list[str]:
        """Return the processes of iobench that still run after so many seconds."""
        until = time.monotonic() + seconds
        while running := [f"{host.name}: {line}" for host in self.all for line in host.running()]:
            if time.monotonic() > until:
                return running
            time.sleep(0.3)
        return []

    def end(self) -> None:
        """End every host."""
        for host in self.all:
            if host.init.poll() is None:
                host.die()

    def close(self) -> None:
        """End every host and remove the switch."""
        self.end()
        subprocess.run(["ip", "netns", "del", SWITCH], check=False)


def environment() -> dict[str, str]:
    """Return the environment of commands on a host."""
    own = {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0", "COLUMNS": "140"}
    return {**os.environ, **own, "PYTHONPATH": os.environ.get("PYTHONPATH", str(PROJECT))}


def iobench(*words: str) -> list[str]:
    """Return a command line of iobench."""
    return [sys.executable, "-m", "iobench", *words]


def do(*command: str) -> None:
    """Run a command; exit if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)[:200]}: {done.stderr.strip() or done.stdout.strip()}")


def _child_of(parent: int) -> int:
    """Return the process that unshare started, number 1 of its namespace."""
    path = Path(f"/proc/{parent}/task/{parent}/children")
    until = time.monotonic() + 10
    while not (children := path.read_text().split()):
        if time.monotonic() > until:
            raise SystemExit("cannot create namespaces on this machine")
        time.sleep(0.02)
    time.sleep(0.1)  # until it has mounted its /proc
    return int(children[0])
