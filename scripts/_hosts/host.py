"""A simulated host: a set of Linux namespaces with a cable to a switch, and what can happen to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent.parent
NAMES = ("alpha", "beta", "gamma")
NETWORK = "10.77.0"
SWITCH = f"iob{os.getpid()}"
USER = 65534  # nobody
# nobody may read all files here, because Python may lie where only root can look
_AS_USER = (f"--reuid={USER}", f"--regid={USER}", "--clear-groups")
_READING = ("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search")
RANK = "^[^ ]*python[^ ]* -u -m iobench"  # as torchrun starts one


class Host:
    """A simulated host: the process 1 of its namespaces, its folder and its address."""

    def __init__(self, number: int, root: Path) -> None:
        self.number, self.name = number, NAMES[number]
        self.address, self.data = f"{NETWORK}.{number + 1}", root / NAMES[number]
        self.root, self.starts = root, 0
        self.data.mkdir(exist_ok=True)
        self.start()

    def start(self) -> None:
        """Make the namespaces, put up the cable, and mount what is the host's own.

        What would drop the page cache, which is the machine's, is a file of its own.
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
        """The switch's end of its cable."""
        return f"p{self.number}x{self.starts}"  # another one each time: the last one takes a while to go

    def enter(self, *command: str) -> list[str]:
        """The command as one on this host."""
        return ["nsenter", "-t", str(self.one), "-n", "-m", "-p", "-u", "-i", *command]

    def call(self, *command: str, user: bool = False) -> subprocess.Popen[str]:
        """A command on this host, begun, as root or as somebody else; its output is one stream."""
        whom = ["setpriv", *_AS_USER, *_READING] if user else []
        begun = subprocess.Popen(
            self.enter(*whom, *command),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd="/",
            env=environment(),
        )
        self._begun.append(begun)
        return begun

    def running(self) -> list[str]:
        """The command lines of iobench on this host."""
        if self.init.poll() is not None:
            return []
        done = subprocess.run(self.enter("ps", "-eo", "args"), capture_output=True, text=True)
        return [line for line in done.stdout.splitlines() if "-m iobench" in line]

    def ranks(self) -> list[int]:
        """The processes of its ranks, as this machine numbers them, in order."""
        inside, found = Path(f"/proc/{self.one}/ns/pid").readlink(), dict[int, int]()
        for name in subprocess.run(["pgrep", "-f", RANK], capture_output=True, text=True).stdout.split():
            process = Path("/proc") / name
            if (process / "ns/pid").readlink() == inside:
                variables = (process / "environ").read_bytes().split(b"\0")
                rank = next(one for one in variables if one.startswith(b"RANK="))
                found[int(rank.removeprefix(b"RANK="))] = int(name)
        return [found[rank] for rank in sorted(found)]

    def freeze(self) -> None:
        """Stop its process 1 and all others, as a host that hangs."""
        os.kill(self.one, signal.SIGSTOP)
        do(*self.enter("sh", "-c", "kill -STOP -1"))

    def thaw(self) -> None:
        """Let them go on, and those outside as well that stop with what they have started there."""
        do(*self.enter("sh", "-c", "kill -CONT -1"))
        os.kill(self.one, signal.SIGCONT)
        for outside in (self.init, *self._begun):
            outside.send_signal(signal.SIGCONT)  # nothing where it has ended

    def cut(self) -> None:
        """Cut its cable."""
        do("ip", "-n", SWITCH, "link", "set", self.port, "down")

    def die(self) -> None:
        """Kill its process 1, and with that all of it."""
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

    def again(self) -> None:
        """All hosts anew, with the data that they had."""
        self.end()
        for host in self.all:
            host.start()

    def left(self, seconds: float) -> list[str]:
        """What of iobench still runs anywhere, given so long to end."""
        until = time.monotonic() + seconds
        while found := [f"{host.name}: {line}" for host in self.all for line in host.running()]:
            if time.monotonic() > until:
                return found
            time.sleep(0.3)
        return []

    def end(self) -> None:
        """End every host."""
        for host in self.all:
            if host.init.poll() is None:
                host.die()

    def close(self) -> None:
        """End every host, and take the switch down."""
        self.end()
        subprocess.run(["ip", "netns", "del", SWITCH], check=False)


def environment() -> dict[str, str]:
    """That of every command on a host."""
    own = {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0", "COLUMNS": "140"}
    return {**os.environ, **own, "PYTHONPATH": os.environ.get("PYTHONPATH", str(PROJECT))}


def iobench(*words: str) -> list[str]:
    """The command line of iobench."""
    return [sys.executable, "-m", "iobench", *words]


def do(*command: str) -> None:
    """Run a command that must not fail."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)[:200]}: {done.stderr.strip() or done.stdout.strip()}")


def _child_of(parent: int) -> int:
    """The process that unshare has started, which is number 1 of its namespace."""
    path = Path(f"/proc/{parent}/task/{parent}/children")
    until = time.monotonic() + 10
    while not (found := path.read_text().split()):
        if time.monotonic() > until:
            raise SystemExit("namespaces cannot be made here")
        time.sleep(0.02)
    time.sleep(0.1)  # until it has mounted its /proc
    return int(found[0])
