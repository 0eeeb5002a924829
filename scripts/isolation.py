"""Measure the effect of process isolation: each case in its own process and in a shared one, interleaved.

    .venv/bin/python scripts/isolation.py [--rounds 31] [--name NAME] [--data-dir data] [--order random]

Needs a prepared dataset. Takes twice as long as `iobench run` with as many rounds. Prints the speed of each
case in its own process relative to the shared process, with the 95 % interval of the paired ratios.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from iobench import RunOptions, find_dataset
from iobench.bench.observer import Observer
from iobench.bench.options import cases_of
from iobench.bench.outcome import Run
from iobench.bench.run_loop import RunLoop
from iobench.results import stats
from iobench.results.case_key import key_of
from iobench.results.cases import by_case, labels_of
from iobench.results.summary import rates


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=31, help="rounds of each case")
    parser.add_argument("--name", help="the dataset; default: the only one")
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="the data folder")
    parser.add_argument("--order", default="random", help="the sample order")
    parser.add_argument("--out", type=Path, default=Path("isolation.jsonl"), help="records are appended here")
    arguments = parser.parse_args()
    manifest = find_dataset(arguments.data_dir, arguments.name)
    options = RunOptions(
        device=("cpu",), order=(arguments.order,), rounds=str(arguments.rounds), limits=False
    )
    shared = cases_of(manifest, replace(options, isolate=False), ["cpu"])
    run = Run(manifest, options, [*shared, *(replace(case, isolated=True) for case in shared)], arguments.out)
    RunLoop(run, Observer(), options.strategy).all_rounds()
    for key, error in run.failures.items():
        print(f"{run.labels[key]}: {error}")
    report(run)


def report(run: Run) -> None:
    """Print a line for each case that was measured both ways."""
    groups = by_case(run.records)
    labels = labels_of(groups)
    speeds, pairs = rates(groups), dict[str, dict[bool, str]]()
    for key, records in groups.items():
        case = records[0].case
        pairs.setdefault(key_of({**case, "isolated": None}), {})[case["isolated"]] = key
    for both in pairs.values():
        if len(both) == 2:
            compared = stats.compare_paired(speeds[both[True]], speeds[both[False]], comparisons=len(pairs))
            ratio = compared.ratio
            interval = "–" if ratio.low is None else f"{ratio.low:.2f} – {ratio.high:.2f}"
            print(f"{labels[both[True]].short:28} {ratio.median:5.2f} ×  {interval:14} {compared.outcome}")


if __name__ == "__main__":
    main()
