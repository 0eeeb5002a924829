"""Run the steps of a check within a time limit, each isolated from the others, and write the verdicts."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "scripts" / "gpu_check"
TOTAL_S = 470.0
TIMEOUT_FACTOR = 2.0  # of a step's estimate; after that it is killed
PASS, FAIL, UNKNOWN = "pass", "fail", "unknown"
Verdict = tuple[str, str]  # PASS, FAIL or UNKNOWN, and the evidence


class Check:
    """Steps that run one after another, their verdicts and the output folder."""

    def __init__(self, device: str, out: Path, size: str) -> None:
        self.device, self.out, self.size, self.began = device, out, size, time.monotonic()
        self.data = out / "data"
        self.verdicts: list[tuple[str, str, str]] = []
        self._limit_s = TOTAL_S
        out.mkdir(parents=True, exist_ok=True)

    def step(self, name: str, run: Callable[[Check], Verdict], estimate_s: float = TOTAL_S) -> None:
        """Run one step and write its verdict; an exception is the verdict fail."""
        left_s = TOTAL_S - (time.monotonic() - self.began)
        self._limit_s = min(TIMEOUT_FACTOR * estimate_s, left_s)
        if left_s <= 0:
            verdict = (UNKNOWN, "no time left")
        else:
            try:
                verdict = run(self)
            except subprocess.TimeoutExpired as error:
                verdict = (UNKNOWN, f"killed after {error.timeout:.0f} s")
            except Exception as error:  # noqa: BLE001 - the other steps must run
                verdict = (FAIL, f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")
        self.verdicts.append((name, *verdict))
        print(f"{name}: {verdict[0]}: {verdict[1]}", flush=True)
        lines = [": ".join(one) for one in self.verdicts]
        (self.out / "verdicts.txt").write_text("\n".join(lines) + "\n")
        keys = ("step", "verdict", "evidence")
        body = [dict(zip(keys, one, strict=True)) for one in self.verdicts]
        (self.out / "verdicts.json").write_text(json.dumps(body, indent=1) + "\n")

    def call(self, file: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a Python module in a child process, with its output in a file."""
        return self._run(file, [sys.executable, "-m", *arguments])

    def run_in_child(self, step: str) -> Verdict:
        """Run a step in a child process, so that a device error ends this step alone."""
        where = ("--device", self.device, "--out", str(self.out))
        done = self._run(f"{step}.txt", [sys.executable, str(SCRIPT), "--step", step, *where])
        if done.returncode:
            return verdict_of(done)
        verdict, evidence = json.loads(done.stdout.splitlines()[-1])
        return verdict, evidence

    def manifest(self) -> Any:
        """Load the manifest of the prepared data."""
        import iobench

        return iobench.find_dataset(self.data)

    def _run(self, file: str, command: list[str]) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(command, capture_output=True, text=True, timeout=self._limit_s, cwd=ROOT)
        (self.out / file).write_text(done.stdout + done.stderr)
        return done


def verdict_of(done: subprocess.CompletedProcess[str]) -> Verdict:
    """Return the verdict of a command from its exit code and its last line."""
    lines = [line for line in (done.stderr if done.returncode else done.stdout).splitlines() if line.strip()]
    return (FAIL if done.returncode else PASS), lines[-1].strip() if lines else f"exit {done.returncode}"
