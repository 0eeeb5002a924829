"""Measure the effect of process isolation: each case in its own process and in a shared one, interleaved.

Needs a prepared dataset. Prints the speed of each case in its own process relative to the shared process,
with the 95 % interval of the paired ratios.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace

from eval import harness
from eval.harness import Row, Trials
from iobench import RunOptions
from iobench.bench.case_grid import cases_of
from iobench.bench.observer import Observer
from iobench.bench.outcome import Run
from iobench.bench.run import run
from iobench.results import stats
from iobench.results.case_key import key_of
from iobench.results.cases import by_case, labels_of
from iobench.results.summary import rates

OPTIONS = {
    "rounds": (31, harness.ROUNDS),
    "name": ("", harness.NAME),
    "order": ("random", "the sample order"),
}


def trials(options: argparse.Namespace) -> Trials:
    return {"isolation": lambda: compare(both_ways(options))}


def both_ways(options: argparse.Namespace) -> Run:
    manifest = harness.dataset(options)
    settings = RunOptions(
        device=("cpu",), order=(options.order,), rounds=str(options.rounds), limits=False, isolate=False
    )
    shared = cases_of(manifest, settings, ["cpu"])
    cases = [*shared, *(replace(case, isolated=True) for case in shared)]
    out = options.folder / "isolation.jsonl"
    return run(manifest, settings, out=out, observer=Observer(), cases=cases)


def compare(run: Run) -> Iterator[Row]:
    """Yield a row for each case that was measured both ways."""
    for key, error in run.failures.items():
        yield {"failed": f"{run.labels[key]}: {error}"}
    groups = by_case(run.records)
    labels, speeds = labels_of(groups), rates(groups)
    pairs: dict[str, dict[bool, str]] = {}
    for key, records in groups.items():
        case = records[0].case
        pairs.setdefault(key_of({**case, "isolated": None}), {})[case["isolated"]] = key
    for both in (both for both in pairs.values() if len(both) == 2):
        compared = stats.compare_paired(speeds[both[True]], speeds[both[False]], comparisons=len(pairs))
        ratio = compared.ratio
        figures = {"ratio": ratio.median, "low": ratio.low, "high": ratio.high}
        yield {"case": labels[both[True]].short, **figures, "outcome": compared.outcome}
