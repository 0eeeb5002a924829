"""What can go wrong over several hosts: each is one line that names it, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from _hosts import cluster
from _hosts.heard import Heard, Promises, listen
from _hosts.host import USER, Hosts, do, iobench
from _hosts.story import torchrun

LIMIT_S = 60.0  # within which a run has to end, and everything of it
LONG = "--format npy --loader native --batch-size 64 --step-ms 2 --rounds 300 --no-limits".split()
COLD = "--format npy --loader native --rounds 1 --no-limits --cache cold".split()
Blow = Callable[[], None]


def kill(hosts: Hosts, promises: Promises) -> None:
    """A rank on beta is killed."""
    _by_torchrun(hosts, promises, "kill -9 of a rank", lambda: _signal_rank(hosts, signal.SIGKILL))


def stop(hosts: Hosts, promises: Promises) -> None:
    """A rank on beta is stopped: the only one there."""
    _by_torchrun(hosts, promises, "SIGSTOP of a rank", lambda: _signal_rank(hosts, signal.SIGSTOP))


def freeze(hosts: Hosts, promises: Promises) -> None:
    """All of beta is stopped, and goes on when the run is over."""
    _by_torchrun(hosts, promises, "SIGSTOP of a host's process 1 and all others", hosts[1].freeze, thaw=True)
    hosts.again()


def death(hosts: Hosts, promises: Promises) -> None:
    """Beta dies."""
    _by_torchrun(hosts, promises, "kill -9 of a host's process 1", hosts[1].die)
    hosts.again()


def cable(hosts: Hosts, promises: Promises) -> None:
    """The cable of beta is cut."""
    _by_torchrun(hosts, promises, "a cut cable", hosts[1].cut)
    hosts.again()


def not_root(hosts: Hosts, promises: Promises) -> None:
    """Beta's rank is not root: over files of root's, by sudo, and over its own."""
    for title, words, names in (
        ("not root on beta, files of root's", COLD, r"\[residency-unknown\]: .*rank 1 on beta: "),
        ("not root on beta, --sudo", [*COLD, "--sudo"], "rank 1 on beta: --sudo"),
    ):
        alpha, beta = torchrun(hosts, words, ranks=1, user=True)
        _judge(hosts, promises, title, listen(title, alpha), names)
        beta.communicate(timeout=60)
    _own_files(hosts, promises)


def _own_files(hosts: Hosts, promises: Promises) -> None:
    title, wanted = "not root on beta, files of its own", "drop_caches on alpha, posix_fadvise on beta"
    do("chown", "-R", str(USER), str(hosts[1].data / "mine"))
    alpha, beta = torchrun(hosts, COLD, ranks=1, user=True)
    heard = listen(title, alpha)
    beta.communicate(timeout=60)
    do("chown", "-R", "0", str(hosts[1].data / "mine"))
    told = [line for line in heard.lines if line.startswith("warning[") and wanted in line]
    broken = [f"exit {heard.code}"] * (heard.code != 0) + ["no line says so"] * (len(told) != 1)
    promises.step(title, broken, told[0] if told else "")


def ray_kill(hosts: Hosts, promises: Promises) -> None:
    """A rank on beta is killed."""
    _by_ray(hosts, promises, "kill -9 of a rank, Ray", lambda: _signal_rank(hosts, signal.SIGKILL))


def ray_stop(hosts: Hosts, promises: Promises) -> None:
    """A rank on beta is stopped."""
    _by_ray(hosts, promises, "SIGSTOP of a rank, Ray", lambda: _signal_rank(hosts, signal.SIGSTOP))


def ray_freeze(hosts: Hosts, promises: Promises) -> None:
    """All of beta is stopped, Ray too, and goes on when the run is over."""
    title = "SIGSTOP of a host's process 1 and all others, Ray"
    _by_ray(hosts, promises, title, hosts[1].freeze, thaw=True)
    cluster.again(hosts)


def ray_death(hosts: Hosts, promises: Promises) -> None:
    """The host beta dies."""
    _by_ray(hosts, promises, "kill -9 of a host's process 1, Ray", hosts[1].die)
    cluster.again(hosts)


def ray_cable(hosts: Hosts, promises: Promises) -> None:
    """The cable of beta is cut."""
    _by_ray(hosts, promises, "a cut cable, Ray", hosts[1].cut)
    cluster.again(hosts)


def ray_gone(hosts: Hosts, promises: Promises) -> None:
    """Ray itself ends on alpha in the middle of a run."""
    strike = lambda: do(*hosts[0].enter("pkill", "-9", "raylet|gcs_server"))  # noqa: E731 - one line, used once
    _by_ray(hosts, promises, "Ray gone", strike, names="alpha")
    cluster.again(hosts)


def version(hosts: Hosts, promises: Promises) -> None:
    """Another iobench on beta."""
    package = Path(str(metadata.distribution("iobench").locate_file("")))
    found = next(package.glob("iobench-*.dist-info")) / "METADATA"
    changed = hosts[1].root / "METADATA"
    changed.write_text(found.read_text().replace(f"Version: {metadata.version('iobench')}", "Version: 0.0.9"))
    do(*hosts[1].enter("mount", "--bind", str(changed), str(found)))
    _by_ray(
        hosts,
        promises,
        "another version on beta",
        names=r"beta has another version of iobench: .* found 0\.0\.9",
    )
    do(*hosts[1].enter("umount", str(found)))


def dataset(hosts: Hosts, promises: Promises) -> None:
    """No dataset on beta, then another one."""
    ours, aside = hosts[1].data / "ours", hosts[1].data / "aside"
    ours.rename(aside)
    _by_ray(hosts, promises, "no dataset on beta", names=r"\[no-dataset\]: .*rank 1 on beta: ")
    words = "prepare --size 1e6 --seed 2 --name ours --format npy --data-dir /data".split()
    hosts[1].call(*iobench(*words)).communicate(timeout=120)
    _by_ray(
        hosts, promises, "another dataset on beta", names=r"\[other-content\]: /data/ours: rank 1 on beta: "
    )
    shutil.rmtree(ours)
    aside.rename(ours)


def _signal_rank(hosts: Hosts, number: signal.Signals) -> None:
    os.kill(hosts[1].ranks()[0], number)


def _by_torchrun(hosts: Hosts, promises: Promises, title: str, strike: Blow, thaw: bool = False) -> None:
    alpha, beta = torchrun(hosts, LONG, ranks=1)
    _judge(hosts, promises, title, listen(title, alpha, strike), "rank 1 on beta", thaw, struck=True)
    beta.kill()
    beta.wait()


def _by_ray(
    hosts: Hosts,
    promises: Promises,
    title: str,
    strike: Blow | None = None,
    names: str = "rank 1 on beta",
    thaw: bool = False,
) -> None:
    begun = hosts[0].call(*cluster.over_ray("run", "--name", "ours", *LONG))
    _judge(hosts, promises, title, listen(title, begun, strike), names, thaw, struck=strike is not None)


def _judge(
    hosts: Hosts,
    promises: Promises,
    title: str,
    heard: Heard,
    names: str,
    thaw: bool = False,
    struck: bool = False,
) -> None:
    """Whether a run ended with one line that names it, kept its rounds, and left nothing running, in time."""
    if thaw:
        hosts[1].thaw()
    began = time.monotonic()
    left = hosts.left(LIMIT_S - min(heard.seconds, LIMIT_S - 1))
    whole_s = heard.seconds + time.monotonic() - began
    broken = [f"exit {heard.code}"] * (heard.code != 1)
    broken += [f"{len(heard.complaints)} lines"] * (len(heard.complaints) != 1)
    broken += [f"{names!r} is not named"] * (not any(re.search(names, line) for line in heard.complaints))
    broken += ["took too long"] * (whole_s > LIMIT_S) + [f"left running: {one}" for one in left]
    if struck and _kept(hosts) < max(1, heard.rounds):
        broken.append(f"{_kept(hosts)} of {heard.rounds} rounds kept")
    promises.step(title, broken, f"{whole_s:.0f} s, {' / '.join(heard.complaints)[:150]}")


def _kept(hosts: Hosts) -> int:
    """The rounds in the newest file of records on alpha."""
    files = sorted((hosts[0].data / "results").glob("*.jsonl"), key=lambda path: path.stat().st_mtime)
    return len(files[-1].read_text().splitlines()) if files else 0
