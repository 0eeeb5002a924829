"""Everything that only a GPU can show, once, in under eight minutes; one folder with all of it.

Run:  .venv/bin/python scripts/gpu_check [--device cuda] [--out data/gpu-check] [--size 512MiB]
      .venv/bin/python scripts/gpu_check --plan       what it would ask, and about how long that takes

The folder holds `verdicts.txt` (one line for each question: holds, fails or cannot tell, and the
figures behind it), `verdicts.json`, the records of all runs, the limits, the suite's output and,
with the extra `report`, one page about the records. A step that takes twice its estimate is ended.

Exit 0 where nothing fails, 1 where something does, or where there is no GPU, which is one line.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from _gpu_check import commands, questions, register
from _gpu_check.check import FAILS, Check, Verdict


class Step(NamedTuple):
    """A question, what it is about, and about how many seconds it takes: nobody has timed it on a GPU yet."""

    name: str
    seconds: float
    about: str
    ask: Callable[[Check], Verdict]
    apart: bool = False  # asked of the device, in a process of its own; the others start commands


def _run(cache: str, model: str) -> Callable[[Check], Verdict]:
    return partial(commands.run, cache=cache, model=model)


PLAN = (
    Step("identity", 10, "the card, its driver, its link and its NUMA node", questions.identity, True),
    Step("prepare", 15, "the data, in four formats", commands.prepare),
    Step("limits", 20, "iobench limits: the link, pinned and pageable, both ways", commands.limits),
    Step(
        "allocations",
        12,
        "of device memory by StreamLoader: none from the third epoch",
        questions.allocations,
        True,
    ),
    Step(
        "late consumer",
        12,
        "an epoch proved unsynchronised, its stream kept busy",
        questions.late_consumer,
        True,
    ),
    Step("clock", 20, "computing and waiting by the device's clock, strict and not", questions.clock, True),
    Step("cuDNN", 12, "whether the training step's convolutions are cuDNN's", questions.cudnn, True),
    Step(
        "host register",
        12,
        "a mapped file given to cudaHostRegister read-only: a trial",
        register.host_register,
        True,
    ),
    Step("run, warm", 30, "all default loaders over four formats", _run("warm", "none")),
    Step("run, cold", 30, "the same from a cold disk", _run("cold", "none")),
    Step("run, warm, training", 30, "with a training step", _run("warm", "mlp")),
    Step("run, cold, training", 30, "the same from a cold disk", _run("cold", "mlp")),
    Step("other loaders", 75, "each that is installed, over npy", commands.other_loaders),
    Step("suite", 50, "pytest -m gpu", commands.suite),
    Step("KvikIO", 25, "loader gds, warm and cold; whether GPUDirect Storage is active", commands.kvikio),
    Step("DALI", 20, "loader dali: its GPU pipeline, and its CPU pipeline beside it", commands.dali),
    Step("report", 15, "one page about all records", commands.report),
)


def planned() -> str:
    """The plan in words: each step, its estimate, and the sum."""
    width = max(len(step.name) for step in PLAN)
    lines = [f"{step.name:{width}}  about {step.seconds:3.0f} s  {step.about}" for step in PLAN]
    total = sum(step.seconds for step in PLAN)
    return "\n".join([*lines, f"{'together':{width}}  about {total:3.0f} s, {total / 60:.1f} minutes"])


def main() -> int:
    """Ask everything, or one question of the device where `--question` names it."""
    options = _options()
    if options.plan:
        print(planned())
        return 0
    from iobench.base.errors import (
        IobenchError,
    )
    from iobench.host.device import pick_device

    try:
        device = pick_device(options.device)
    except IobenchError as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return 1
    if device.type == "cpu":
        print(f"gpu_check: --device {options.device} is the CPU: there is nothing to check", file=sys.stderr)
        return 1
    check = Check(str(device), options.out.resolve(), options.size)
    if options.question:
        (step,) = (step for step in PLAN if step.name == options.question)
        print(json.dumps(step.ask(check)))
        return 0
    print(planned(), flush=True)
    for step in PLAN:
        ask = (lambda check, step=step: check.apart(step.name)) if step.apart else step.ask
        check.step(step.name, ask, step.seconds)
    print(f"{check.out}: {time.monotonic() - check.began:.0f} s")
    return 1 if any(found == FAILS for _, found, _ in check.verdicts) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=Path("data/gpu-check"))
    parser.add_argument("--size", default="512MiB", help="of the data")
    parser.add_argument("--plan", action="store_true", help="print what would be asked, and ask nothing")
    parser.add_argument("--question", help=argparse.SUPPRESS, choices=[s.name for s in PLAN if s.apart])
    return parser.parse_args()
