"""Whether a training is the same one whoever loads its batches and over how many ranks it runs."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from iobench.base.errors import (
    IobenchError,
)
from iobench.base.text import reason
from iobench.studies._base import FAILS, HOLDS, UNKNOWN, Answer
from iobench.studies._claims import all_of
from iobench.studies._turns import Measurements, Turn

PROGRAM = "iobench.studies._parity_ranks"
LIMIT_S = 300.0
TOLERANCES = {"float64": 1e-12, "float32": 1e-5}  # of a step's loss, without BatchNorm
EQUIVALENT = 0.01  # of accuracy, with BatchNorm
CONFIDENCE = 0.9  # of the interval that has to lie within it: two one-sided tests at 5 %
ALONE, RANKS = "one process", "DDP of 2"

Found = dict[str, dict[str, Any]]  # by loader


def trainings(ranks: int, address: str, epochs: int) -> list[Found]:
    """What each rank found, each in a process of its own; IobenchError where one fails or takes too long."""
    launched = [
        *("-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={ranks}", "--local-addr=127.0.0.1"),
        *("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "-m"),
    ]
    launcher = launched if ranks > 1 else ["-m"]
    quiet = {"GLOO_SOCKET_IFNAME": "lo", "RAY_ADDRESS": address, "PYTHONPATH": os.pathsep.join(sys.path)}
    with TemporaryDirectory(prefix="iobench-") as folder:
        command = [sys.executable, *launcher, PROGRAM, folder, str(epochs)]
        _finish(command, {**os.environ, "OMP_NUM_THREADS": "1", **quiet})
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(ranks)]


def _finish(command: list[str], environment: dict[str, str]) -> None:
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise IobenchError(f"a training of the study has not ended within {LIMIT_S:g} s") from error
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "Error" in line]
        raise IobenchError(f"a training of the study failed: {reason(Exception((errors or ['?'])[0]))}")


def same_batches(claim: str, torch_s: Sequence[str], ray_s: Sequence[str]) -> Answer:
    """Whether both loaders gave the same batches, hash by hash."""
    same = sum(one == other for one, other in zip(torch_s, ray_s, strict=False))
    count = max(len(torch_s), len(ray_s))
    return Answer(
        claim,
        HOLDS if same == count else FAILS,
        f"{same} of {count} batches under random transforms are the same bit by bit with Ray's actors "
        "and with torch's workers",
    )


def same_losses(claim: str, one: Found | dict[str, Any], other: dict[str, Any], whom: str) -> Answer:
    """Whether two trainings without BatchNorm lose the same at each step, as far as rounding allows."""
    answer, told = HOLDS, []
    for dtype, tolerance in TOLERANCES.items():
        losses, others = one[dtype]["losses"], other[dtype]["losses"]
        apart = max((abs(a - b) for a, b in zip(losses, others, strict=True)), default=float("inf"))
        told.append(f"{apart:.1e} in {dtype} (allowed {tolerance:g})")
        if not apart <= tolerance:
            answer = FAILS
    steps = len(one["float64"]["losses"])
    return Answer(claim, answer, f"{whom}: over {steps} steps losses differ by at most {', '.join(told)}")


def same_accuracy(claim: str, one: Sequence[float], other: Sequence[float], whom: str) -> Answer:
    """Whether accuracies with BatchNorm are equivalent, from their differences seed by seed."""
    from scipy import stats

    apart = [a - b for a, b in zip(one, other, strict=True)]
    middle = statistics.mean(apart)
    reach = stats.t.ppf((1 + CONFIDENCE) / 2, len(apart) - 1) * statistics.stdev(apart) / len(apart) ** 0.5
    low, high = middle - reach, middle + reach
    inside = low > -EQUIVALENT and high < EQUIVALENT
    outside = low >= EQUIVALENT or high <= -EQUIVALENT
    return Answer(
        claim,
        HOLDS if inside else FAILS if outside else UNKNOWN,
        f"{whom}: with BatchNorm, over {len(apart)} seeds, accuracy {statistics.mean(one):.2%} against "
        f"{statistics.mean(other):.2%}, a difference of {100 * low:.2f} to {100 * high:.2f} points "
        f"({CONFIDENCE:.0%} interval; equivalent within {100 * EQUIVALENT:g})",
    )


def unaffected(claim: str, ranks: list[Found]) -> Answer:
    """Whether a training is the same with both loaders: batches, losses, accuracy."""
    torch_s, ray_s = ([rank[kind] for rank in ranks] for kind in ("torch's workers", "Ray's actors"))
    whom = "Ray's actors against torch's workers"
    return all_of(
        claim,
        [
            *(
                same_batches("", one["hashes"], other["hashes"])
                for one, other in zip(torch_s, ray_s, strict=True)
            ),
            same_losses("", ray_s[0], torch_s[0], whom),
            same_accuracy("", _normed(ray_s[0]), _normed(torch_s[0]), whom),
        ],
    )


def over_ranks(claim: str, ranks: dict[str, list[Found]]) -> Answer:
    """Whether a training over several ranks is that of one process."""
    alone, several = (ranks[name][0]["torch's workers"] for name in (ALONE, RANKS))
    return all_of(
        claim,
        [
            same_losses("", several, alone, f"{RANKS} against {ALONE}"),
            same_accuracy("", _normed(several), _normed(alone), f"{RANKS} against {ALONE}"),
        ],
    )


def _normed(found: dict[str, Any]) -> list[float]:
    return [one["accuracy"] for one in found["batchnorm"]]


def accuracies(ranks: dict[str, list[Found]]) -> Measurements:
    """The trainings with BatchNorm as contenders, a round for each seed."""
    found = Measurements({})
    for name, each in ranks.items():
        for loader, trained in each[0].items():
            for one in trained["batchnorm"]:
                found.note(f"{name}, {loader}", Turn(one["seconds"], {"accuracy": one["accuracy"]}))
    return found
