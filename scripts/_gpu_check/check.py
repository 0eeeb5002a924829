"""The folder that answers go to, the time that is left, and questions that cannot harm each other."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "scripts" / "gpu_check"
TOTAL_S = 470.0
PATIENCE = 2.0  # times what a step is estimated to take, after which it is ended
HOLDS, FAILS, UNKNOWN = "holds", "fails", "cannot tell"
Verdict = tuple[str, str]


class Check:
    """Steps, the folder that they write to and the time that is left."""

    def __init__(self, device: str, out: Path, size: str) -> None:
        self.device, self.out, self.size, self.began = device, out, size, time.monotonic()
        self.data = out / "data"
        self.verdicts: list[tuple[str, str, str]] = []
        self._limit_s = TOTAL_S
        out.mkdir(parents=True, exist_ok=True)

    def step(self, name: str, ask: Callable[[Check], Verdict], estimate_s: float = TOTAL_S) -> None:
        """One question; what goes wrong while it is asked is its answer."""
        left_s = TOTAL_S - (time.monotonic() - self.began)
        self._limit_s = min(PATIENCE * estimate_s, left_s)
        if left_s <= 0:
            verdict = (UNKNOWN, "no time was left for it")
        else:
            try:
                verdict = ask(self)
            except subprocess.TimeoutExpired as error:
                verdict = (UNKNOWN, f"it took more than {error.timeout:.0f} s")
            except Exception as error:  # noqa: BLE001 - one step's failure must not hide the others' answers
                verdict = (FAILS, f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")
        self.verdicts.append((name, *verdict))
        print(f"{name}: {verdict[0]}: {verdict[1]}", flush=True)
        lines = [f"{name}: {found}: {said}" for name, found, said in self.verdicts]
        (self.out / "verdicts.txt").write_text("\n".join(lines) + "\n")
        keys = ("step", "verdict", "said")
        body = [dict(zip(keys, one, strict=True)) for one in self.verdicts]
        (self.out / "verdicts.json").write_text(json.dumps(body, indent=1) + "\n")

    def call(self, file: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A Python module in a process of its own, its output in a file."""
        return self._run(file, [sys.executable, "-m", *arguments])

    def apart(self, question: str) -> Verdict:
        """A question asked in a process of its own: an error of the device ends that one alone."""
        where = ("--device", self.device, "--out", str(self.out))
        done = self._run(f"{question}.txt", [sys.executable, str(SCRIPT), "--question", question, *where])
        if done.returncode:
            return said_by(done)
        verdict, said = json.loads(done.stdout.splitlines()[-1])
        return verdict, said

    def manifest(self) -> Any:
        """Of the data that were prepared."""
        import iobench

        return iobench.find_dataset(self.data)

    def _run(self, file: str, command: list[str]) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(command, capture_output=True, text=True, timeout=self._limit_s, cwd=ROOT)
        (self.out / file).write_text(done.stdout + done.stderr)
        return done


def said_by(done: subprocess.CompletedProcess[str]) -> Verdict:
    """What a command's exit status and its last line say."""
    said = [line for line in (done.stderr if done.returncode else done.stdout).splitlines() if line.strip()]
    return (FAILS if done.returncode else HOLDS), said[-1].strip() if said else f"exit {done.returncode}"
