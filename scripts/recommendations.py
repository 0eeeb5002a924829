#!/usr/bin/env python3
"""How right `iobench recommend` is: its choice against the exhaustive grid, situation by situation.

For each situation (size, sample size, order, state of the cache) the recommendation is asked for, and then
the grid of candidates is measured in interleaved rounds: all of them in a few, and those that are anywhere
near the fastest in all. Regret is how much longer the recommended case takes than the fastest of the grid,
by the medians of the grid; what all candidates would have taken in all rounds is the grid's time. Run it on
a machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import iobench
from iobench.bench.case import Case
from iobench.bench.observer import Observer
from iobench.bench.run import run
from iobench.dataset.manifest import Manifest
from iobench.recommendation.candidates import field_of
from iobench.recommendation.needs import Needs
from iobench.results import stats
from iobench.results.cases import key_of

FEW = 3  # rounds of every candidate
NEAR = 1.5  # times as fast as a candidate's best round: the fastest is at most this, or it cannot win
SMALL, LARGE = (128,), (3, 112, 112)  # float32: 512 B and 147 KiB a sample
SITUATIONS = [
    (size, shape, order, cache)
    for size in (2e6, 2e7)
    for shape in (SMALL, LARGE)
    for order in ("random", "sequential")
    for cache in ("warm", "cold")
]


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--rounds", type=int, default=31, help="rounds of the grid")
    asked.add_argument("--max-time", type=float, default=30.0, help="seconds for each recommendation")
    asked.add_argument("--situations", type=int, default=len(SITUATIONS), help="only the first so many")
    asked.add_argument("--data-dir", type=Path)
    given = asked.parse_args()
    print("size       sample     order       cache  outcome  recommended                    regret  of time")
    with tempfile.TemporaryDirectory() as folder:
        found = [
            one(given, situation, given.data_dir or Path(folder))
            for situation in SITUATIONS[: given.situations]
        ]
    regrets = [regret for regret, _ in found]
    parts = [part for _, part in found]
    print(
        f"regret: median {statistics.median(regrets):.1%}, worst {max(regrets):.1%}; "
        f"time: median {statistics.median(parts):.0%} of the grid's"
    )


def one(given: argparse.Namespace, situation: tuple, data_dir: Path) -> tuple[float, float]:
    """Regret, and the part of the grid's time that the recommendation took."""
    size, shape, order, cache = situation
    source = iobench.Synthetic(int(size), shape)
    manifest, _ = iobench.prepare(source, data_dir=data_dir)
    real = manifest.schema.logical_bytes * (1 if cache == "warm" else 10**6)
    needs = Needs(order=order, max_time_s=given.max_time, real_bytes=real)
    began = time.monotonic()
    said = iobench.recommend(manifest, needs)
    took_s = time.monotonic() - began
    rates, grid_s = grid(manifest, field_of(manifest, needs, "cpu", cache).cases, cache, given, said.use.key)
    medians = {key: statistics.median(by_round.values()) for key, by_round in rates.items()}
    best = max(medians, key=lambda key: medians[key])
    regret = medians[best] / medians[said.use.key] - 1
    sure = stats.compare_paired(rates[best], rates[said.use.key]) if best != said.use.key else None
    surely = (
        f" (surely, {sure.ratio.low:.2f}-{sure.ratio.high:.2f})" if sure and sure.outcome == "faster" else ""
    )
    print(
        f"{size:<10.0e} {'x'.join(map(str, shape)):10} {order:11} {cache:6} {said.outcome:8} "
        f"{said.use.label:30} {regret:6.1%}  {took_s / grid_s:.0%}{surely}",
        flush=True,
    )
    return regret, took_s / grid_s


def grid(
    manifest: Manifest, cases: Sequence[Case], cache: str, given: argparse.Namespace, chosen: str
) -> tuple[dict[str, dict[int, float]], float]:
    """Samples per second of who is near the fastest, by case and round; seconds that all would take."""
    began = time.monotonic()
    first = rates_of(manifest, cases, cache, FEW)
    grid_s = (time.monotonic() - began) * given.rounds / FEW
    best = max(max(by_round.values()) for by_round in first.values())
    near = [key for key, by_round in first.items() if max(by_round.values()) * NEAR > best]
    last = [case for case in cases if case.key in {*near, chosen}]
    return rates_of(manifest, last, cache, given.rounds), grid_s


def rates_of(
    manifest: Manifest, cases: Sequence[Case], cache: str, rounds: int
) -> dict[str, dict[int, float]]:
    """Samples per second of each case, by round."""
    options = iobench.RunOptions(cache=(cache,), rounds=str(rounds), limits=False)
    rates: dict[str, dict[int, float]] = {}
    for made in run(manifest, options, observer=Observer(), cases=cases).sound:
        rates.setdefault(key_of(made.case), {})[made.round] = made.samples_per_s
    return rates


if __name__ == "__main__":
    main()
