#!/usr/bin/env python3
"""Regret of `iobench recommend`: its choice against the exhaustive grid, situation by situation.

For each situation (size, sample size, order, cache state, training step) it makes a recommendation and then
measures the grid of candidates in interleaved rounds: all in a few rounds, those roughly near the fastest in
more, and those still near it and the recommended one in all. Regret is how much longer the recommended case
takes than the fastest of the grid, with the training step if there is one, by the medians of the grid. The
grid's time is what all candidates would have taken in all rounds. Run it on an idle machine: each situation
takes several minutes, and --out resumes an interrupted run.
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
from iobench.bench.case import Case
from iobench.bench.observer import Observer
from iobench.bench.run import run
from iobench.dataset.manifest import Manifest
from iobench.recommendation.candidates import candidate_set, loader_word
from iobench.recommendation.requirements import Requirements
from iobench.results import stats
from iobench.results.record import Record

FEW, NEAR = 3, 1.5  # rounds of every candidate; one whose best is slower by more than this cannot win
MORE, NEARER = 9, 1.2  # rounds of those that are left; so are those of which the median is
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
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--rounds", type=int, default=31, help="rounds of the grid")
    asked.add_argument("--max-time", type=float, default=30.0, help="seconds for each recommendation")
    asked.add_argument("--situations", type=int, default=len(SITUATIONS), help="only the first so many")
    asked.add_argument("--stepped", action="store_true", help="only those with a training step")
    asked.add_argument("--data-dir", type=Path)
    asked.add_argument("--out", type=Path, help="keep what was found here, and go on from what is there")
    given = asked.parse_args()
    there = [json.loads(line) for line in lines_of(given.out)]
    heads = (
        "size       sample     order       cache  step    outcome",
        "recommended",
        "regret  of time  fastest",
    )
    print(f"{heads[0]}  {heads[1]:30} {heads[2]}")
    for found in there:
        show(found)
    with tempfile.TemporaryDirectory() as folder:
        for situation in SITUATIONS[: given.situations]:
            known = name_of(situation) in {found["situation"] for found in there}
            if not known and (situation[-1] or not given.stepped):
                there.append(one(given, situation, given.data_dir or Path(folder)))
                show(there[-1])
                if given.out:
                    with given.out.open("a") as lines:
                        lines.write(json.dumps(there[-1]) + "\n")
    regrets = [found["regret"] for found in there]
    print(
        f"regret: median {statistics.median(regrets):.1%}, worst {max(regrets):.1%}; "
        f"time: median {statistics.median(found['of_time'] for found in there):.0%} of the grid's"
    )


def lines_of(path: Path | None) -> list[str]:
    """The lines of a file, none where there is none."""
    return path.read_text().splitlines() if path and path.exists() else []


def name_of(situation: tuple) -> str:
    """A situation as its row begins."""
    size, shape, order, cache, step_ms = situation
    step = f" {step_ms:g} ms" if step_ms else ""
    return f"{size:<10.0e} {'x'.join(map(str, shape)):10} {order:11} {cache:6}{step}"


def show(found: dict) -> None:
    """Print a row."""
    print(
        f"{found['situation']:46} {found['outcome']:8} {found['use']:30} {found['regret']:6.1%}  "
        f"{found['of_time']:7.0%}  {found['fastest']}{found['surely']}",
        flush=True,
    )


def one(given: argparse.Namespace, situation: tuple, data_dir: Path) -> dict:
    """The regret, and the part of the grid's time that the recommendation took."""
    size, shape, order, cache, step_ms = situation
    source = iobench.Synthetic(int(size), shape)
    manifest, _ = iobench.prepare(source, data_dir=data_dir)
    real = manifest.schema.logical_bytes * (1 if cache == "warm" else 10**6)
    requirements = Requirements(order=order, max_time_s=given.max_time, full_bytes=real, step_ms=step_ms)
    began = time.monotonic()
    result = iobench.recommend(manifest, requirements)
    took_s = time.monotonic() - began
    cases = candidate_set(manifest, requirements, "cpu", cache).cases
    # finalists are all in processes of their own where one of them has to be
    use = next(case for case in cases if result.use.key in (case.key, replace(case, isolated=True).key))
    used = replace(use, step_s=step_ms / 1000).key
    cases = [replace(case, step_s=step_ms / 1000) for case in cases]
    names = {case.key: f"{case.variant} · {loader_word(case)}, {case.order}" for case in cases}
    rates, grid_s = grid(manifest, cases, cache, given, used)
    medians = {key: statistics.median(by_round.values()) for key, by_round in rates.items()}
    best = max(medians, key=lambda key: medians[key])
    sure = stats.compare_paired(rates[best], rates[used]) if best != used else None
    surely = (
        f" (surely, {sure.ratio.low:.2f}-{sure.ratio.high:.2f})" if sure and sure.outcome == "faster" else ""
    )
    return {
        "situation": name_of(situation),
        "outcome": result.outcome,
        "use": result.use.label,
        "fastest": names[best],
        "regret": medians[best] / medians[used] - 1,
        "of_time": took_s / grid_s,
        "surely": surely,
    }


def grid(
    manifest: Manifest, cases: Sequence[Case], cache: str, given: argparse.Namespace, chosen: str
) -> tuple[dict[str, dict[int, float]], float]:
    """Samples per second of who is near the fastest, by case and round; seconds that all would take."""
    began = time.monotonic()
    few = measured(manifest, cases, cache, FEW)
    round_s = sum(one.timing.open_s + one.timing.epochs_s for one in few) / FEW
    grid_s = time.monotonic() - began + round_s * (given.rounds - FEW)  # processes start once
    best = {key: max(by_round.values()) for key, by_round in rates_of(few).items()}
    left = near(best, NEAR) | {chosen}
    more = rates_of(measured(manifest, [case for case in cases if case.key in left], cache, MORE))
    left = near({key: statistics.median(by_round.values()) for key, by_round in more.items()}, NEARER)
    last = [case for case in cases if case.key in left | {chosen}]
    return rates_of(measured(manifest, last, cache, given.rounds)), grid_s


def near(rates: dict[str, float], times: float) -> set[str]:
    """Those whose rate is no more than so many times below the best."""
    return {key for key, rate in rates.items() if rate * times > max(rates.values())}


def measured(manifest: Manifest, cases: Sequence[Case], cache: str, rounds: int) -> list[Record]:
    """The sound rounds of these cases."""
    options = iobench.RunOptions(cache=(cache,), rounds=str(rounds), limits=False)
    return run(manifest, options, observer=Observer(), cases=cases).valid_records


def rates_of(records: Sequence[Record]) -> dict[str, dict[int, float]]:
    """Samples per second of each case, by round."""
    rates: dict[str, dict[int, float]] = {}
    for made in records:
        rates.setdefault(made.settings_key, {})[made.round] = made.samples_per_s
    return rates


if __name__ == "__main__":
    main()
