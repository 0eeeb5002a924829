"""Comparison of trainings: with both loaders, and in one process and over several ranks."""

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

from iobench.base.errors import IobenchError
from iobench.base.text import reason
from iobench.results.run_warning import Value
from iobench.studies._base import INCONCLUSIVE, NOT_REPRODUCED, REPRODUCED, ClaimResult
from iobench.studies._claims import all_of
from iobench.studies._rounds import Measurements, RoundResult

PROGRAM = "iobench.studies._parity_ranks"
LIMIT_S = 300.0
TOLERANCES = {"float64": 1e-12, "float32": 1e-5}  # of a step's loss, without BatchNorm
EQUIVALENT = 0.01  # difference in accuracy, with BatchNorm
CONFIDENCE = 0.9  # of the interval that must lie within it: two one-sided tests at 5 %
SINGLE, RANKS = "one process", "DDP of 2"

RankResults = dict[str, dict[str, Any]]  # by loader


def trainings(ranks: int, address: str, epochs: int) -> list[RankResults]:
    """Run the trainings in a process for each rank, and return the results of each rank.

    Raises IobenchError if a process fails (`training-failed`) or takes too long (`timeout`).
    """
    torchrun = [
        *("-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={ranks}", "--local-addr=127.0.0.1"),
        *("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "-m"),
    ]
    launcher = torchrun if ranks > 1 else ["-m"]
    variables = {"GLOO_SOCKET_IFNAME": "lo", "RAY_ADDRESS": address, "PYTHONPATH": os.pathsep.join(sys.path)}
    with TemporaryDirectory(prefix="iobench-") as folder:
        command = [sys.executable, *launcher, PROGRAM, folder, str(epochs)]
        _finish(command, {**os.environ, "OMP_NUM_THREADS": "1", **variables})
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(ranks)]


def _finish(command: list[str], environment: dict[str, str]) -> None:
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise IobenchError(
            f"a training of the study has not ended within {LIMIT_S:g} s", kind="timeout"
        ) from error
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "Error" in line]
        cause = reason(Exception(errors[0])) if errors else f"exit code {done.returncode}"
        raise IobenchError(f"a training of the study failed: {cause}", kind="training-failed")


def same_batches(torch_s: Sequence[str], ray_s: Sequence[str]) -> ClaimResult:
    """Return the verdict on a claim that both loaders return the same batches, from their hashes."""
    same = sum(one == other for one, other in zip(torch_s, ray_s, strict=False))
    count = max(len(torch_s), len(ray_s))
    return ClaimResult(
        "",
        REPRODUCED if same == count else NOT_REPRODUCED,
        f"{same} of {count} batches under random transforms are the same bit by bit with Ray's actors "
        "and with torch's workers",
        values=[{"same_batches": same, "batches": count}],
    )


def same_losses(one: RankResults | dict[str, Any], other: dict[str, Any], pair: str) -> ClaimResult:
    """Return the verdict on a claim that two trainings without BatchNorm have equal losses up to rounding."""
    verdict, largest = REPRODUCED, dict[str, float]()
    for dtype, tolerance in TOLERANCES.items():
        losses, others = one[dtype]["losses"], other[dtype]["losses"]
        largest[dtype] = max((abs(a - b) for a, b in zip(losses, others, strict=True)), default=float("inf"))
        if not largest[dtype] <= tolerance:
            verdict = NOT_REPRODUCED
    steps = len(one["float64"]["losses"])
    texts = [f"{most:.1e} in {dtype} (allowed {TOLERANCES[dtype]:g})" for dtype, most in largest.items()]
    evidence = f"{pair}: over {steps} steps losses differ by at most {', '.join(texts)}"
    values: dict[str, Value] = {f"largest_difference_{dtype}": most for dtype, most in largest.items()}
    return ClaimResult("", verdict, evidence, values=[{"compared": pair, "steps": steps, **values}])


def same_accuracy(one: Sequence[float], other: Sequence[float], pair: str) -> ClaimResult:
    """Return the verdict on a claim of equivalent accuracies with BatchNorm, from differences by seed."""
    from scipy import stats

    differences = [a - b for a, b in zip(one, other, strict=True)]
    count, mean = len(differences), statistics.mean(differences)
    margin = stats.t.ppf((1 + CONFIDENCE) / 2, count - 1) * statistics.stdev(differences) / count**0.5
    low, high = float(mean - margin), float(mean + margin)
    inside = low > -EQUIVALENT and high < EQUIVALENT
    outside = low >= EQUIVALENT or high <= -EQUIVALENT
    return ClaimResult(
        "",
        REPRODUCED if inside else NOT_REPRODUCED if outside else INCONCLUSIVE,
        f"{pair}: with BatchNorm, over {count} seeds, accuracy {statistics.mean(one):.2%} against "
        f"{statistics.mean(other):.2%}, a difference of {100 * low:.2f} to {100 * high:.2f} points "
        f"({CONFIDENCE:.0%} interval; equivalent within {100 * EQUIVALENT:g})",
        values=[
            {
                "compared": pair,
                "accuracy": statistics.mean(one),
                "other_accuracy": statistics.mean(other),
                "low": low,
                "high": high,
            }
        ],
    )


def unaffected(claim: str, ranks: list[RankResults]) -> ClaimResult:
    """Return the verdict on a claim that batches, losses and accuracy are the same with both loaders."""
    torch_s, ray_s = ([rank[kind] for rank in ranks] for kind in ("torch's workers", "Ray's actors"))
    pair = "Ray's actors against torch's workers"
    return all_of(
        claim,
        [
            *(
                same_batches(one["hashes"], other["hashes"])
                for one, other in zip(torch_s, ray_s, strict=True)
            ),
            same_losses(ray_s[0], torch_s[0], pair),
            same_accuracy(_normed(ray_s[0]), _normed(torch_s[0]), pair),
        ],
    )


def over_ranks(claim: str, ranks: dict[str, list[RankResults]]) -> ClaimResult:
    """Return the verdict on a claim that a training over several ranks equals that of one process."""
    single, several = (ranks[name][0]["torch's workers"] for name in (SINGLE, RANKS))
    return all_of(
        claim,
        [
            same_losses(several, single, f"{RANKS} against {SINGLE}"),
            same_accuracy(_normed(several), _normed(single), f"{RANKS} against {SINGLE}"),
        ],
    )


def _normed(results: dict[str, Any]) -> list[float]:
    return [one["accuracy"] for one in results["batchnorm"]]


def accuracies(ranks: dict[str, list[RankResults]]) -> Measurements:
    """Return the trainings with BatchNorm as contenders, with a round for each seed."""
    measured = Measurements({})
    for name, each in ranks.items():
        for loader, trained in each[0].items():
            for one in trained["batchnorm"]:
                measured.add(f"{name}, {loader}", RoundResult(one["seconds"], {"accuracy": one["accuracy"]}))
    return measured
