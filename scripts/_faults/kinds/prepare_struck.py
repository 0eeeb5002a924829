"""Prepare, struck at each of its system calls or at any moment: old or new, never both, and it goes on."""

from __future__ import annotations

import dataclasses
import functools
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

from _faults.attacked import grouped, names
from _faults.calls import LUCK, MODES, Calls
from _faults.children import CRASHED, DONE, HANGS, INTERRUPTED, REFUSED, Ended, forked, seconds
from _faults.power import Disk
from _faults.prepares import NAME, Call, Ground, Scenario, go_on, replacing, scenarios
from _faults.registry import Outcome, Trials, kind

EXPECTED = {
    "killed": (-signal.SIGKILL,),
    **dict.fromkeys(LUCK, (-signal.SIGKILL,)),
    "refused": (DONE, REFUSED),  # what could not be removed is removed next time
    "interrupted": (INTERRUPTED,),
}
NEVER = b"it was never struck"
LARGER = 1 << 15  # elements: long enough for a moment to fall anywhere


@kind("prepare-at-calls")
def at_calls(trials: Trials) -> Iterator[Outcome]:
    """Every scenario, struck in every mode at every call that changes the disk.

    The protocol is the same for every format: of two all is tried, of each other one its replacement,
    struck in one mode at each call.
    """
    grounds = [
        Ground(one, trials.folder / f"scenario-{number}")
        for number, one in enumerate(scenarios(("npy", "lmdb")))
    ]
    every = [
        (ground, mode, at) for ground in grounds for at in range(1, _count(ground) + 1) for mode in MODES
    ]
    for name in trials.sample([name for name in names() if name not in ("npy", "lmdb")], quick=1):
        ground = Ground(replacing((name,)), trials.folder / name)
        every += [(ground, trials.chance.choice(MODES), at) for at in range(1, _count(ground) + 1)]
    for number, (ground, mode, at) in enumerate(trials.sample(every, quick=32)):
        data_dir = ground.fresh()
        work = functools.partial(_struck, ground.scenario.call, data_dir, mode, at, trials.chance.random())
        what = f"{ground.scenario.label}, {mode} at call {at}"
        yield what, _problem(ground, data_dir, forked(work), EXPECTED[mode], number % 2 == 0)


@kind("prepare-at-moments")
def at_moments(trials: Trials) -> Iterator[Outcome]:
    """Scenarios in turn, killed or interrupted after a time that is left to chance."""
    groups = trials.sample(grouped(trials.chance), quick=1)
    every = [one for group in groups for one in scenarios(group)]
    grounds = [Ground(one, trials.folder / f"scenario-{number}", LARGER) for number, one in enumerate(every)]
    whole_s = [seconds(functools.partial(one.scenario.call, one.fresh(), LARGER)) for one in grounds]
    for number in trials.some(full=200, quick=6):
        ground, number_of = grounds[number % len(grounds)], signal.SIGINT if number % 2 else signal.SIGKILL
        at_s, data_dir = trials.chance.uniform(0, 1.1 * whole_s[number % len(grounds)]), ground.fresh()
        ended = forked(functools.partial(ground.scenario.call, data_dir, LARGER), (at_s, number_of))
        what = f"{ground.scenario.label}, {number_of.name} after {at_s:.4f} s"
        expected = (DONE, INTERRUPTED, -signal.SIGKILL)
        yield what, _problem(ground, data_dir, ended, expected, number % 4 < 2)


def _count(ground: Ground) -> int:
    """How many calls an undisturbed prepare makes that change the disk."""
    data_dir, told = ground.fresh(), ground.folder / "count"

    def work() -> None:
        calls = Calls()
        calls.watch()
        ground.scenario.call(data_dir)
        told.write_text(str(calls.count))

    seconds(work)
    return int(told.read_text())


def _struck(call: Call, data_dir: Path, mode: str, at: int, seed: float) -> None:
    root = data_dir / NAME
    disk = None
    if mode in LUCK:
        root.mkdir(exist_ok=True)
        disk = Disk(root, data_dir / "kept", LUCK[mode], random.Random(seed))
    calls = Calls(mode, at, disk)
    calls.watch()
    call(data_dir)
    if calls.at is not None:
        os.write(2, NEVER)


def _problem(
    ground: Ground, data_dir: Path, ended: Ended, expected: tuple[int, ...], same_arguments: bool
) -> str | None:
    """What is bad about how a struck prepare ended, what it left, or how the next one went on."""
    if ended.code not in expected or ended.said == NEVER.decode():
        return f"it ended with {ended.code}: {ended.said[-2000:]}"
    checked = forked(functools.partial(_look, ground, data_dir, same_arguments))
    if checked.code == DONE:
        return None
    words = {REFUSED: "refused", CRASHED: "failed", HANGS: "hangs"}.get(checked.code, str(checked.code))
    return f"after it (exit {ended.code}) {words}: {checked.said.splitlines()[-1] if checked.said else ''}"


def _look(ground: Ground, data_dir: Path, same_arguments: bool) -> None:
    """Check what is there, then prepare again: by the same arguments, or by those of what is there."""
    scenario: Scenario = ground.scenario
    there = scenario.check(data_dir, ground.elements)
    again = scenario.call
    if there is not None and not same_arguments:
        again = dataclasses.replace(there, overwrite=False)
    go_on(scenario, data_dir, again, ground.elements)
