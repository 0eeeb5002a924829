"""Ctrl-C at any moment of `iobench run` and `prepare`: 130, one line, nothing left, records whole."""

from __future__ import annotations

import json
import queue
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from _faults.children import LINE
from _faults.commands import Ended, Ready, Start, command, new
from _faults.prepares import NAME, Call
from _faults.registry import Outcome, Trials, kind
from iobench.formats import names

AT_ONCE, ELEMENTS = 3, 1 << 14
EACH_NEW = 5  # of so many one from a new interpreter, whose imports are struck, too


@dataclass
class _Commands:
    """What is interrupted, by what it is called, and how long each takes when it is not.

    `free` has the datasets that no trial replaces right now.
    """

    folder: Path
    whole_s: dict[str, float] = field(default_factory=dict)
    free: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)

    def line(self, what: str, number: int, name: str) -> list[str]:
        """The arguments of trial `number`, which has records of its own, or replaces that dataset."""
        if what == "prepare":
            data_dir = str(self.folder / "other")
            return ["prepare", "--size", "1e6", "--overwrite", "--data-dir", data_dir, "--name", name]
        line = ["run", "--data-dir", str(self.folder), "--name", NAME, "--no-limits"]
        line += ["--out", str(self.out(number))]
        if what == "run":
            return [*line, "--rounds", "4", "--loader", "native", "--loader", "stream"]
        workers = ["--loader", "dataloader:num_workers=2", "--format", "npy", "--batch-size", "64"]
        return [*line, "--rounds", "2", *workers]

    def out(self, number: int) -> Path:
        """Where the records of a trial are."""
        return self.folder / f"{number}.jsonl"


WHAT = ("run", "run with workers", "prepare")


@kind("interrupts")
def interrupts(trials: Trials) -> Iterator[Outcome]:
    """Interrupted after a time that is left to chance, alone or with its whole group, as by a terminal."""
    commands = _Commands(trials.folder)
    for number in range(AT_ONCE):
        commands.free.put(f"n{number}")
    others = [name for name in names() if name != "npy"]
    Call(0, ("npy", *trials.sample(others, quick=2)))(trials.folder, ELEMENTS)
    seed = trials.chance.random()
    with closing(Ready()) as ready, ThreadPoolExecutor(AT_ONCE) as pool:
        for number, what in enumerate(WHAT, -len(WHAT)):
            ended = command(ready, commands.line(what, number, "n0"))
            assert ended.code == 0, ended.said
            commands.whole_s[what] = ended.seconds

        def one(number: int) -> Outcome:
            return _interrupted(commands, ready, number, random.Random(f"{seed} {number}"))

        yield from pool.map(one, trials.some(full=150, quick=7))


def _interrupted(commands: _Commands, ready: Ready, number: int, chance: random.Random) -> Outcome:
    what, start = WHAT[number % len(WHAT)], _start(ready, number)
    most_s = commands.whole_s[what] + (ready.import_s if start is new else 0.0)
    at_s, group = chance.uniform(0, 1.1 * most_s), chance.random() < 0.5
    name = commands.free.get()
    ended = command(start, commands.line(what, number, name), at_s, group)
    commands.free.put(name)
    how = f"{'new' if start is new else 'ready'}, {'with its group' if group else 'alone'}"
    return f"{number}: {what}, {how}, after {at_s:.3f} s", _problem(ended, commands.out(number))


def _start(ready: Ready, number: int) -> Start:
    return new if number % EACH_NEW == 0 else ready


def _problem(ended: Ended, out: Path) -> str | None:
    last = ended.said.rstrip("\n").rpartition("\n")[2]
    if ended.code not in (0, 130) or "Traceback" in ended.said or "Exception ignored" in ended.said:
        return f"it ended with {ended.code}: {ended.said[-LINE:]}"
    if ended.code == 130 and not last.startswith("iobench: interrupted"):
        return f"its last line is {last!r}"
    if ended.left:
        return f"it left {ended.left}"
    for line in out.read_text().splitlines() if out.exists() else ():
        json.loads(line)
    return None
