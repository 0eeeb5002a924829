"""Ctrl-C in `run`, `prepare` and `add`, at any time or in callbacks: exit 130, one line, no process left."""

from __future__ import annotations

import functools
import gc
import json
import queue
import random
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from eval.faults.children import MAX_MESSAGE, run_or_raise, tried
from eval.faults.cli_runs import run_cli
from eval.faults.commands import CommandResult, ForkServer, StartCommand, command, start_new
from eval.faults.foreign_data import ForeignData, foreign_data
from eval.faults.registry import Outcome, Trials, kind
from eval.faults.scenarios import NAME, PrepareCall
from eval.faults.targets import VerifiedDatasets, generated, installed_formats

PARALLEL, ELEMENTS = 3, 1 << 14
NEW_EVERY = 5  # every fifth command starts a new interpreter, so that its imports are interrupted, too


@dataclass
class _Commands:
    """The commands to interrupt and the time that each needs without an interrupt.

    `free` holds the names of datasets that no trial is replacing.
    """

    folder: Path
    formats: Sequence[str]
    foreign: Sequence[ForeignData]
    whole_s: dict[str, float] = field(default_factory=dict)
    free: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)

    def line(self, what: str, number: int, name: str) -> list[str]:
        """Return the arguments of trial `number`, with its own records or the dataset `name` to replace."""
        form, data_dir = self.formats[number % len(self.formats)], str(self.folder / "other")
        if what == "prepare":
            (one,) = generated((form,), ELEMENTS).schema.fields
            shape = ["--sample-shape", "x".join(map(str, one.shape)), "--dtype", one.dtype]
            line = ["prepare", "--size", "1e6", "--overwrite", "--data-dir", data_dir, "--name", name]
            return [*line, *shape, "--format", form, *(["--format", "npy"] if form != "npy" else [])]
        if what == "add":
            data = self.foreign[number % len(self.foreign)]
            line = ["add", str(data.path), "--format", data.variant, "--data-dir", data_dir]
            return [*line, "--name", f"a{number}", *(f"--field={one.typed}" for one in data.fields)]
        line = ["run", "--data-dir", str(self.folder / form), "--name", NAME, "--format", form, "--no-limits"]
        line += ["--out", str(self.out(number))]
        if what == "run":
            return [*line, "--rounds", "4", "--loader", "native", "--loader", "stream"]
        return [*line, "--rounds", "2", "--loader", "dataloader:num_workers=2", "--batch-size", "64"]

    def out(self, number: int) -> Path:
        """Return the file for the records of a trial."""
        return self.folder / f"{number}.jsonl"


COMMANDS = ("run", "run with workers", "prepare", "add")


@kind("interrupts")
def interrupts(trials: Trials) -> Iterator[Outcome]:
    """Interrupt commands at random times, alone or with the process group, as a terminal does."""
    some = installed_formats()
    trials.rng.shuffle(some)
    some = some[:2] if trials.quick else some
    data = foreign_data(VerifiedDatasets(trials.folder / "whole", some), trials.folder / "foreign")
    commands = _Commands(trials.folder, some, data)
    for number in range(PARALLEL):
        commands.free.put(f"n{number}")
    for name in some:
        run_or_raise(functools.partial(PrepareCall(0, (name,)), trials.folder / name, ELEMENTS))
    seed = trials.rng.random()
    with closing(ForkServer()) as server, ThreadPoolExecutor(PARALLEL) as pool:
        for number, what in enumerate(COMMANDS, -len(COMMANDS)):
            result = command(server, commands.line(what, number, "n0"))
            assert result.code == 0, result.output
            commands.whole_s[what] = result.seconds

        def one(number: int) -> Outcome:
            return _interrupted(commands, server, number, random.Random(f"{seed} {number}"))

        yield from pool.map(one, trials.numbers(full=150, quick=7))


def _interrupted(commands: _Commands, server: ForkServer, number: int, rng: random.Random) -> Outcome:
    what, start = COMMANDS[number % len(COMMANDS)], _start(server, number)
    longest_s = commands.whole_s[what] + (server.import_s if start is start_new else 0.0)
    at_s, group = rng.uniform(0, 1.1 * longest_s), rng.random() < 0.5
    name = commands.free.get()
    result = command(start, commands.line(what, number, name), at_s, group)
    commands.free.put(name)
    how = f"{'new' if start is start_new else 'fork server'}, {'process group' if group else 'alone'}"
    return f"{number}: {what}, {how}, after {at_s:.3f} s", _failure(result, commands.out(number))


def _start(server: ForkServer, number: int) -> StartCommand:
    return start_new if number % NEW_EVERY == 0 else server


def _failure(result: CommandResult, out: Path) -> str | None:
    last = result.output.rstrip("\n").rpartition("\n")[2]
    if result.code not in (0, 130) or "Traceback" in result.output or "Exception ignored" in result.output:
        return f"exit {result.code}: {result.output[-MAX_MESSAGE:]}"
    if result.code == 130 and not last.startswith("iobench: interrupted"):
        return f"last line {last!r}"
    if result.left:
        return f"still running: {result.left}"
    for line in out.read_text().splitlines() if out.exists() else ():
        json.loads(line)
    return None


@kind("interrupts-in-callbacks")
def in_callbacks(trials: Trials) -> Iterator[Outcome]:
    """Interrupt a run in a callback of the garbage collector, where Python cannot raise KeyboardInterrupt."""
    run_or_raise(functools.partial(PrepareCall(0, ("npy",)), trials.folder, ELEMENTS))
    for number in trials.numbers(full=100, quick=6):
        after = trials.rng.randint(1, 60)
        yield tried(f"{number}: in callback {after}", _interrupted_in_a_callback, trials.folder, after)


def _interrupted_in_a_callback(folder: Path, after: int) -> None:
    left = after

    def called(phase: str, info: object) -> None:
        nonlocal left
        left -= signal.getsignal(signal.SIGINT) is not signal.default_int_handler  # once it is iobench's
        if left == 0:
            signal.raise_signal(signal.SIGINT)

    gc.set_threshold(100)  # callbacks are frequent
    gc.callbacks.append(called)
    line = f"run --name {NAME} --loader native --rounds 200 --no-limits --data-dir {folder} --out /dev/null"
    result = run_cli(*line.split())
    assert left <= 0, f"{left} callbacks too few"
    assert result.code == 130, f"exit {result.code}: {result.stderr[-MAX_MESSAGE:]}"
    assert "Traceback" not in result.stderr, result.stderr[-MAX_MESSAGE:]
