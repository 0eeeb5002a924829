"""Ctrl-C at any moment of `iobench run` and `prepare`: 130, one line, nothing left, records whole."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil

from _faults.children import LINE
from _faults.prepares import NAME, Call
from _faults.registry import Outcome, Trials, kind
from iobench.formats import names

AT_ONCE, PATIENCE_S = 3, 60
# tells that Python has started: what comes before that is none of ours
BEGIN = "import os; os.write({pipe}, b'x'); from iobench.__main__ import main; main()"


@dataclass(frozen=True)
class Ended:
    """How a command that was interrupted ended."""

    code: int
    said: str
    left: list[str]
    seconds: float


@kind("interrupts")
def interrupts(trials: Trials) -> Iterator[Outcome]:
    """Interrupted after a time that is left to chance, alone or with its whole group, as by a terminal."""
    Call(0, tuple(names()))(trials.folder, 1 << 16)
    commands = {
        "run": [
            *("run", "--rounds", "4", "--data-dir", str(trials.folder), "--name", NAME),
            *("--loader", "native", "--loader", "stream", "--no-limits"),
        ],
        "run with workers": [
            *("run", "--rounds", "2", "--data-dir", str(trials.folder), "--name", NAME),
            *("--loader", "dataloader:num_workers=2", "--format", "npy", "--batch-size", "64"),
            "--no-limits",
        ],
        "prepare": ["prepare", "--size", "3e6", "--overwrite", "--data-dir", str(trials.folder / "other")],
    }
    whole_s = {}
    for what, arguments in commands.items():
        ended = _command(_with_out(arguments, trials.folder / "whole.jsonl"), None, False)
        assert ended.code == 0, ended.said
        whole_s[what] = ended.seconds

    def one(number: int) -> Outcome:
        chance = random.Random(f"{seed} {number}")
        what = list(commands)[number % len(commands)]
        at_s, group = chance.uniform(0, 1.1 * whole_s[what]), chance.random() < 0.5
        out, arguments = trials.folder / f"{number}.jsonl", commands[what]
        if what == "prepare":
            arguments = [*arguments, "--name", f"n{number % AT_ONCE}"]
        ended = _command(_with_out(arguments, out), at_s, group)
        whose = "with its group" if group else "alone"
        return f"{number}: {what}, {whose}, after {at_s:.3f} s", _problem(ended, out)

    seed = trials.chance.random()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(one, trials.some(full=100, quick=4))


def _with_out(arguments: list[str], out: Path) -> list[str]:
    return [*arguments, "--out", str(out)] if arguments[0] == "run" else arguments


def _command(arguments: list[str], at_s: float | None, group: bool) -> Ended:
    """Run a command in a session of its own, and interrupt it after so many seconds."""
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", BEGIN.format(pipe=writing), *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=[writing],
        start_new_session=True,
        text=True,
    )
    os.close(writing)
    os.read(reading, 1)
    began = time.monotonic()
    try:
        said = process.communicate(timeout=at_s if at_s is not None else PATIENCE_S)[1]
    except subprocess.TimeoutExpired:
        (os.killpg if group else os.kill)(process.pid, signal.SIGINT)
        try:
            said = process.communicate(timeout=PATIENCE_S)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            said = f"{process.communicate()[1]}\nit hangs"
    os.close(reading)
    return Ended(process.returncode, said, _left(process.pid), time.monotonic() - began)


def _left(session: int) -> list[str]:
    """The commands of processes of a session that are there yet after a second."""
    for _ in range(20):
        left = []
        for process in psutil.process_iter(["pid", "cmdline", "status"]):
            try:
                if os.getsid(process.pid) == session and process.info["status"] != psutil.STATUS_ZOMBIE:
                    left.append(" ".join(process.info["cmdline"] or ["?"])[:200])
            except (ProcessLookupError, PermissionError):
                continue
        if not left:
            break
        time.sleep(0.05)
    return left


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
