"""Whether a process of its own changes a case's figures: each case both ways, in interleaved rounds.

Run:  .venv/bin/python scripts/isolation.py [--rounds 31] [--name NAME] [--data-dir data] [--order random]

Prints, for each case, how many times as fast it is apart as in one process with all others, with the
95 % interval of the ratios taken round by round.
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--name")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--order", default="random")
    parser.add_argument("--out", type=Path, default=Path("isolation.jsonl"), help="records are appended here")
    chosen = parser.parse_args()
    manifest = find_dataset(chosen.data_dir, chosen.name)
    options = RunOptions(device=("cpu",), order=(chosen.order,), rounds=str(chosen.rounds), limits=False)
    here = cases_of(manifest, replace(options, isolate=False), ["cpu"])
    run = Run(manifest, options, [*here, *(replace(case, isolated=True) for case in here)], chosen.out)
    RunLoop(run, Observer()).all_rounds()
    for key, reason in run.failures.items():
        print(f"{run.labels[key]}: {reason}")
    report(run)


def report(run: Run) -> None:
    """A line for each case that was measured both ways."""
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
