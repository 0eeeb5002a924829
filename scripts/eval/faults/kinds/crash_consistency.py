"""Crash consistency of prepare: after a fault the dataset is old or new, and the next prepare succeeds."""

from __future__ import annotations

import dataclasses
import functools
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

from eval.faults.children import (
    CRASHED,
    DONE,
    HANGS,
    INTERRUPTED,
    REFUSED,
    ChildResult,
    run_forked,
    time_child,
)
from eval.faults.power import Disk
from eval.faults.registry import Outcome, Trials, kind
from eval.faults.scenarios import (
    NAME,
    PrepareCall,
    Scenario,
    ScenarioCopies,
    check_retry,
    replacing,
    scenarios,
)
from eval.faults.syscalls import MODES, NAME_SURVIVAL, SyscallInterceptor
from eval.faults.targets import installed_formats, random_groups

EXPECTED = {
    "killed": (-signal.SIGKILL,),
    **dict.fromkeys(NAME_SURVIVAL, (-signal.SIGKILL,)),
    "refused": (DONE, REFUSED),  # the next prepare removes what this one could not
    "interrupted": (INTERRUPTED,),
}
NOT_REACHED = b"the call was not reached"
LARGER = 1 << 15  # elements: long enough to interrupt every phase


@kind("crash-at-syscalls")
def at_syscalls(trials: Trials) -> Iterator[Outcome]:
    """Inject a fault of every mode at every system call that changes the disk.

    The protocol is the same for every format: two formats get every scenario and mode, each other one the
    replacement with one random mode at each call.
    """
    every = [
        (copies, mode, at)
        for number, scenario in enumerate(scenarios(("npy", "lmdb")))
        for copies in [ScenarioCopies(scenario, trials.folder / f"scenario-{number}")]
        for at in range(1, _count(copies) + 1)
        for mode in MODES
    ]
    for name in trials.sample([name for name in installed_formats() if name not in ("npy", "lmdb")], quick=1):
        copies = ScenarioCopies(replacing((name,)), trials.folder / name)
        every += [(copies, trials.rng.choice(MODES), at) for at in range(1, _count(copies) + 1)]
    for number, (copies, mode, at) in enumerate(trials.sample(every, quick=32)):
        data_dir = copies.fresh()
        work = functools.partial(_inject, copies.scenario.call, data_dir, mode, at, trials.rng.random())
        fault = f"{copies.scenario.label}, {mode} at call {at}"
        yield fault, _failure(copies, data_dir, run_forked(work), EXPECTED[mode], number % 2 == 0)


@kind("crash-at-times")
def at_random_times(trials: Trials) -> Iterator[Outcome]:
    """Kill or interrupt each scenario at random times."""
    groups = trials.sample(random_groups(trials.rng), quick=1)
    every = [
        ScenarioCopies(scenario, trials.folder / f"scenario-{number}", LARGER)
        for number, scenario in enumerate(one for group in groups for one in scenarios(group))
    ]
    whole_s = [time_child(functools.partial(one.scenario.call, one.fresh(), LARGER)) for one in every]
    for number in trials.numbers(full=200, quick=6):
        copies, sent = every[number % len(every)], signal.SIGINT if number % 2 else signal.SIGKILL
        at_s, data_dir = trials.rng.uniform(0, 1.1 * whole_s[number % len(every)]), copies.fresh()
        result = run_forked(functools.partial(copies.scenario.call, data_dir, LARGER), (at_s, sent))
        fault = f"{copies.scenario.label}, {sent.name} after {at_s:.4f} s"
        expected = (DONE, INTERRUPTED, -signal.SIGKILL)
        yield fault, _failure(copies, data_dir, result, expected, number % 4 < 2)


def _count(copies: ScenarioCopies) -> int:
    """Return the number of system calls that change the disk in a prepare without a fault."""
    data_dir, file = copies.fresh(), copies.folder / "count"

    def work() -> None:
        calls = SyscallInterceptor()
        calls.install()
        copies.scenario.call(data_dir)
        file.write_text(str(calls.count))

    time_child(work)
    return int(file.read_text())


def _inject(call: PrepareCall, data_dir: Path, mode: str, at: int, seed: float) -> None:
    root = data_dir / NAME
    disk = None
    if mode in NAME_SURVIVAL:
        root.mkdir(exist_ok=True)
        disk = Disk(root, data_dir / "backup", NAME_SURVIVAL[mode], random.Random(seed))
    calls = SyscallInterceptor(mode, at, disk)
    calls.install()
    call(data_dir)
    if calls.at is not None:
        os.write(2, NOT_REACHED)


def _failure(
    copies: ScenarioCopies,
    data_dir: Path,
    result: ChildResult,
    expected: tuple[int, ...],
    same_arguments: bool,
) -> str | None:
    """Describe a wrong end of prepare, a wrong state after it, or a failure of the next prepare."""
    if result.code not in expected or result.output == NOT_REACHED.decode():
        return f"exit {result.code}: {result.output[-2000:]}"
    checked = run_forked(functools.partial(_check, copies, data_dir, same_arguments))
    if checked.code == DONE:
        return None
    how = {REFUSED: "error", CRASHED: "failure", HANGS: "hangs"}.get(checked.code, f"exit {checked.code}")
    last = checked.output.splitlines()[-1] if checked.output else ""
    return f"afterwards (exit {result.code}): {how}: {last}"


def _check(copies: ScenarioCopies, data_dir: Path, same_arguments: bool) -> None:
    """Check the dataset, then prepare again with the same arguments or with those of the data on disk."""
    scenario: Scenario = copies.scenario
    present = scenario.check(data_dir, copies.elements)
    call = scenario.call
    if present is not None and not same_arguments:
        call = dataclasses.replace(present, overwrite=False)
    check_retry(scenario, data_dir, call, copies.elements)
