"""Ctrl-C at any moment of `iobench run`, `prepare` and `add`: 130, one line, nothing left, records whole."""

from __future__ import annotations

import functools
import json
import queue
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from _faults.attacked import Whole, done, holds, names
from _faults.children import LINE
from _faults.commands import Ended, Ready, Start, command, new
from _faults.others import Others, others
from _faults.prepares import NAME, Call
from _faults.registry import Outcome, Trials, kind
from iobench.formats import Field, Schema

AT_ONCE, ELEMENTS = 3, 1 << 14
VECTORS = Schema(1, (Field("x", (128,), "float32"),))
EACH_NEW = 5  # of so many one from a new interpreter, whose imports are struck, too


@dataclass
class _Commands:
    """What is interrupted, by what it is called, and how long each takes when it is not.

    `free` has the datasets that no trial replaces right now.
    """

    folder: Path
    formats: Sequence[str]
    others: Sequence[Others]
    whole_s: dict[str, float] = field(default_factory=dict)
    free: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)

    def line(self, what: str, number: int, name: str) -> list[str]:
        """The arguments of trial `number`, which has records of its own, or replaces that dataset."""
        form, data_dir = self.formats[number % len(self.formats)], str(self.folder / "other")
        if what == "prepare":
            shape = [] if holds(form, VECTORS) else ["--sample-shape", "32x32x3", "--dtype", "uint8"]
            line = ["prepare", "--size", "1e6", "--overwrite", "--data-dir", data_dir, "--name", name]
            return [*line, *shape, "--format", form, *(["--format", "npy"] if form != "npy" else [])]
        if what == "add":
            theirs = self.others[number % len(self.others)]
            line = ["add", str(theirs.path), "--format", theirs.variant, "--data-dir", data_dir]
            return [*line, "--name", f"a{number}", *(f"--field={one.typed}" for one in theirs.told)]
        line = ["run", "--data-dir", str(self.folder / form), "--name", NAME, "--format", form, "--no-limits"]
        line += ["--out", str(self.out(number))]
        if what == "run":
            return [*line, "--rounds", "4", "--loader", "native", "--loader", "stream"]
        return [*line, "--rounds", "2", "--loader", "dataloader:num_workers=2", "--batch-size", "64"]

    def out(self, number: int) -> Path:
        """Where the records of a trial are."""
        return self.folder / f"{number}.jsonl"


WHAT = ("run", "run with workers", "prepare", "add")


@kind("interrupts")
def interrupts(trials: Trials) -> Iterator[Outcome]:
    """Interrupted after a time that is left to chance, alone or with its whole group, as by a terminal."""
    some = list(trials.sample(trials.chance.sample(names(), len(names())), quick=2))
    data = others(Whole(trials.folder / "whole", some), trials.folder / "others")
    commands = _Commands(trials.folder, some, data)
    for number in range(AT_ONCE):
        commands.free.put(f"n{number}")
    for name in some:
        done(functools.partial(Call(0, (name,)), trials.folder / name, ELEMENTS))
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
