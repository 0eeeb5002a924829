"""Fuzz the parsers of data that other programs wrote: ./scripts/faults --fuzz SECONDS [--kind GLOB]...

A target is a set of valid files and a function that reads them. An input is one such set with some bytes,
numbers, ranges or JSON values of a file changed, with right checksums half the time. One that reaches a line
of iobench that no other reached becomes a seed of later ones. Forked children read the inputs, with limits of
memory and time, but outside the sandbox, so that errors are seen as they were raised.

A finding is an error of iobench's own code that is no IobenchError, an allocation above the sandbox's limit
there, a hang, rows that differ between two ways to read them, or content that was verified but is wrong.
Errors and crashes of a library are findings where no sandbox contains them. Each finding is one line, and its
input stays in a folder.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import iobench
from eval.faults import fuzz_targets
from eval.faults.children import CRASHED, DONE, HANGS, run_forked
from eval.faults.fuzz_targets import Files, Target, targets
from eval.faults.mutations import changed
from iobench.base.errors import IobenchError
from iobench.dataset.sandbox import MEMORY_BYTES

SLICE_S, HANG_S = 3.0, 20.0  # of one child; of one input
TRACED = 0.3  # of the inputs: it takes several times as long
ROOT = os.path.dirname(iobench.__file__)


class Finding(Exception):
    """An input that iobench handled wrongly: where, and how."""


def fuzz(options: argparse.Namespace) -> int:
    """Fuzz all targets in turn until the time is over, and return 1 after a finding."""

    def chosen(name: str) -> bool:
        return any(fnmatch(name, pattern) for pattern in options.kind or ["*"])

    with tempfile.TemporaryDirectory(prefix="iobench-fuzz-", dir=options.folder) as folder:
        every = [one for one in targets(Path(folder), chosen) if chosen(one.name)]
        print(f"{'target':36} {'inputs':>8} {'lines':>8} {'findings':>8}", flush=True)
        until = time.monotonic() + options.fuzz
        fork = multiprocessing.get_context("fork")
        parts = [every[number :: options.jobs] for number in range(options.jobs)]
        jobs = [fork.Process(target=_job, args=(part, folder, until, options.seed)) for part in parts if part]
        if not jobs:
            raise SystemExit("no target has such a name")
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
    return int(any(job.exitcode for job in jobs))


def _job(every: list[Target], folder: str, until: float, seed: int) -> None:
    for turn, target in enumerate(itertools.cycle(every)):
        if time.monotonic() > until:
            break
        _slice(target, Path(tempfile.mkdtemp(dir=folder)), f"{seed} {target.name} {turn}")
    for target in every:
        print(
            f"{target.name:36} {target.inputs:8} {len(target.lines):8} {len(target.findings):8}", flush=True
        )
    raise SystemExit(any(target.findings for target in every))


def _slice(target: Target, folder: Path, seed: str) -> None:
    """Read inputs in one child, and learn what it reached and found."""
    work = partial(_read_inputs, target, folder, random.Random(seed))
    result = run_forked(work, timeout_s=SLICE_S + HANG_S)
    for line in (folder / "reached").read_text().splitlines():
        reached = json.loads(line)
        target.inputs += 1
        if reached:
            target.lines.update((file, number) for file, number in reached["lines"])
            content = bytes.fromhex(reached["content"])
            target.seeds.append(target.seeds[reached["seed"]] | {reached["file"]: content})
    finding = result.output.rpartition("Finding: ")[2] if result.code == CRASHED else f"exit {result.code}"
    crashed = result.code not in (DONE, CRASHED, HANGS)
    if result.code != DONE and finding not in target.findings and not (crashed and target.sandboxed):
        target.findings.add(finding)
        kept = Path(tempfile.mkdtemp(prefix=f"fuzz-{target.name.replace(' ', '-')}-"))
        shutil.copytree(folder / "data", kept / "data")
        (kept / "error").write_text(result.output)
        print(f"  {target.name}: {finding} ({kept})", flush=True)
    shutil.rmtree(folder)


def _read_inputs(target: Target, folder: Path, rng: random.Random) -> None:
    """Read inputs for SLICE_S; raise the first Finding. A crash leaves its input in `data`."""
    data, until = folder / "data", time.monotonic() + SLICE_S
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY_BYTES, used + MEMORY_BYTES))
    with (folder / "reached").open("w", buffering=1) as report:
        while time.monotonic() < until:
            number = max(rng.choices(range(len(target.seeds)), k=2))  # newer ones more often
            files = target.seeds[number]
            name = rng.choice([*files])
            content = changed(name, files[name], rng.choice(target.seeds)[rng.choice([*files])], rng)
            shutil.rmtree(data, ignore_errors=True)
            write(files | {name: content}, data, target.times)
            lines, finding = traced(target, data, on=rng.random() < TRACED)
            new = sorted(lines - target.lines)
            target.lines.update(new)
            news = {"lines": new, "seed": number, "file": name, "content": content.hex()}
            print(json.dumps(news if new else None), file=report)
            if finding and finding not in target.findings:
                raise Finding(finding)


def traced(target: Target, data: Path, on: bool) -> tuple[set[tuple[str, int]], str]:
    """Read data, and return the lines of iobench that ran, and what is wrong with the error, if anything."""
    lines: set[tuple[str, int]] = set()

    def line(frame: FrameType, event: str, _: object) -> Any:
        lines.add((frame.f_code.co_filename, frame.f_lineno))
        return line

    if on:
        sys.settrace(lambda frame, *_: line if frame.f_code.co_filename.startswith(ROOT) else None)
    try:
        target.read(data)
    except IobenchError:
        pass
    except Exception as error:  # noqa: BLE001 - libraries raise anything, which the sandbox reports
        last = traceback.extract_tb(error.__traceback__)[-1]
        if not target.sandboxed or last.filename.startswith((ROOT, fuzz_targets.__file__)):
            where = f"{os.path.relpath(last.filename, ROOT)}:{last.lineno}"
            return lines, f"{where} {type(error).__name__}: {str(error)[:200]}".replace("\n", " ")
    finally:
        sys.settrace(None)
    return lines, ""


def write(files: Files, folder: Path, times: Mapping[str, int]) -> None:
    """Write files into a folder that is not there."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
        if name in times:
            os.utime(folder / name, ns=(times[name], times[name]))
