"""Faults over several hosts: each must be one error line that names the rank, with no process left."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

from eval.harness import Row
from eval.hosts import cluster
from eval.hosts.host import USER, Hosts, do, iobench
from eval.hosts.outcome import CommandOutput, checked, follow
from eval.hosts.scenarios import torchrun

LIMIT_S = 60.0  # in which a run and all its processes have to end
LONG = "--format npy --loader native --batch-size 64 --step-ms 2 --rounds 300 --no-limits".split()
COLD = "--format npy --loader native --rounds 1 --no-limits --cache cold".split()


@dataclass(frozen=True)
class Fault:
    """A fault in the middle of a run, and the text of the error that has to follow."""

    title: str
    inject: Callable[[Hosts], None] | None
    names: str = "rank 1 on beta"
    thaws: bool = False  # after the run
    restarts: bool = False  # the hosts, after the check


def _signal_rank(number: signal.Signals, hosts: Hosts) -> None:
    os.kill(hosts[1].ranks()[0], number)


FAULTS = {
    "kill": Fault("kill -9 of a rank", partial(_signal_rank, signal.SIGKILL)),
    "stop": Fault("SIGSTOP of a rank", partial(_signal_rank, signal.SIGSTOP)),
    "freeze": Fault("SIGSTOP of all of a host", lambda hosts: hosts[1].freeze(), thaws=True, restarts=True),
    "death": Fault("kill -9 of a host's process 1", lambda hosts: hosts[1].die(), restarts=True),
    "cable": Fault("host disconnected", lambda hosts: hosts[1].cut(), restarts=True),
}
GONE = Fault(
    "Ray killed on alpha",
    lambda hosts: do(*hosts[0].enter("pkill", "-9", "raylet|gcs_server")),
    names="alpha",
    restarts=True,
)


def by_torchrun(fault: Fault, hosts: Hosts) -> Iterator[Row]:
    """Inject a fault into a run by torchrun."""
    alpha, beta = torchrun(hosts, LONG, ranks=1)
    output = follow(f"torchrun: {fault.title}", alpha, partial(fault.inject, hosts))
    yield ended(fault, hosts, output)
    beta.kill()
    beta.wait()
    if fault.restarts:
        hosts.restart()


def by_ray(fault: Fault, hosts: Hosts) -> Iterator[Row]:
    """Inject a fault into a run by Ray, or start the run with one."""
    process = hosts[0].call(*cluster.over_ray("run", "--name", "ours", *LONG))
    inject = partial(fault.inject, hosts) if fault.inject else None
    yield ended(fault, hosts, follow(f"Ray: {fault.title}", process, inject))
    if fault.restarts:
        cluster.restart(hosts)


def not_root(hosts: Hosts) -> Iterator[Row]:
    """Run beta's rank without root: over files of root, with --sudo, and over its own files."""
    for title, words, names in (
        ("not root on beta, files of root", COLD, r"\[residency-unknown\]: .*rank 1 on beta: "),
        ("not root on beta, --sudo", [*COLD, "--sudo"], "rank 1 on beta: --sudo"),
    ):
        yield ended(Fault(title, None, names), hosts, _without_root(hosts, title, words))
    title, expected = "not root on beta, own files", "drop_caches on alpha, posix_fadvise on beta"
    do("chown", "-R", str(USER), str(hosts[1].data / "mine"))
    output = _without_root(hosts, title, COLD)
    do("chown", "-R", "0", str(hosts[1].data / "mine"))
    warnings = [line for line in output.lines if line.startswith("warning[") and expected in line]
    violations = [f"exit {output.code}"] * (output.code != 0) + ["no such warning"] * (len(warnings) != 1)
    yield checked(title, violations, warnings[0] if warnings else "")


def _without_root(hosts: Hosts, title: str, words: list[str]) -> CommandOutput:
    alpha, beta = torchrun(hosts, words, ranks=1, user=True)
    output = follow(title, alpha)
    beta.communicate(timeout=60)
    return output


def version(hosts: Hosts) -> Iterator[Row]:
    """Install another version of iobench on beta."""
    package = Path(str(metadata.distribution("iobench").locate_file("")))
    installed = next(package.glob("iobench-*.dist-info")) / "METADATA"
    changed = hosts[1].root / "METADATA"
    ours = f"Version: {metadata.version('iobench')}"
    changed.write_text(installed.read_text().replace(ours, "Version: 0.0.9"))
    do(*hosts[1].enter("mount", "--bind", str(changed), str(installed)))
    names = r"beta has another version of iobench: .* found 0\.0\.9"
    yield from by_ray(Fault("another version on beta", None, names), hosts)
    do(*hosts[1].enter("umount", str(installed)))


def dataset(hosts: Hosts) -> Iterator[Row]:
    """Remove the dataset on beta, then replace it by another one."""
    ours, aside = hosts[1].data / "ours", hosts[1].data / "aside"
    ours.rename(aside)
    names = r"\[no-dataset\]: .*rank 1 on beta: "
    yield from by_ray(Fault("no dataset on beta", None, names), hosts)
    words = "prepare --size 1e6 --seed 2 --name ours --format npy --data-dir /data".split()
    hosts[1].call(*iobench(*words)).communicate(timeout=120)
    names = r"\[other-content\]: /data/ours: rank 1 on beta: "
    yield from by_ray(Fault("another dataset on beta", None, names), hosts)
    shutil.rmtree(ours)
    aside.rename(ours)


def ended(fault: Fault, hosts: Hosts, output: CommandOutput) -> Row:
    """Check that a run ended in time, with one error line, its finished rounds and no process left."""
    if fault.thaws:
        hosts[1].thaw()
    began = time.monotonic()
    left = hosts.left(LIMIT_S - min(output.seconds, LIMIT_S - 1))
    whole_s, errors = output.seconds + time.monotonic() - began, output.errors
    violations = [f"exit {output.code}"] * (output.code != 1)
    violations += [f"{len(errors)} error lines"] * (len(errors) != 1)
    if not any(re.search(fault.names, line) for line in errors):
        violations.append(f"{fault.names!r} not in an error line")
    violations += ["took too long"] * (whole_s > LIMIT_S) + [f"left running: {one}" for one in left]
    if fault.inject and _recorded_rounds(hosts) < max(1, output.rounds):
        violations.append(f"{_recorded_rounds(hosts)} of {output.rounds} rounds recorded")
    return checked(fault.title, violations, f"{whole_s:.0f} s, {' / '.join(errors)[:150]}")


def _recorded_rounds(hosts: Hosts) -> int:
    """Return the number of rounds in the newest file of records on alpha."""
    files = sorted((hosts[0].data / "results").glob("*.jsonl"), key=lambda path: path.stat().st_mtime)
    return len(files[-1].read_text().splitlines()) if files else 0
