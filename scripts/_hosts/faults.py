"""Faults over several hosts: each must be one error line that names the rank, with no process left."""

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
from _hosts.expectations import CommandOutput, Expectations, follow
from _hosts.host import USER, Hosts, do, iobench
from _hosts.scenarios import torchrun

LIMIT_S = 60.0  # in which a run and all its processes have to end
LONG = "--format npy --loader native --batch-size 64 --step-ms 2 --rounds 300 --no-limits".split()
COLD = "--format npy --loader native --rounds 1 --no-limits --cache cold".split()
Fault = Callable[[], None]


def kill(hosts: Hosts, expectations: Expectations) -> None:
    """Kill a rank on beta."""
    _by_torchrun(hosts, expectations, "kill -9 of a rank", lambda: _signal_rank(hosts, signal.SIGKILL))


def stop(hosts: Hosts, expectations: Expectations) -> None:
    """Stop the only rank on beta."""
    _by_torchrun(hosts, expectations, "SIGSTOP of a rank", lambda: _signal_rank(hosts, signal.SIGSTOP))


def freeze(hosts: Hosts, expectations: Expectations) -> None:
    """Stop all of beta, and continue it after the run."""
    _by_torchrun(
        hosts, expectations, "SIGSTOP of a host's process 1 and all others", hosts[1].freeze, thaw=True
    )
    hosts.restart()


def death(hosts: Hosts, expectations: Expectations) -> None:
    """Kill beta."""
    _by_torchrun(hosts, expectations, "kill -9 of a host's process 1", hosts[1].die)
    hosts.restart()


def cable(hosts: Hosts, expectations: Expectations) -> None:
    """Disconnect beta from the network."""
    _by_torchrun(hosts, expectations, "host disconnected", hosts[1].cut)
    hosts.restart()


def not_root(hosts: Hosts, expectations: Expectations) -> None:
    """Run beta's rank without root: over files of root, with --sudo, and over its own files."""
    for title, words, names in (
        ("not root on beta, files of root", COLD, r"\[residency-unknown\]: .*rank 1 on beta: "),
        ("not root on beta, --sudo", [*COLD, "--sudo"], "rank 1 on beta: --sudo"),
    ):
        alpha, beta = torchrun(hosts, words, ranks=1, user=True)
        _check(hosts, expectations, title, follow(title, alpha), names)
        beta.communicate(timeout=60)
    _own_files(hosts, expectations)


def _own_files(hosts: Hosts, expectations: Expectations) -> None:
    title, expected = "not root on beta, own files", "drop_caches on alpha, posix_fadvise on beta"
    do("chown", "-R", str(USER), str(hosts[1].data / "mine"))
    alpha, beta = torchrun(hosts, COLD, ranks=1, user=True)
    output = follow(title, alpha)
    beta.communicate(timeout=60)
    do("chown", "-R", "0", str(hosts[1].data / "mine"))
    warnings = [line for line in output.lines if line.startswith("warning[") and expected in line]
    violations = [f"exit {output.code}"] * (output.code != 0) + ["no such warning"] * (len(warnings) != 1)
    expectations.step(title, violations, warnings[0] if warnings else "")


def ray_kill(hosts: Hosts, expectations: Expectations) -> None:
    """Kill a rank on beta."""
    _by_ray(hosts, expectations, "kill -9 of a rank, Ray", lambda: _signal_rank(hosts, signal.SIGKILL))


def ray_stop(hosts: Hosts, expectations: Expectations) -> None:
    """Stop a rank on beta."""
    _by_ray(hosts, expectations, "SIGSTOP of a rank, Ray", lambda: _signal_rank(hosts, signal.SIGSTOP))


def ray_freeze(hosts: Hosts, expectations: Expectations) -> None:
    """Stop all of beta, including Ray, and continue it after the run."""
    title = "SIGSTOP of a host's process 1 and all others, Ray"
    _by_ray(hosts, expectations, title, hosts[1].freeze, thaw=True)
    cluster.restart(hosts)


def ray_death(hosts: Hosts, expectations: Expectations) -> None:
    """Kill beta."""
    _by_ray(hosts, expectations, "kill -9 of a host's process 1, Ray", hosts[1].die)
    cluster.restart(hosts)


def ray_cable(hosts: Hosts, expectations: Expectations) -> None:
    """Disconnect beta from the network."""
    _by_ray(hosts, expectations, "host disconnected, Ray", hosts[1].cut)
    cluster.restart(hosts)


def ray_gone(hosts: Hosts, expectations: Expectations) -> None:
    """Kill Ray on alpha in the middle of a run."""
    inject = lambda: do(*hosts[0].enter("pkill", "-9", "raylet|gcs_server"))  # noqa: E731 - one line, used once
    _by_ray(hosts, expectations, "Ray killed", inject, names="alpha")
    cluster.restart(hosts)


def version(hosts: Hosts, expectations: Expectations) -> None:
    """Install another version of iobench on beta."""
    package = Path(str(metadata.distribution("iobench").locate_file("")))
    installed = next(package.glob("iobench-*.dist-info")) / "METADATA"
    changed = hosts[1].root / "METADATA"
    changed.write_text(
        installed.read_text().replace(f"Version: {metadata.version('iobench')}", "Version: 0.0.9")
    )
    do(*hosts[1].enter("mount", "--bind", str(changed), str(installed)))
    _by_ray(
        hosts,
        expectations,
        "another version on beta",
        names=r"beta has another version of iobench: .* found 0\.0\.9",
    )
    do(*hosts[1].enter("umount", str(installed)))


def dataset(hosts: Hosts, expectations: Expectations) -> None:
    """Remove the dataset on beta, then replace it by another one."""
    ours, aside = hosts[1].data / "ours", hosts[1].data / "aside"
    ours.rename(aside)
    _by_ray(hosts, expectations, "no dataset on beta", names=r"\[no-dataset\]: .*rank 1 on beta: ")
    words = "prepare --size 1e6 --seed 2 --name ours --format npy --data-dir /data".split()
    hosts[1].call(*iobench(*words)).communicate(timeout=120)
    _by_ray(
        hosts,
        expectations,
        "another dataset on beta",
        names=r"\[other-content\]: /data/ours: rank 1 on beta: ",
    )
    shutil.rmtree(ours)
    aside.rename(ours)


def _signal_rank(hosts: Hosts, number: signal.Signals) -> None:
    os.kill(hosts[1].ranks()[0], number)


def _by_torchrun(
    hosts: Hosts, expectations: Expectations, title: str, inject: Fault, thaw: bool = False
) -> None:
    alpha, beta = torchrun(hosts, LONG, ranks=1)
    _check(hosts, expectations, title, follow(title, alpha, inject), "rank 1 on beta", thaw, injected=True)
    beta.kill()
    beta.wait()


def _by_ray(
    hosts: Hosts,
    expectations: Expectations,
    title: str,
    inject: Fault | None = None,
    names: str = "rank 1 on beta",
    thaw: bool = False,
) -> None:
    process = hosts[0].call(*cluster.over_ray("run", "--name", "ours", *LONG))
    _check(
        hosts, expectations, title, follow(title, process, inject), names, thaw, injected=inject is not None
    )


def _check(
    hosts: Hosts,
    expectations: Expectations,
    title: str,
    output: CommandOutput,
    names: str,
    thaw: bool = False,
    injected: bool = False,
) -> None:
    """Check that a run ended in time, with one error line, its finished rounds and no process left."""
    if thaw:
        hosts[1].thaw()
    began = time.monotonic()
    left = hosts.left(LIMIT_S - min(output.seconds, LIMIT_S - 1))
    whole_s = output.seconds + time.monotonic() - began
    violations = [f"exit {output.code}"] * (output.code != 1)
    violations += [f"{len(output.errors)} error lines"] * (len(output.errors) != 1)
    violations += [f"{names!r} not in an error line"] * (
        not any(re.search(names, line) for line in output.errors)
    )
    violations += ["took too long"] * (whole_s > LIMIT_S) + [f"left running: {one}" for one in left]
    if injected and _recorded_rounds(hosts) < max(1, output.rounds):
        violations.append(f"{_recorded_rounds(hosts)} of {output.rounds} rounds recorded")
    expectations.step(title, violations, f"{whole_s:.0f} s, {' / '.join(output.errors)[:150]}")


def _recorded_rounds(hosts: Hosts) -> int:
    """Return the number of rounds in the newest file of records on alpha."""
    files = sorted((hosts[0].data / "results").glob("*.jsonl"), key=lambda path: path.stat().st_mtime)
    return len(files[-1].read_text().splitlines()) if files else 0
