"""Check on a GPU everything that cannot be tested without one. Takes less than eight minutes.

    .venv/bin/python scripts/gpu_check [--device cuda] [--out data/gpu-check] [--size 512MiB]
    .venv/bin/python scripts/gpu_check --plan       print the steps and their estimated times
    .venv/bin/python scripts/gpu_check --only prepare limits       these steps only

The output folder gets `verdicts.txt` (one line for each step: pass, fail or unknown, and the evidence),
`verdicts.json`, the records of all runs, the limits, the output of the test suite and, with the extra
`report`, a report about the records. A step that takes twice its estimate is killed.

Exit code 0 if no step fails, 1 if one does, or if there is no GPU (one line on stderr).
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

from eval.gpu_check import commands, device_checks
from eval.gpu_check.check import FAIL, Check, Verdict


class Step(NamedTuple):
    """A step, its estimated seconds and its description."""

    name: str
    seconds: float
    description: str
    run: Callable[[Check], Verdict]
    in_child: bool = False  # uses the device, so it runs in a child process; the others start commands


def _run(cache: str, model: str) -> Callable[[Check], Verdict]:
    return partial(commands.run, cache=cache, model=model)


PLAN = (
    Step("identity", 10, "the GPU, its driver, its link and its NUMA node", device_checks.identity, True),
    Step("prepare", 15, "the data, in four formats", commands.prepare),
    Step("limits", 15, "iobench limits: the link, pinned and pageable, both directions", commands.limits),
    Step(
        "allocations",
        6,
        "StreamLoader allocates no device memory from the third epoch on",
        device_checks.allocations,
        True,
    ),
    Step(
        "late consumer",
        6,
        "content of an epoch, with a busy stream and no synchronization",
        device_checks.late_consumer,
        True,
    ),
    Step(
        "clock", 15, "compute and wait time by the device's clock, strict and not", device_checks.clock, True
    ),
    Step("cuDNN", 12, "the training step uses cuDNN convolutions", device_checks.cudnn, True),
    Step("run, warm", 40, "all default loaders over four formats", _run("warm", "none")),
    Step("run, cold", 50, "the same from a cold disk", _run("cold", "none")),
    Step("run, warm, training", 50, "with a training step", _run("warm", "mlp")),
    Step("run, cold, training", 55, "the same from a cold disk", _run("cold", "mlp")),
    Step("other loaders", 60, "every installed loader, over npy", commands.other_loaders),
    Step("suite", 70, "pytest -m gpu", commands.suite),
    Step("KvikIO", 25, "loader gds, warm and cold; is GPUDirect Storage active?", commands.kvikio),
    Step("DALI", 20, "loader dali: GPU pipeline and CPU pipeline", commands.dali),
    Step("report", 15, "a report about all records", commands.report),
)


def planned() -> str:
    """Return the plan as text: each step, its estimate, and the total."""
    width = max(len(step.name) for step in PLAN)
    lines = [f"{step.name:{width}}  about {step.seconds:3.0f} s  {step.description}" for step in PLAN]
    total = sum(step.seconds for step in PLAN)
    return "\n".join([*lines, f"{'total':{width}}  about {total:3.0f} s, {total / 60:.1f} minutes"])


def main() -> int:
    """Run all steps, or the one that `--step` names."""
    options = _options()
    if options.plan:
        print(planned())
        return 0
    from iobench.base.errors import IobenchError
    from iobench.host.device import pick_device

    try:
        device = pick_device(options.device)
    except IobenchError as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return 1
    if device.type == "cpu":
        print(f"gpu_check: --device {options.device} is the CPU: gpu_check needs a GPU", file=sys.stderr)
        return 1
    check = Check(str(device), options.out.resolve(), options.size)
    if options.step:
        (step,) = (step for step in PLAN if step.name == options.step)
        print(json.dumps(step.run(check)))
        return 0
    print(planned(), flush=True)
    for step in (step for step in PLAN if not options.only or step.name in options.only):
        run = (lambda check, step=step: check.run_in_child(step.name)) if step.in_child else step.run
        check.step(step.name, run, step.seconds)
    print(f"{check.out}: {time.monotonic() - check.began:.0f} s")
    return 1 if any(verdict == FAIL for _, verdict, _ in check.verdicts) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", help="such as cuda:1")
    parser.add_argument("--out", type=Path, default=Path("data/gpu-check"), help="the output folder")
    parser.add_argument("--size", default="512MiB", help="size of the data")
    names = [step.name for step in PLAN]
    parser.add_argument("--only", nargs="+", metavar="STEP", choices=names, help="only these steps")
    parser.add_argument("--plan", action="store_true", help="print the steps and exit")
    parser.add_argument("--step", help=argparse.SUPPRESS, choices=[s.name for s in PLAN if s.in_child])
    return parser.parse_args()
