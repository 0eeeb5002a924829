#!/usr/bin/env python3
"""Regret of `iobench recommend`: its choice against the exhaustive grid, situation by situation.

    .venv/bin/python scripts/recommendations.py [--rounds 31] [--max-time 30] [--stepped] [--out FILE]

For each situation (size, sample size, order, cache state, training step) it makes a recommendation and then
measures the grid of candidates in interleaved rounds: all in a few rounds, those roughly near the fastest in
more, and those still near it and the recommended one in all. Regret is how much longer the recommended case
takes than the fastest of the grid, with the training step if there is one, by the medians of the grid. The
grid's time is what all candidates would have taken in all rounds. Run it on an idle machine: each of the 18
situations takes several minutes. --out resumes an interrupted run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import iobench
from iobench.advise.candidates import candidate_set, loader_word
from iobench.advise.requirements import Requirements
from iobench.bench.case import Case
from iobench.bench.observer import Observer
from iobench.bench.run import run
from iobench.dataset.manifest import Manifest
from iobench.results import stats
from iobench.results.record import Record

# rounds of every candidate, and the factor to the best rate within which a candidate stays in the grid
FEW, NEAR = 3, 1.5
MORE, NEARER = 9, 1.2  # the same for those that stay, by medians
SMALL, MEDIUM, LARGE = (128,), (3, 32, 32), (3, 112, 112)  # float32: 512 B, 12 and 147 KiB a sample
SITUATIONS = [
    (size, shape, order, cache, step_ms)
    for size, shape, steps_ms in ((2e6, SMALL, (0.2, 1)), (5e6, MEDIUM, (2, 10)), (2e7, LARGE, (10, 40)))
    for order, cache, step_ms in (
        *((order, cache, 0) for order in ("random", "sequential") for cache in ("warm", "cold")),
        ("random", "warm", steps_ms[0]),
        ("random", "cold", steps_ms[1]),
    )
]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=31, help="rounds of the grid")
    parser.add_argument("--max-time", type=float, default=30.0, help="seconds for each recommendation")
    parser.add_argument("--situations", type=int, default=len(SITUATIONS), help="measure only the first N")
    parser.add_argument("--stepped", action="store_true", help="only situations with a training step")
    parser.add_argument("--data-dir", type=Path, help="default: a temporary folder")
    parser.add_argument("--out", type=Path, help="append results to this file, and resume from it")
    options = parser.parse_args()
    results = [json.loads(line) for line in lines_of(options.out)]
    heads = (
        "size       sample     order       cache  step    outcome",
        "recommended",
        "regret  of time  fastest",
    )
    print(f"{heads[0]}  {heads[1]:30} {heads[2]}")
    for result in results:
        show(result)
    with tempfile.TemporaryDirectory() as folder:
        for situation in SITUATIONS[: options.situations]:
            known = name_of(situation) in {result["situation"] for result in results}
            if not known and (situation[-1] or not options.stepped):
                results.append(one(options, situation, options.data_dir or Path(folder)))
                show(results[-1])
                if options.out:
                    with options.out.open("a") as lines:
                        lines.write(json.dumps(results[-1]) + "\n")
    regrets = [result["regret"] for result in results]
    print(
        f"regret: median {statistics.median(regrets):.1%}, worst {max(regrets):.1%}; "
        f"time: median {statistics.median(result['of_time'] for result in results):.0%} of the grid's"
    )


def lines_of(path: Path | None) -> list[str]:
    """Return the lines of a file, none if it does not exist."""
    return path.read_text().splitlines() if path and path.exists() else []


def name_of(situation: tuple) -> str:
    """Return the first columns of a situation's row."""
    size, shape, order, cache, step_ms = situation
    step = f" {step_ms:g} ms" if step_ms else ""
    return f"{size:<10.0e} {'x'.join(map(str, shape)):10} {order:11} {cache:6}{step}"


def show(result: dict) -> None:
    """Print a row."""
    print(
        f"{result['situation']:46} {result['outcome']:8} {result['use']:30} {result['regret']:6.1%}  "
        f"{result['of_time']:7.0%}  {result['fastest']}{result['significantly']}",
        flush=True,
    )


def one(options: argparse.Namespace, situation: tuple, data_dir: Path) -> dict:
    """Recommend, measure the grid, and return the regret and the share of the grid's time."""
    size, shape, order, cache, step_ms = situation
    source = iobench.Synthetic(int(size), shape)
    manifest, _ = iobench.prepare(source, data_dir=data_dir)
    full_bytes = manifest.schema.logical_bytes * (1 if cache == "warm" else 10**6)
    requirements = Requirements(
        order=order, max_time_s=options.max_time, full_bytes=full_bytes, step_ms=step_ms
    )
    began = time.monotonic()
    result = iobench.recommend(manifest, requirements)
    took_s = time.monotonic() - began
    cases = candidate_set(manifest, requirements, "cpu", cache).cases
    # all finalists are isolated if one of them has to be
    use = next(case for case in cases if result.use.key in (case.key, replace(case, isolated=True).key))
    used = replace(use, step_s=step_ms / 1000).key
    cases = [replace(case, step_s=step_ms / 1000) for case in cases]
    names = {case.key: f"{case.variant} · {loader_word(case)}, {case.order}" for case in cases}
    rates, grid_s = grid(manifest, cases, cache, options, used)
    medians = {key: statistics.median(by_round.values()) for key, by_round in rates.items()}
    best = max(medians, key=lambda key: medians[key])
    sure = stats.compare_paired(rates[best], rates[used]) if best != used else None
    significantly = (
        f" (significant, {sure.ratio.low:.2f}-{sure.ratio.high:.2f})"
        if sure and sure.outcome == "faster"
        else ""
    )
    return {
        "situation": name_of(situation),
        "outcome": result.outcome,
        "use": result.use.label,
        "fastest": names[best],
        "regret": medians[best] / medians[used] - 1,
        "of_time": took_s / grid_s,
        "significantly": significantly,
    }


def grid(
    manifest: Manifest, cases: Sequence[Case], cache: str, options: argparse.Namespace, chosen: str
) -> tuple[dict[str, dict[int, float]], float]:
    """Return samples per second near the fastest, by case and round, and the seconds of the full grid."""
    began = time.monotonic()
    few = measured(manifest, cases, cache, FEW)
    round_s = sum(one.timing.open_s + one.timing.epochs_s for one in few) / FEW
    grid_s = time.monotonic() - began + round_s * (options.rounds - FEW)  # processes are started once
    best = {key: max(by_round.values()) for key, by_round in rates_of(few).items()}
    remaining = near(best, NEAR) | {chosen}
    more = rates_of(measured(manifest, [case for case in cases if case.key in remaining], cache, MORE))
    remaining = near({key: statistics.median(by_round.values()) for key, by_round in more.items()}, NEARER)
    last = [case for case in cases if case.key in remaining | {chosen}]
    return rates_of(measured(manifest, last, cache, options.rounds)), grid_s


def near(rates: dict[str, float], times: float) -> set[str]:
    """Return the keys whose rate is within a factor of the best."""
    return {key for key, rate in rates.items() if rate * times > max(rates.values())}


def measured(manifest: Manifest, cases: Sequence[Case], cache: str, rounds: int) -> list[Record]:
    """Run the cases and return the valid records."""
    options = iobench.RunOptions(cache=(cache,), rounds=str(rounds), limits=False)
    return run(manifest, options, observer=Observer(), cases=cases).valid_records


def rates_of(records: Sequence[Record]) -> dict[str, dict[int, float]]:
    """Return samples per second of each case, by round."""
    rates: dict[str, dict[int, float]] = {}
    for record in records:
        rates.setdefault(record.settings_key, {})[record.round] = record.samples_per_s
    return rates


if __name__ == "__main__":
    main()
